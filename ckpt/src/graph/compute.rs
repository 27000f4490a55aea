//! Computed tensors: the only expressions that do more than select elements.
//!
//! A computation reports which operand rows it needs for given rows of its result, so that a large
//! result can be computed a few rows at a time.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;

use crate::Dtype;

/// A dtype and a shape.
pub type TensorType = (Dtype, Vec<u64>);

/// How a tensor is computed from others. Stateless: equal operands give equal bits.
pub trait Compute: fmt::Debug + Send + Sync {
    /// The name in messages.
    fn name(&self) -> &'static str;

    /// Dtype and shape of the result.
    ///
    /// # Errors
    /// The problem with the operands, which [`Graph::compute`](super::Graph::compute) prints after
    /// the name.
    fn result(&self, operands: &[TensorType]) -> Result<TensorType, String>;

    /// For each operand, the rows that these rows of the result depend on. Rows are indices along
    /// dim 0. Returning all rows is always correct.
    fn rows_of_operands(&self, rows: Range<u64>, operands: &[TensorType]) -> Vec<Range<u64>>;

    /// Computes these rows of the result into `out` from the operand rows that
    /// [`Compute::rows_of_operands`] returned. All are dense, row-major and little-endian.
    fn compute(&self, rows: Range<u64>, operands: &[Operand<'_>], out: &mut [u8]);
}

/// Some rows of an operand.
#[derive(Clone, Debug)]
pub struct Operand<'a> {
    /// Dtype and shape of the whole operand.
    pub tensor: &'a TensorType,
    /// The rows that are present.
    pub rows: Range<u64>,
    /// Their bytes.
    pub bytes: &'a [u8],
}

/// A [`Compute`] in a graph; equal only to itself and its clones.
#[derive(Clone)]
pub struct Computation(Arc<dyn Compute>);

impl Computation {
    /// A computation for [`Graph::compute`](super::Graph::compute).
    pub fn new(compute: impl Compute + 'static) -> Computation {
        Computation(Arc::new(compute))
    }
}

impl std::ops::Deref for Computation {
    type Target = dyn Compute;

    fn deref(&self) -> &(dyn Compute + 'static) {
        &*self.0
    }
}

impl PartialEq for Computation {
    fn eq(&self, other: &Computation) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Computation {}

impl Hash for Computation {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).cast::<()>().hash(state);
    }
}

impl fmt::Debug for Computation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
