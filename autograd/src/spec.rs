//! What a parameter is: its specification and initial values.

use std::ops::Range;

use meshgrad_runtime::{
    DType, Key, Kind, Region, RegionKey, Result, Shape, ShardedShape, Tensor, ops,
};

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

    /// Writes to `into`, [rows, elements of a row], the initial values of the rows `rows` of this
    /// rank's part of a parameter of shape `shape`. They are those that the whole parameter has
    /// there.
    pub(crate) fn write_rows(
        self,
        key: Key,
        shape: &ShardedShape,
        rows: &Range<usize>,
        into: &Tensor,
    ) -> Result<()> {
        for part in shape.row_boxes(rows.clone()) {
            let mut global = Region::whole(shape)?;
            for (dim, range) in part.global.iter().enumerate() {
                global = global.slice(dim, range.clone())?;
            }
            let own = part.rows.start - rows.start..part.rows.end - rows.start;
            // Contiguous, so it is a view.
            let mut target = ops::reshape(&into.slice(0, own)?, &part.shape)?;
            for (dim, range) in part.within.iter().enumerate() {
                target = target.slice(dim as isize, range.clone())?;
            }
            let key = key.within(&global);
            if target.is_contiguous() {
                self.write(key, &target)?;
                continue;
            }
            let shape = target.shape();
            let values =
                Tensor::zeros(into.device(), shape, into.dtype(), Kind::Parameter)?.local();
            self.write(key, &values)?;
            ops::copy_into(&values, &target)?;
        }
        Ok(())
    }
}
