//! Formats of elements: how they are loaded, widened, rounded and stored.

use crate::assembler::{Bf16, Bf16x2, F32, GlobalAddress, Kernel, Pair, Pred, U32};
use crate::dtype::Dtype;

/// The format of an operand or a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    /// 32-bit float.
    F32,
    /// 16-bit float.
    Bf16,
    /// A byte, 0 or 1. Read as 0.0 or 1.0; written as 1 where the value is not 0.
    Bool,
}

impl From<Dtype> for Element {
    fn from(dtype: Dtype) -> Element {
        match dtype {
            Dtype::F32 => Element::F32,
            Dtype::Bf16 => Element::Bf16,
        }
    }
}

/// What a thread loaded at once, as it lies in memory.
pub(super) enum Loaded<'k> {
    F32(Vec<F32<'k>>),
    Bf16(Vec<Pair<'k>>),
    Bool(Vec<U32<'k>>),
}

impl Element {
    /// Bytes of an element.
    pub fn size(self) -> u32 {
        match self {
            Element::F32 => 4,
            Element::Bf16 => 2,
            Element::Bool => 1,
        }
    }

    /// Its name, as in the names of kernels.
    pub fn name(self) -> &'static str {
        match self {
            Element::F32 => "f32",
            Element::Bf16 => "bf16",
            Element::Bool => "bool",
        }
    }

    /// Loads `count` elements (4 or 8; 8 bf16) from an address that is a multiple of their size.
    #[track_caller]
    pub(super) fn load_vector<'k>(self, from: GlobalAddress<'k>, count: u32) -> Loaded<'k> {
        match (self, count) {
            (Element::F32, _) => Loaded::F32(
                (0..count / 4)
                    .flat_map(|i| from.offset(16 * i64::from(i)).load_vector::<f32, 4>())
                    .collect(),
            ),
            (Element::Bf16, _) => Loaded::Bf16(from.load_vector::<Bf16x2, 4>().to_vec()),
            (Element::Bool, 4) => Loaded::Bool(vec![from.load()]),
            (Element::Bool, _) => Loaded::Bool(from.load_vector::<u32, 2>().to_vec()),
        }
    }

    /// Rounds and stores as many elements as [`Element::load_vector`] loads.
    #[track_caller]
    pub(super) fn store_vector<'k>(self, to: GlobalAddress<'k>, values: &[F32<'k>]) {
        match self {
            Element::F32 => {
                for (i, four) in values.as_chunks::<4>().0.iter().enumerate() {
                    to.offset(16 * i as i64).store_vector(*four);
                }
            }
            Element::Bf16 => {
                for (i, eight) in values.as_chunks::<8>().0.iter().enumerate() {
                    let pairs = [0, 2, 4, 6].map(|j| eight[j].pack(eight[j + 1]));
                    to.offset(16 * i as i64).store_vector(pairs);
                }
            }
            Element::Bool => {
                for (i, four) in values.as_chunks::<4>().0.iter().enumerate() {
                    to.offset(4 * i as i64).store(four_bytes(four));
                }
            }
        }
    }

    /// Loads one element.
    #[track_caller]
    pub(super) fn load<'k>(self, from: GlobalAddress<'k>) -> F32<'k> {
        match self {
            Element::F32 => from.load(),
            Element::Bf16 => from.load::<Bf16>().to_f32(),
            Element::Bool => one_or_zero(from.load_byte()),
        }
    }

    /// Loads one element where the predicate holds; 0 elsewhere.
    #[track_caller]
    pub(super) fn load_if<'k>(self, condition: Pred<'k>, from: GlobalAddress<'k>) -> F32<'k> {
        match self {
            Element::F32 => from.load_if(condition),
            Element::Bf16 => from.load_if::<Bf16>(condition).to_f32(),
            Element::Bool => one_or_zero(from.load_byte_if(condition)),
        }
    }

    /// Rounds and stores one element.
    #[track_caller]
    pub(super) fn store<'k>(self, to: GlobalAddress<'k>, value: F32<'k>) {
        match self {
            Element::F32 => to.store(value),
            Element::Bf16 => to.store(value.to_bf16()),
            Element::Bool => to.store_byte(value.differs(0.0).select(1u32, 0u32)),
        }
    }

    /// Rounds and stores one element where the predicate holds.
    #[track_caller]
    pub(super) fn store_if<'k>(self, condition: Pred<'k>, to: GlobalAddress<'k>, value: F32<'k>) {
        match self {
            Element::F32 => to.store_if(condition, value),
            Element::Bf16 => to.store_if(condition, value.to_bf16()),
            Element::Bool => {
                to.store_byte_if(condition, value.differs(0.0).select(1u32, 0u32));
            }
        }
    }
}

impl<'k> Loaded<'k> {
    /// The elements as f32, exactly.
    #[track_caller]
    pub(super) fn widen(&self) -> Vec<F32<'k>> {
        match self {
            Loaded::F32(values) => values.clone(),
            Loaded::Bf16(pairs) => pairs.iter().flat_map(|pair| pair.unpack()).collect(),
            Loaded::Bool(words) => {
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

/// Four values that are 0 or not, a byte each; the first has the lowest address.
#[track_caller]
fn four_bytes<'k>(values: &[F32<'k>; 4]) -> U32<'k> {
    let k: &'k Kernel = values[0].kernel();
    let bytes = values.iter().zip([0, 8, 16, 24]);
    bytes.fold(k.constant(0), |word, (value, shift)| {
        word | value.differs(0.0).select(1u32 << shift, 0)
    })
}
