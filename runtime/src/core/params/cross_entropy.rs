//! Labels of cross entropy.

use crate::Tensor;

/// The labels of the rows.
#[derive(Clone, Copy, Debug)]
pub struct Targets<'a> {
    /// The target class of each row: a class of the vocabulary, or `ignore_index`. An index dtype.
    pub labels: &'a Tensor,
    /// The label of ignored rows.
    pub ignore_index: i64,
    /// The class of the first row of `w`; 0 if `w` is not sharded.
    pub vocab_start: usize,
    /// The number of classes over all shards; the number of rows of `w` if it is not sharded.
    pub vocab_total: usize,
}
