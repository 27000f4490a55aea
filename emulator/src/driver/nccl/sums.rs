//! Reductions: in the type of the elements, one member after the other, as a ring does.

use std::fmt;

use bytemuck::{Pod, bytes_of, pod_read_unaligned};
use half::{bf16, f16};

use super::element::Element;
use crate::machine::random::Random;

/// `ncclRedOp_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reduction {
    Sum,
    Product,
    Max,
    Min,
    /// Of floats, each is multiplied by 1/n, rounded to their type, before the sum; integers are divided after it.
    Average,
}

impl Reduction {
    pub(crate) fn of_code(code: i32) -> Option<Reduction> {
        use Reduction::{Average, Max, Min, Product, Sum};
        [Sum, Product, Max, Min, Average].get(usize::try_from(code).ok()?).copied()
    }
}

impl fmt::Display for Reduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reduction::Sum => "sum",
            Reduction::Product => "product",
            Reduction::Max => "max",
            Reduction::Min => "min",
            Reduction::Average => "average",
        })
    }
}

/// The order in which members are added. Real ones depend on algorithm, size and topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sums {
    /// Each of the n chunks of a buffer begins at another member.
    Ring,
    /// Any order, drawn for each chunk.
    Perturbed(u64),
}

impl Sums {
    /// The members in the order in which chunk `chunk` is reduced.
    pub(crate) fn order(self, chunk: usize, size: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (1..=size).map(|step| (chunk + step) % size).collect();
        if let Sums::Perturbed(seed) = self {
            let mut random = Random::new(seed.wrapping_add(chunk as u64));
            for at in (1..size).rev() {
                order.swap(at, random.below(at as u64 + 1) as usize);
            }
        }
        order
    }
}

/// Reduces equally long buffers; elements `c * chunk ..` in the order of members `orders[c]`.
pub(crate) fn reduce(
    element: Element,
    by: Reduction,
    inputs: &[&[u8]],
    chunk: usize,
    orders: &[Vec<usize>],
) -> Vec<u8> {
    let all = Inputs { by, inputs, chunk, orders };
    match element {
        Element::I8 => all.reduce::<i8>(),
        Element::U8 => all.reduce::<u8>(),
        Element::I32 => all.reduce::<i32>(),
        Element::U32 => all.reduce::<u32>(),
        Element::I64 => all.reduce::<i64>(),
        Element::U64 => all.reduce::<u64>(),
        Element::F16 => all.reduce::<f16>(),
        Element::F32 => all.reduce::<f32>(),
        Element::F64 => all.reduce::<f64>(),
        Element::Bf16 => all.reduce::<bf16>(),
        Element::F8E4m3 | Element::F8E5m2 => unreachable!("a call that reduces fp8 is refused"),
    }
}

struct Inputs<'a> {
    by: Reduction,
    inputs: &'a [&'a [u8]],
    chunk: usize,
    orders: &'a [Vec<usize>],
}

impl Inputs<'_> {
    fn reduce<T: Number>(&self) -> Vec<u8> {
        let (size, bytes) = (self.inputs.len(), size_of::<T>());
        let mut result = Vec::with_capacity(self.inputs[0].len());
        for (index, _) in self.inputs[0].chunks_exact(bytes).enumerate() {
            let order = self.orders[index / self.chunk].iter();
            let of_member = |member: &usize| &self.inputs[*member][index * bytes..][..bytes];
            let values = order.map(|member| pod_read_unaligned::<T>(of_member(member)));
            let values = values.map(|value| match self.by {
                Reduction::Average => value.before_average(size),
                _ => value,
            });
            let reduced = values.reduce(|a, b| match self.by {
                Reduction::Sum | Reduction::Average => a.add(b),
                Reduction::Product => a.multiply(b),
                Reduction::Max => a.larger(b),
                Reduction::Min => a.smaller(b),
            });
            let reduced = reduced.map(|value| match self.by {
                Reduction::Average => value.after_average(size),
                _ => value,
            });
            result.extend(reduced.iter().flat_map(bytes_of));
        }
        result
    }
}

/// Arithmetic that rounds to the type after each operation.
trait Number: Pod {
    fn add(self, other: Self) -> Self;
    fn multiply(self, other: Self) -> Self;
    fn larger(self, other: Self) -> Self;
    fn smaller(self, other: Self) -> Self;
    fn before_average(self, size: usize) -> Self;
    fn after_average(self, size: usize) -> Self;
}

macro_rules! integers {
    ($($type:ty),*) => {
        $(impl Number for $type {
            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            fn multiply(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            fn larger(self, other: Self) -> Self {
                self.max(other)
            }
            fn smaller(self, other: Self) -> Self {
                self.min(other)
            }
            fn before_average(self, _: usize) -> Self {
                self
            }
            fn after_average(self, size: usize) -> Self {
                self / size as $type
            }
        })*
    };
}

macro_rules! floats {
    ($($type:ty, $wide:ty, $narrow:expr;)*) => {
        $(impl Number for $type {
            fn add(self, other: Self) -> Self {
                $narrow(<$wide>::from(self) + <$wide>::from(other))
            }
            fn multiply(self, other: Self) -> Self {
                $narrow(<$wide>::from(self) * <$wide>::from(other))
            }
            fn larger(self, other: Self) -> Self {
                if other > self { other } else { self }
            }
            fn smaller(self, other: Self) -> Self {
                if other < self { other } else { self }
            }
            fn before_average(self, size: usize) -> Self {
                self.multiply($narrow(1.0 / size as $wide))
            }
            fn after_average(self, _: usize) -> Self {
                self
            }
        })*
    };
}

integers!(i8, u8, i32, u32, i64, u64);
floats! {
    f32, f32, |value: f32| value;
    f64, f64, |value: f64| value;
    f16, f32, f16::from_f32;
    bf16, f32, bf16::from_f32;
}
