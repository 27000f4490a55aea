//! The norm of gradients, and the clip factor.

use super::Family;
use meshgrad_kernels::global_norm::{ClipScale, GlobalNorm, SumSquares};
use meshgrad_kernels::{Dtype, Variant};

/// Dtypes and numbers of elements: what a warp handles, what a CTA handles, and several chunks.
pub const SQUARED: [(Dtype, u64); 3] = [(Dtype::F32, 37), (Dtype::Bf16, 1041), (Dtype::F32, 9001)];

pub(super) fn global_norm() -> Family {
    let mut kernels = vec![GlobalNorm.ptx()];
    kernels.extend([true, false].map(|clips| ClipScale::new(clips).ptx()));
    let squares = SQUARED.map(|(dtype, elements)| SumSquares::new(dtype, elements, true).ptx());
    kernels.extend(squares);
    kernels.into_iter().map(Ok).collect()
}
