//! Labels of cross entropy.

use crate::Tensor;

/// The labels of the rows.
#[derive(Clone, Copy, Debug)]
pub struct Targets<'a> {
    /// The target class of each row: a class of the vocabulary, or `ignore_index`. An index dtype.
    pub labels: &'a Tensor,
    /// The label of ignored rows.
    pub ignore_index: i64,
    /// The class of the first row of `w`: 0 for a whole vocabulary.
    pub vocab_start: usize,
    /// The number of classes of all shards: the rows of `w` for a whole vocabulary.
    pub vocab_total: usize,
}
