//! The labels of a cross entropy.

use crate::Tensor;

/// What the logits of each row are compared with.
#[derive(Clone, Copy, Debug)]
pub struct Targets<'a> {
    /// The right class of each row: one of the vocabulary, or `ignore_index`. Of an index dtype.
    pub labels: &'a Tensor,
    /// The label of rows that do not count.
    pub ignore_index: i64,
    /// The class of the first row of `w`: 0 for a whole vocabulary.
    pub vocab_start: usize,
    /// How many classes all shards have: the rows of `w` for a whole vocabulary.
    pub vocab_total: usize,
}
