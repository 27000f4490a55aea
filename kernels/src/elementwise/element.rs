//! Element types: loads, widening, rounding and stores.

use crate::assembler::{F32, GlobalAddress, Kernel, Pred, U32};
use crate::dtype::{Dtype, Vector};

/// The format of an operand or a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    /// A float.
    Float(Dtype),
    /// A byte. It is read as 0.0 if it is 0, otherwise as 1.0. A value is written as 0 if it is 0,
    /// otherwise as 1.
    Bool,
}

impl From<Dtype> for Element {
    fn from(dtype: Dtype) -> Element {
        Element::Float(dtype)
    }
}

/// Loaded elements, in their format in memory.
pub(crate) enum Loaded<'k> {
    Floats(Vec<Vector<'k>>),
    Bools(Vec<U32<'k>>),
}

impl Element {
    /// Bytes per element.
    pub fn size(self) -> u32 {
        match self {
            Element::Float(dtype) => dtype.size(),
            Element::Bool => 1,
        }
    }

    /// Its name, as in the names of kernels.
    pub fn name(self) -> &'static str {
        match self {
            Element::Float(dtype) => dtype.name(),
            Element::Bool => "bool",
        }
    }

    /// Loads `count` elements: 4 or 8 (only 8 for bf16). The address must be a multiple of 16, or
    /// for bools of their total size.
    #[track_caller]
    pub(crate) fn load_vector<'k>(self, from: GlobalAddress<'k>, count: u32) -> Loaded<'k> {
        match (self, count) {
            (Element::Float(dtype), _) => {
                let vectors = 0..i64::from(count / dtype.per_vector());
                let vectors = vectors.map(|i| dtype.load_vector(from.offset(16 * i)));
                Loaded::Floats(vectors.collect())
            }
            (Element::Bool, 4) => Loaded::Bools(vec![from.load()]),
            (Element::Bool, _) => Loaded::Bools(from.load_vector::<u32, 2>().to_vec()),
        }
    }

    /// Rounds and stores as many elements as [`Element::load_vector`] loads.
    #[track_caller]
    pub(crate) fn store_vector<'k>(self, to: GlobalAddress<'k>, values: &[F32<'k>]) {
        match self {
            Element::Float(dtype) => {
                let vectors = values.chunks_exact(dtype.per_vector() as usize);
                for (i, values) in (0..).zip(vectors) {
                    dtype.round(|j| values[j]).store(to.offset(16 * i));
                }
            }
            Element::Bool => {
                let words: Vec<U32<'k>> =
                    values.as_chunks::<4>().0.iter().map(four_bytes).collect();
                match words[..] {
                    [low, high] => to.store_vector([low, high]),
                    _ => (0..).zip(words).for_each(|(i, word)| to.offset(4 * i).store(word)),
                }
            }
        }
    }

    /// Loads one element.
    #[track_caller]
    pub(crate) fn load<'k>(self, from: GlobalAddress<'k>) -> F32<'k> {
        match self {
            Element::Float(dtype) => dtype.load(from),
            Element::Bool => one_or_zero(from.load_byte()),
        }
    }

    /// Loads one element if the predicate is true; otherwise returns 0.
    #[track_caller]
    pub(crate) fn load_if<'k>(self, condition: Pred<'k>, from: GlobalAddress<'k>) -> F32<'k> {
        match self {
            Element::Float(dtype) => dtype.load_if(condition, from),
            Element::Bool => one_or_zero(from.load_byte_if(condition)),
        }
    }

    /// Rounds a value to this element type.
    #[track_caller]
    pub(crate) fn rounded<'k>(self, value: F32<'k>) -> F32<'k> {
        match self {
            Element::Float(Dtype::Bf16) => value.to_bf16().to_f32(),
            Element::Float(Dtype::F32) | Element::Bool => value,
        }
    }

    /// Rounds and stores one element.
    #[track_caller]
    pub(crate) fn store<'k>(self, to: GlobalAddress<'k>, value: F32<'k>) {
        match self {
            Element::Float(dtype) => dtype.store(to, value),
            Element::Bool => to.store_byte(zero_or_one(value)),
        }
    }

    /// Rounds and stores one element if the predicate is true.
    #[track_caller]
    pub(crate) fn store_if<'k>(self, condition: Pred<'k>, to: GlobalAddress<'k>, value: F32<'k>) {
        match self {
            Element::Float(dtype) => dtype.store_if(condition, to, value),
            Element::Bool => to.store_byte_if(condition, zero_or_one(value)),
        }
    }
}

impl<'k> Loaded<'k> {
    /// The elements as f32, exactly.
    #[track_caller]
    pub(crate) fn widen(&self) -> Vec<F32<'k>> {
        match self {
            Loaded::Floats(vectors) => vectors.iter().flat_map(Vector::widen).collect(),
            Loaded::Bools(words) => {
                let bytes = words
                    .iter()
                    .flat_map(|word| [0, 8, 16, 24].map(|shift| (*word >> shift) & 255));
                bytes.map(one_or_zero).collect()
            }
        }
    }
}

#[track_caller]
fn one_or_zero(byte: U32<'_>) -> F32<'_> {
    byte.differs(0).select(1.0, 0.0)
}

#[track_caller]
fn zero_or_one(value: F32<'_>) -> U32<'_> {
    value.differs(0.0).select(1u32, 0u32)
}

/// Four bools as bytes of a word; the first has the lowest address.
#[track_caller]
fn four_bytes<'k>(values: &[F32<'k>; 4]) -> U32<'k> {
    let k: &'k Kernel = values[0].kernel();
    let bytes = values.iter().zip([0, 8, 16, 24]);
    bytes.fold(k.constant(0), |word, (value, shift)| {
        word | value.differs(0.0).select(1u32 << shift, 0)
    })
}
