//! Attention on the ordinary arithmetic units, in f32: for f32, and for bf16 rows of odd lengths or
//! at odd places.
//!
//! A CTA of 256 threads has 64 rows, and 64 others at a time; a thread has four by four of their
//! scores. Of the features it copies 32 at a time into shared memory. What becomes of the scores
//! goes there too, for the product with 64 columns of features; where there are more columns other
//! CTAs have them, and compute the scores again.

mod forward;
mod grad_keys;
mod grad_queries;
mod product;

pub(super) use forward::forward;
pub(super) use grad_keys::grad_keys;
pub(super) use grad_queries::grad_queries;

/// Threads of a CTA: 16 by 16.
pub(super) const THREADS: u32 = 256;

/// Columns of a result that a CTA computes.
const COLUMNS: u32 = 64;

/// Blocks of columns of a result.
pub(super) fn blocks(head_dim: u32) -> u32 {
    head_dim.div_ceil(COLUMNS)
}
