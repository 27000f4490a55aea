//! Inputs of every rank, and plain reductions to compare with.

use std::fmt::Debug;
use std::marker::PhantomData;

use half::{bf16, f16};
use meshgrad_collectives::Reduction;
use meshgrad_runtime::{Bool, DType, Device, Element, Result, Tensor};

/// The bits of an element, so that checks are compiled once and not for each dtype.
pub(super) type Bits = u64;

/// The elements of a dtype.
pub(super) trait Plain: Sync + Debug {
    fn dtype(&self) -> DType;

    /// The input of `rank`: a function of the dtype and the arguments only.
    fn input(&self, rank: usize, count: usize) -> Vec<Bits>;

    /// The element-wise reduction of the inputs.
    fn reduced(&self, inputs: &[Vec<Bits>], reduction: Reduction) -> Vec<Bits>;

    fn tensor(&self, device: &Device, shape: &[usize], elements: &[Bits]) -> Result<Tensor>;

    fn bits(&self, x: &Tensor) -> Result<Vec<Bits>>;

    fn text(&self, element: Bits) -> String;
}

/// All dtypes. With `EXACT`, sums of floats are exact, so that their order does not change their bits.
pub(super) fn all<const EXACT: bool>() -> [&'static dyn Plain; 9] {
    [
        &Of::<f64, EXACT>(PhantomData),
        &Of::<f32, EXACT>(PhantomData),
        &Of::<bf16, EXACT>(PhantomData),
        &Of::<f16, EXACT>(PhantomData),
        &Of::<i64, EXACT>(PhantomData),
        &Of::<i32, EXACT>(PhantomData),
        &Of::<u32, EXACT>(PhantomData),
        &Of::<u8, EXACT>(PhantomData),
        &Of::<Bool, EXACT>(PhantomData),
    ]
}

/// [`Plain`] for elements of type `T`.
#[derive(Debug)]
struct Of<T, const EXACT: bool>(PhantomData<fn() -> T>);

impl<T: Number, const EXACT: bool> Plain for Of<T, EXACT> {
    fn dtype(&self) -> DType {
        T::DTYPE
    }

    fn input(&self, rank: usize, count: usize) -> Vec<Bits> {
        let of = if EXACT { T::small } else { T::of };
        (0..count).map(|at| of(hash(rank, at)).bits()).collect()
    }

    fn reduced(&self, inputs: &[Vec<Bits>], reduction: Reduction) -> Vec<Bits> {
        let at = |at: usize| {
            let values: Vec<T> = inputs.iter().map(|input| T::of_bits(input[at])).collect();
            T::reduced(&values, reduction).bits()
        };
        (0..inputs[0].len()).map(at).collect()
    }

    fn tensor(&self, device: &Device, shape: &[usize], elements: &[Bits]) -> Result<Tensor> {
        let elements: Vec<T> = elements.iter().map(|bits| T::of_bits(*bits)).collect();
        Tensor::from_slice(device, shape, &elements)
    }

    fn bits(&self, x: &Tensor) -> Result<Vec<Bits>> {
        Ok(x.to_vec::<T>()?.into_iter().map(T::bits).collect())
    }

    fn text(&self, element: Bits) -> String {
        format!("{:?}", T::of_bits(element))
    }
}

/// An element with inputs and reductions that share no code with the library.
trait Number: Element {
    fn of(hash: u64) -> Self;

    /// As `of`, but sums of up to 16 are exact.
    fn small(hash: u64) -> Self {
        Self::of(hash)
    }

    fn bits(self) -> Bits {
        let mut bits = [0; size_of::<Bits>()];
        bits[..size_of::<Self>()].copy_from_slice(bytemuck::bytes_of(&self));
        Bits::from_le_bytes(bits)
    }

    fn of_bits(bits: Bits) -> Self {
        bytemuck::pod_read_unaligned(&bits.to_le_bytes()[..size_of::<Self>()])
    }

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
        $(impl Number for $rust {
            fn of(hash: u64) -> $rust {
                <$rust>::from_f64(float(hash))
            }

            fn small(hash: u64) -> $rust {
                <$rust>::from_f64((hash % 17) as f64 - 8.0)
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
        $(impl Number for $rust {
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

impl Number for Bool {
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

fn hash(rank: usize, at: usize) -> u64 {
    let mut hash = (rank as u64) << 32 ^ at as u64 ^ 0x9e37_79b9_7f4a_7c15;
    for _ in 0..3 {
        hash = (hash ^ hash >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    }
    hash ^ hash >> 32
}
