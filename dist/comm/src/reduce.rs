//! Reductions over the ranks of a group, in the order of the fixed tree.
//!
//! Legend: n sources, one per rank, of equal length.

use half::{bf16, f16};
use meshgrad_collectives::Reduction;
use meshgrad_runtime::{Bool, Element, Float};

/// The elements that are reduced at a time. The sums of all levels of the tree stay in the cache.
pub(crate) const CHUNK: usize = 2048;

/// An element that can be reduced.
pub(crate) trait Reduce: Element {
    /// The type of sums.
    type Sum: Copy + Default;

    /// This element, exactly.
    fn widen(self) -> Self::Sum;

    /// The sum, wrapping for integers.
    fn add(a: Self::Sum, b: Self::Sum) -> Self::Sum;

    /// The sum of `ranks` elements divided by their number, for floats.
    fn mean(sum: Self::Sum, ranks: usize) -> Self::Sum;

    /// The nearest element.
    fn round(sum: Self::Sum) -> Self;

    /// Whether `other` replaces `self` as the maximum.
    fn is_below(self, other: Self) -> bool;

    /// Whether it is a NaN.
    fn is_nan(self) -> bool;
}

macro_rules! reduce_floats {
    ($($rust:ty, $sum:ty, $widen:expr, $round:expr;)+) => {
        $(impl Reduce for $rust {
            type Sum = $sum;

            #[inline(always)]
            fn widen(self) -> $sum {
                $widen(self)
            }

            #[inline(always)]
            fn add(a: $sum, b: $sum) -> $sum {
                a + b
            }

            #[inline(always)]
            fn mean(sum: $sum, ranks: usize) -> $sum {
                sum / ranks as $sum
            }

            #[inline(always)]
            fn round(sum: $sum) -> $rust {
                $round(sum)
            }

            #[inline(always)]
            fn is_below(self, other: $rust) -> bool {
                self < other
            }

            #[inline(always)]
            fn is_nan(self) -> bool {
                <$rust>::is_nan(self)
            }
        })+
    };
}

reduce_floats! {
    f64, f64, |x| x, |sum| sum;
    f32, f32, |x| x, |sum| sum;
    bf16, f32, Float::wide, <bf16 as Float>::narrow;
    f16, f32, f16::to_f32, f16::from_f32;
}

macro_rules! reduce_integers {
    ($($rust:ty)+) => {
        $(impl Reduce for $rust {
            type Sum = $rust;

            #[inline(always)]
            fn widen(self) -> $rust {
                self
            }

            #[inline(always)]
            fn add(a: $rust, b: $rust) -> $rust {
                a.wrapping_add(b)
            }

            #[inline(always)]
            fn mean(sum: $rust, _ranks: usize) -> $rust {
                sum // means of integers are refused before
            }

            #[inline(always)]
            fn round(sum: $rust) -> $rust {
                sum
            }

            #[inline(always)]
            fn is_below(self, other: $rust) -> bool {
                self < other
            }

            #[inline(always)]
            fn is_nan(self) -> bool {
                false
            }
        })+
    };
}

reduce_integers! { i64 i32 u32 u8 }

impl Reduce for Bool {
    type Sum = u8;

    fn widen(self) -> u8 {
        self.get().into()
    }

    fn add(a: u8, b: u8) -> u8 {
        a | b // sums of bool are refused before
    }

    fn mean(sum: u8, _ranks: usize) -> u8 {
        sum
    }

    fn round(sum: u8) -> Bool {
        Bool::from(sum != 0)
    }

    fn is_below(self, other: Bool) -> bool {
        !self.get() && other.get()
    }

    fn is_nan(self) -> bool {
        false
    }
}

/// Reduces chunks of sources. Keeps its memory between chunks.
pub(crate) struct Reducer<T: Reduce> {
    reduction: Reduction,
    /// One buffer of sums per level of the tree.
    levels: Vec<Vec<T::Sum>>,
    result: Vec<T>,
}

impl<T: Reduce> Reducer<T> {
    pub(crate) fn new(reduction: Reduction) -> Reducer<T> {
        Reducer { reduction, levels: Vec::new(), result: Vec::new() }
    }

    /// Reduces `sources`, at least one.
    pub(crate) fn reduce(&mut self, sources: &[&[T]]) -> &[T] {
        self.result.clear();
        match self.reduction {
            Reduction::Sum => self.sum(sources, |sum| sum),
            Reduction::Mean => self.sum(sources, |sum| T::mean(sum, sources.len())),
            Reduction::Max => self.extreme(sources, T::is_below),
            Reduction::Min => self.extreme(sources, |best, other| other.is_below(best)),
        }
        &self.result
    }

    fn sum(&mut self, sources: &[&[T]], finish: impl Fn(T::Sum) -> T::Sum) {
        let depth = sources.len().next_power_of_two().trailing_zeros() as usize + 1;
        self.levels.resize_with(depth, Vec::new);
        tree_sum(sources, &mut self.levels);
        let sums = self.levels[0].iter();
        self.result.extend(sums.map(|sum| T::round(finish(*sum))));
    }

    /// Keeps the first of equal elements, and the first NaN.
    fn extreme(&mut self, sources: &[&[T]], is_better: impl Fn(T, T) -> bool) {
        self.result.extend_from_slice(sources[0]);
        for source in &sources[1..] {
            for (best, other) in self.result.iter_mut().zip(*source) {
                let replaces = is_better(*best, *other) || other.is_nan();
                if replaces && !best.is_nan() {
                    *best = *other;
                }
            }
        }
    }
}

/// Writes the sum to the first level; the others are scratch.
fn tree_sum<T: Reduce>(sources: &[&[T]], levels: &mut [Vec<T::Sum>]) {
    if let [source] = sources {
        levels[0].clear();
        levels[0].extend(source.iter().map(|x| x.widen()));
        return;
    }
    let (left, right) = sources.split_at(sources.len().next_power_of_two() / 2);
    tree_sum(left, levels);
    let (sums, scratch) = levels.split_at_mut(1);
    tree_sum(right, scratch);
    for (sum, other) in sums[0].iter_mut().zip(&scratch[0]) {
        *sum = T::add(*sum, *other);
    }
}
