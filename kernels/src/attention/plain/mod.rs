//! Attention on the ordinary arithmetic units, in f32: for f32, and for bf16 rows of odd length or
//! alignment.
//!
//! A CTA of 256 threads owns 64 rows and processes 64 others at a time; a thread computes 4 x 4 of
//! their scores. Features are staged in shared memory 32 at a time. The processed scores are staged
//! too, for the product with 64 columns of features. Further columns are computed by other CTAs,
//! which recompute the scores.

mod forward;
mod grad_keys;
mod grad_queries;
mod product;

pub(super) use forward::forward;
pub(super) use grad_keys::grad_keys;
pub(super) use grad_queries::grad_queries;

/// Threads per CTA: 16 by 16.
pub(super) const THREADS: u32 = 256;

/// Columns of a result that a CTA computes.
const COLUMNS: u32 = 64;

/// Blocks of columns of a result.
pub(super) fn blocks(head_dim: u32) -> u32 {
    head_dim.div_ceil(COLUMNS)
}
