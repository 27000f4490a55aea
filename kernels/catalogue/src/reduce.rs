//! Sums, maxima and minima.

use super::Family;
use meshgrad_kernels::reduce::{Extents, Reduce};
use meshgrad_kernels::reduce_op::ReduceOp;
use meshgrad_kernels::{Dtype, Variant};

/// Dtypes and [outer, reduced, inner]: rows of a few lanes, of a warp and of a CTA; many columns
/// and few; with and without vectors.
pub const REDUCTIONS: [(ReduceOp, Dtype, Dtype, [u64; 3]); 14] = [
    (ReduceOp::Add, Dtype::F32, Dtype::F32, [1, 5, 1]),
    (ReduceOp::Add, Dtype::F32, Dtype::Bf16, [3, 129, 1]),
    (ReduceOp::Add, Dtype::F32, Dtype::F32, [1, 9001, 1]),
    (ReduceOp::Add, Dtype::Bf16, Dtype::F32, [1, 1041, 1]),
    (ReduceOp::Add, Dtype::Bf16, Dtype::Bf16, [3, 131, 1]),
    (ReduceOp::Max, Dtype::F32, Dtype::F32, [1, 37, 1]),
    (ReduceOp::Max, Dtype::Bf16, Dtype::Bf16, [2, 33, 1]),
    (ReduceOp::Min, Dtype::F32, Dtype::F32, [2, 77, 1]),
    (ReduceOp::Add, Dtype::F32, Dtype::F32, [1, 70, 264]),
    (ReduceOp::Add, Dtype::F32, Dtype::Bf16, [2, 3, 24]),
    (ReduceOp::Add, Dtype::Bf16, Dtype::F32, [3, 2, 5]),
    (ReduceOp::Add, Dtype::Bf16, Dtype::Bf16, [2, 9, 16]),
    (ReduceOp::Max, Dtype::Bf16, Dtype::F32, [2, 5, 16]),
    (ReduceOp::Min, Dtype::F32, Dtype::F32, [2, 70, 3]),
];

pub(super) fn reduce() -> Family {
    let kernels = REDUCTIONS.map(|(op, from, to, [outer, reduced, inner])| {
        let extents = Extents { outer, reduced, inner };
        Ok(Reduce::new(op, from, to, extents, true).ptx())
    });
    kernels.into()
}
