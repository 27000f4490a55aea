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

impl<'a> Targets<'a> {
    /// Labels for the rows of `w` that this rank has, by the sharding of `w`. Ops fail if
    /// the sharding of `w` gives ranks several ranges of rows.
    pub fn new(labels: &'a Tensor, ignore_index: i64, w: &Tensor) -> Targets<'a> {
        let classes = w.sharded_shape();
        let own = classes.indices("cross_entropy", 0);
        Targets {
            labels,
            ignore_index,
            vocab_start: own.map_or(0, |own| own.first),
            vocab_total: classes[0],
        }
    }
}
