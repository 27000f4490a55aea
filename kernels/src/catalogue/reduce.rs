//! Sums and extremes.

use super::Family;
use crate::merge::Merge;
use crate::reduce::{Extents, Reduce};
use crate::{Dtype, Variant};

/// Formats, and [outer, reduced, inner]: rows of a lane, of a warp, of a CTA, with and without
/// vectors; columns of a CTA side by side, of few, and one by one.
pub const REDUCTIONS: [(Merge, Dtype, Dtype, [u64; 3]); 14] = [
    (Merge::Add, Dtype::F32, Dtype::F32, [1, 5, 1]),
    (Merge::Add, Dtype::F32, Dtype::Bf16, [3, 129, 1]),
    (Merge::Add, Dtype::F32, Dtype::F32, [1, 9001, 1]),
    (Merge::Add, Dtype::Bf16, Dtype::F32, [1, 1041, 1]),
    (Merge::Add, Dtype::Bf16, Dtype::Bf16, [3, 131, 1]),
    (Merge::Max, Dtype::F32, Dtype::F32, [1, 37, 1]),
    (Merge::Max, Dtype::Bf16, Dtype::Bf16, [2, 33, 1]),
    (Merge::Min, Dtype::F32, Dtype::F32, [2, 77, 1]),
    (Merge::Add, Dtype::F32, Dtype::F32, [1, 70, 264]),
    (Merge::Add, Dtype::F32, Dtype::Bf16, [2, 3, 24]),
    (Merge::Add, Dtype::Bf16, Dtype::F32, [3, 2, 5]),
    (Merge::Add, Dtype::Bf16, Dtype::Bf16, [2, 9, 16]),
    (Merge::Max, Dtype::Bf16, Dtype::F32, [2, 5, 16]),
    (Merge::Min, Dtype::F32, Dtype::F32, [2, 70, 3]),
];

pub(super) fn reduce() -> Family {
    let kernels = REDUCTIONS.map(|(merge, from, to, [outer, reduced, inner])| {
        let extents = Extents {
            outer,
            reduced,
            inner,
        };
        Ok(Reduce::new(merge, from, to, extents, true).ptx())
    });
    kernels.into()
}
