//! The float dtypes that kernels read and write.

use crate::assembler::{B16, Bf16, Bf16x2, F32, GlobalAddress, Pair, Pred};

/// A float dtype in memory. Kernels always compute in f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// 32 bits.
    F32,
    /// The upper 16 bits of an f32.
    Bf16,
}

/// Sixteen loaded bytes: four f32 or eight bf16.
#[derive(Clone, Copy, Debug)]
pub enum Vector<'k> {
    /// Four f32.
    F32([F32<'k>; 4]),
    /// Eight bf16.
    Bf16([Pair<'k>; 4]),
}

impl Dtype {
    /// Both variants.
    pub const ALL: [Dtype; 2] = [Dtype::F32, Dtype::Bf16];

    /// Bytes per element.
    pub fn size(self) -> u32 {
        match self {
            Dtype::F32 => 4,
            Dtype::Bf16 => 2,
        }
    }

    /// Its name, as in the names of kernels.
    pub fn name(self) -> &'static str {
        match self {
            Dtype::F32 => "f32",
            Dtype::Bf16 => "bf16",
        }
    }

    /// Elements per 16-byte access, which is the widest that a thread can make.
    pub fn per_vector(self) -> u32 {
        16 / self.size()
    }

    /// Loads 16 bytes if the predicate is true; otherwise returns zeros. The address must be a
    /// multiple of 16.
    #[track_caller]
    pub fn load_vector_if<'k>(self, condition: Pred<'k>, from: GlobalAddress<'k>) -> Vector<'k> {
        match self {
            Dtype::F32 => Vector::F32(from.load_vector_if(condition)),
            Dtype::Bf16 => Vector::Bf16(from.load_vector_if::<Bf16x2, 4>(condition)),
        }
    }

    /// Loads 16 bytes. The address must be a multiple of 16.
    #[track_caller]
    pub fn load_vector<'k>(self, from: GlobalAddress<'k>) -> Vector<'k> {
        match self {
            Dtype::F32 => Vector::F32(from.load_vector()),
            Dtype::Bf16 => Vector::Bf16(from.load_vector()),
        }
    }

    /// Rounds [`Dtype::per_vector`] values.
    #[track_caller]
    pub fn round<'k>(self, value: impl Fn(usize) -> F32<'k>) -> Vector<'k> {
        match self {
            Dtype::F32 => Vector::F32([0, 1, 2, 3].map(value)),
            Dtype::Bf16 => Vector::Bf16([0, 2, 4, 6].map(|i| value(i).pack(value(i + 1)))),
        }
    }

    /// Rounds a value to this dtype.
    #[track_caller]
    pub fn rounded(self, value: F32<'_>) -> F32<'_> {
        match self {
            Dtype::F32 => value,
            Dtype::Bf16 => value.to_bf16().to_f32(),
        }
    }

    /// Loads one element.
    #[track_caller]
    pub fn load<'k>(self, from: GlobalAddress<'k>) -> F32<'k> {
        match self {
            Dtype::F32 => from.load(),
            Dtype::Bf16 => from.load::<Bf16>().to_f32(),
        }
    }

    /// Loads one element if the predicate is true; otherwise returns 0.
    #[track_caller]
    pub fn load_if<'k>(self, condition: Pred<'k>, from: GlobalAddress<'k>) -> F32<'k> {
        match self {
            Dtype::F32 => from.load_if(condition),
            Dtype::Bf16 => from.load_if::<Bf16>(condition).to_f32(),
        }
    }

    /// Rounds and stores one element.
    #[track_caller]
    pub fn store<'k>(self, to: GlobalAddress<'k>, value: F32<'k>) {
        match self {
            Dtype::F32 => to.store(value),
            Dtype::Bf16 => to.store(value.to_bf16()),
        }
    }

    /// Rounds and stores one element if the predicate is true.
    #[track_caller]
    pub fn store_if<'k>(self, condition: Pred<'k>, to: GlobalAddress<'k>, value: F32<'k>) {
        match self {
            Dtype::F32 => to.store_if(condition, value),
            Dtype::Bf16 => to.store_if(condition, value.to_bf16()),
        }
    }
}

impl<'k> Vector<'k> {
    /// The elements as f32, exactly.
    #[track_caller]
    pub fn widen(&self) -> Vec<F32<'k>> {
        match self {
            Vector::F32(values) => values.to_vec(),
            Vector::Bf16(pairs) => pairs.iter().flat_map(|pair| pair.unpack()).collect(),
        }
    }

    /// Stores the 16 bytes. The address must be a multiple of 16.
    #[track_caller]
    pub fn store(&self, to: GlobalAddress<'k>) {
        match self {
            Vector::F32(values) => to.store_vector(*values),
            Vector::Bf16(pairs) => to.store_vector(*pairs),
        }
    }

    /// Stores the 16 bytes if the predicate is true.
    #[track_caller]
    pub fn store_if(&self, condition: Pred<'k>, to: GlobalAddress<'k>) {
        match self {
            Vector::F32(values) => to.store_vector_if(condition, *values),
            Vector::Bf16(pairs) => to.store_vector_if(condition, *pairs),
        }
    }
}

/// One element or vector, in its format in memory.
pub(crate) enum Loaded<'k> {
    Vector(Vector<'k>),
    F32(F32<'k>),
    Bf16(B16<'k>),
}

impl<'k> Loaded<'k> {
    /// Loads one element (if `width` is 1) or one vector if the predicate is true; otherwise
    /// returns zeros.
    #[track_caller]
    pub(crate) fn new(
        dtype: Dtype,
        width: u32,
        condition: Pred<'k>,
        from: GlobalAddress<'k>,
    ) -> Loaded<'k> {
        match (width, dtype) {
            (1, Dtype::F32) => Loaded::F32(from.load_if(condition)),
            (1, Dtype::Bf16) => Loaded::Bf16(from.load_if::<Bf16>(condition)),
            _ => Loaded::Vector(dtype.load_vector_if(condition, from)),
        }
    }

    /// Rounds one value (if `width` is 1) or [`Dtype::per_vector`] values.
    #[track_caller]
    pub(crate) fn rounded(
        dtype: Dtype,
        width: u32,
        value: impl Fn(usize) -> F32<'k>,
    ) -> Loaded<'k> {
        match (width, dtype) {
            (1, Dtype::F32) => Loaded::F32(value(0)),
            (1, Dtype::Bf16) => Loaded::Bf16(value(0).to_bf16()),
            _ => Loaded::Vector(dtype.round(value)),
        }
    }

    /// The elements as f32, exactly.
    #[track_caller]
    pub(crate) fn widen(&self) -> Vec<F32<'k>> {
        match self {
            Loaded::Vector(vector) => vector.widen(),
            Loaded::F32(value) => vec![*value],
            Loaded::Bf16(value) => vec![value.to_f32()],
        }
    }

    /// Stores the same bits if the predicate is true.
    #[track_caller]
    pub(crate) fn store_if(&self, condition: Pred<'k>, to: GlobalAddress<'k>) {
        match self {
            Loaded::Vector(vector) => vector.store_if(condition, to),
            Loaded::F32(value) => to.store_if(condition, *value),
            Loaded::Bf16(value) => to.store_if(condition, *value),
        }
    }
}
