//! What a parameter is: its specification and initial values.

use meshgrad_runtime::{DType, Key, Kind, RegionKey, Result, Shape, Tensor, ops};

use crate::KeptRows;

/// The initial value of a parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// All zeros.
    Zeros,
    /// All ones.
    Ones,
    /// Normal with mean 0.
    Normal {
        /// The standard deviation.
        std: f64,
    },
    /// Uniform in [-bound, bound).
    Uniform {
        /// The bound.
        bound: f64,
    },
}

/// The specification of a parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// The shape.
    pub shape: Shape,
    /// The dtype of the value. Gradients are f32 (f64 for f64).
    pub dtype: DType,
    /// The initial value.
    pub init: Init,
    /// Whether the parameter may be unused in a step. Its gradient is then zero.
    pub optional: bool,
}

impl Spec {
    /// An f32 parameter that is not optional. More dims than a tensor can have do not compile.
    pub fn new<const N: usize>(shape: [usize; N], init: Init) -> Spec {
        Spec { shape: Shape::of(shape), dtype: DType::F32, init, optional: false }
    }
}

/// Identifies a parameter in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ParamId(pub(crate) u64);

impl Init {
    /// Writes initial values to `into`, with the random numbers of `key`.
    pub(crate) fn write(self, key: impl Into<RegionKey>, into: &Tensor) -> Result<()> {
        match self {
            Init::Zeros => ops::fill_into(into, 0.0),
            Init::Ones => ops::fill_into(into, 1.0),
            Init::Normal { std } => ops::normal_into(into, key, 0.0, std),
            Init::Uniform { bound } => ops::uniform_into(into, key, -bound, bound),
        }
    }

    /// Writes to `into`, [rows, elements of a row], the initial values that the whole parameter has
    /// in the rows `kept`.
    pub(crate) fn write_rows(self, key: Key, kept: &KeptRows, into: &Tensor) -> Result<()> {
        for part in kept.boxes() {
            let key = kept.key_of(&part, key)?;
            // Contiguous, so it is a view.
            let mut target = ops::reshape(&into.slice(0, part.rows)?, &part.shape)?;
            for (dim, range) in part.within.into_iter().enumerate() {
                target = target.slice(dim as isize, range)?;
            }
            if target.is_contiguous() {
                self.write(key, &target)?;
                continue;
            }
            let shape = target.shape();
            let values = Tensor::zeros(into.device(), shape, into.dtype(), Kind::Parameter)?;
            self.write(key, &values)?;
            ops::copy_into(&values, &target)?;
        }
        Ok(())
    }
}
