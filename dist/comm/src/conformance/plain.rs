//! Inputs of every rank, and plain reductions to compare with.

use half::{bf16, f16};
use meshgrad_runtime::{Bool, Element};

use crate::ticket::Reduction;

/// An element with inputs and reductions that share no code with the library.
pub(super) trait Plain: Element {
    fn of(hash: u64) -> Self;

    fn sum(values: &[Self], mean: bool) -> Self;

    fn is_above(self, other: Self) -> bool;

    fn reduced(values: &[Self], reduction: Reduction) -> Self {
        let better = |one: Self, best: Self| match reduction {
            Reduction::Max => one.is_above(best),
            _ => best.is_above(one),
        };
        match reduction {
            Reduction::Sum => Self::sum(values, false),
            Reduction::Mean => Self::sum(values, true),
            _ => {
                let mut best = values[0];
                for value in values {
                    if better(*value, best) {
                        best = *value;
                    }
                }
                best
            }
        }
    }
}

/// Sums in the documented order, from the leaves up: adds neighbours until one value is left. An
/// odd last value moves to the next level.
fn pairwise<W: Copy>(mut level: Vec<W>, add: impl Fn(W, W) -> W) -> W {
    while level.len() > 1 {
        let pairs = level.chunks(2);
        let sums = pairs.map(|pair| match pair {
            [a, b] => add(*a, *b),
            rest => rest[0],
        });
        level = sums.collect();
    }
    level[0]
}

/// A float of varied sign and magnitude, so that the order of a sum changes its bits.
fn float(hash: u64) -> f64 {
    let fraction = (hash >> 11) as f64 / (1u64 << 53) as f64 + 0.5;
    let scale = f64::from(1u32 << (hash % 8));
    let sign = if hash & 256 == 0 { 1.0 } else { -1.0 };
    sign * fraction * scale
}

macro_rules! plain_floats {
    ($($rust:ty: $wide:ty, $widen:expr, $narrow:expr;)+) => {
        $(impl Plain for $rust {
            fn of(hash: u64) -> $rust {
                <$rust>::from_f64(float(hash))
            }

            fn sum(values: &[$rust], mean: bool) -> $rust {
                let wide: Vec<$wide> = values.iter().map(|x| $widen(*x)).collect();
                let sum = pairwise(wide, |a, b| a + b);
                $narrow(if mean { sum / values.len() as $wide } else { sum })
            }

            fn is_above(self, other: $rust) -> bool {
                self.to_f64() > other.to_f64()
            }
        })+
    };
}

plain_floats! {
    f64: f64, |x| x, |x| x;
    f32: f32, |x| x, |x| x;
    bf16: f32, bf16::to_f32, bf16::from_f32;
    f16: f32, f16::to_f32, f16::from_f32;
}

macro_rules! plain_integers {
    ($($rust:ty)+) => {
        $(impl Plain for $rust {
            fn of(hash: u64) -> $rust {
                hash as $rust // of full range, so that sums wrap
            }

            fn sum(values: &[$rust], _mean: bool) -> $rust {
                let sum = values.iter().map(|x| i128::from(*x)).sum::<i128>();
                sum as $rust
            }

            fn is_above(self, other: $rust) -> bool {
                self > other
            }
        })+
    };
}

plain_integers! { i64 i32 u32 u8 }

impl Plain for Bool {
    fn of(hash: u64) -> Bool {
        Bool::from(hash & 512 == 0)
    }

    fn sum(_values: &[Bool], _mean: bool) -> Bool {
        Bool::from(false) // sums of bool are refused before
    }

    fn is_above(self, other: Bool) -> bool {
        self.get() && !other.get()
    }
}

/// The input of `rank`: a function of its arguments only.
pub(super) fn input<T: Plain>(rank: usize, count: usize) -> Vec<T> {
    let element = |at: usize| {
        let mut hash = (rank as u64) << 32 ^ at as u64 ^ 0x9e37_79b9_7f4a_7c15;
        for _ in 0..3 {
            hash = (hash ^ hash >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        }
        T::of(hash ^ hash >> 32)
    };
    (0..count).map(element).collect()
}

/// The element-wise reduction of the inputs.
pub(super) fn reduced<T: Plain>(inputs: &[Vec<T>], reduction: Reduction) -> Vec<T> {
    let at = |at: usize| -> T {
        let values: Vec<T> = inputs.iter().map(|input| input[at]).collect();
        T::reduced(&values, reduction)
    };
    (0..inputs[0].len()).map(at).collect()
}
