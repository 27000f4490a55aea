//! CPU kernels: functions over slices and layouts. Ops check all arguments before they call a
//! kernel.

/// `vectorized!(W, || ..)` runs a closure compiled for the widest vectors of this machine, if `W`
/// has vector arithmetic.
///
/// It is a macro because the closure must be inlined to be vectorized, and only an attribute on the
/// closure guarantees that.
macro_rules! vectorized {
    ($W:ty, || $body:expr) => {
        <$W as $crate::Wide>::vectorized(
            #[inline(always)]
            || $body,
        )
    };
}

pub(crate) mod arg_reduce;
pub(crate) mod attention;
pub(crate) mod column_sums;
pub(crate) mod cross_entropy;
pub(crate) mod elementwise;
pub(crate) mod embedding;
pub(crate) mod gemm;
pub(crate) mod indexing;
pub(crate) mod moe;
pub(crate) mod norm;
pub(crate) mod norm_rope;
pub(crate) mod optimizer;
mod prefetch;
pub(crate) mod quantile;
pub(crate) mod random;
pub(crate) mod reduce;
pub(crate) mod rope;
pub(crate) mod row_function;
pub(crate) mod rows;
pub(crate) mod softmax;
pub(crate) mod strided;
pub(crate) mod swiglu;
pub(crate) mod top_k;
mod transpose;
pub(crate) mod writes;

use crate::{Error, ErrorKind, IndexOutOfRange};

pub(crate) use crate::threads::{
    BLOCK, SharedSlice, blocks, for_blocks, for_parts, for_tasks, threads,
};

/// The error of `op` for an index outside of 0..extent.
pub(crate) fn index_out_of_range(
    op: &'static str,
    index: i64,
    position: usize,
    extent: usize,
) -> Error {
    let position = Some(position);
    Error::with_details(
        ErrorKind::Invalid,
        IndexOutOfRange { op, index, position, extent, gpu: None },
    )
}
