//! argmax, argmin and top-k.

use super::Family;
use meshgrad_kernels::arg_reduce::{ArgReduce, ArgReduceChunks, Extreme};
use meshgrad_kernels::top_k::{MergeRuns, Runs, SortTiles};
use meshgrad_kernels::{Dtype, Variant};

/// Dtypes, rows and features for argmax and argmin: rows of a few lanes, of a CTA, and in chunks;
/// with and without vectors.
pub const ARG_REDUCED: [(Extreme, Dtype, [u64; 2]); 5] = [
    (Extreme::Max, Dtype::F32, [1, 6]),
    (Extreme::Min, Dtype::F32, [2, 9]),
    (Extreme::Max, Dtype::Bf16, [1, 1041]),
    (Extreme::Min, Dtype::Bf16, [2, 131]),
    (Extreme::Max, Dtype::F32, [1, 8201]),
];

/// Dtypes and features for top-k: one warp, several warps, several tiles; with and without vectors.
pub const SORTED: [(Dtype, u64); 5] = [
    (Dtype::F32, 60),
    (Dtype::Bf16, 300),
    (Dtype::Bf16, 1000),
    (Dtype::F32, 1030),
    (Dtype::Bf16, 8200),
];

pub(super) fn top_k() -> Family {
    let mut kernels = vec![ArgReduceChunks.ptx()];
    for (extreme, dtype, [rows, features]) in ARG_REDUCED {
        kernels.push(ArgReduce::new(extreme, dtype, rows, features, true).ptx());
    }
    for (dtype, features) in SORTED {
        kernels.push(SortTiles::new(dtype, features, true).ptx());
    }
    let runs = |count| Runs { count, len: 8, last: 8 };
    kernels.push(MergeRuns::new(runs(9), Dtype::F32).ptx());
    for dtype in Dtype::ALL {
        kernels.push(MergeRuns::new(runs(2), dtype).ptx());
    }
    kernels.into_iter().map(Ok).collect()
}
