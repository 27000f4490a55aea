//! Attention on CUDA cores in f32, for f32 rows and for bf16 rows that tensor cores do not support:
//! unaligned ones, and head dims that are large or not a multiple of 8.
//!
//! A CTA of 256 threads owns 64 rows and loops over the other rows, 64 at a time. Each thread
//! computes 4 x 4 scores. Rows are staged in shared memory, 32 features at a time. The weights are
//! staged too, and multiplied by 64 columns of the other rows. Other CTAs compute further columns
//! and recompute the scores.

mod forward;
mod grad_keys;
mod grad_queries;
mod product;

pub(super) use forward::forward;
pub(super) use grad_keys::grad_keys;
pub(super) use grad_queries::grad_queries;

/// Threads per CTA: 16 by 16.
pub(super) const THREADS: u32 = 256;

/// Result columns per CTA.
const COLUMNS: u32 = 64;

/// The number of column blocks of a result.
pub(super) fn blocks(head_dim: u32) -> u32 {
    head_dim.div_ceil(COLUMNS)
}
