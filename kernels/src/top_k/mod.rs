//! The k largest elements of each row, in descending order, and their indices.
//!
//! [`SortTiles`] sorts tiles of a row in registers and keeps the first k keys of each.
//! [`MergeRuns`] then merges these sorted runs, eight at a time, until one run is left. Runs are
//! stored one after another, each in descending order. Comparisons use the 64-bit keys of
//! `sort_key`.

mod merge;
mod sort;

pub use merge::{MergeRuns, MergeRunsArguments, Runs};
pub use sort::{SortTiles, SortTilesArguments};

use crate::assembler::{In, Out, Pred, U64};
use crate::dtype::{Dtype, Loaded};
use crate::params;
use crate::sort_key::index_of;

params! {
    /// Where sorted keys are stored, or the elements and indices that they identify.
    pub struct SortedKeys => Sorted {
        /// \[R, runs, kept\] of u64, if several runs are left.
        keys: Out,
        /// \[R, D\].
        x: In,
        /// \[R, kept\], if one run is left.
        values: Out,
        /// \[R, kept\] of i64, if one run is left.
        indices: Out,
        /// D.
        features: u32,
    }
}

impl<'k> Sorted<'k> {
    /// Stores keys, or the elements of row `row` that they identify, with their indices. All
    /// elements are loaded before the first store.
    #[track_caller]
    fn store(&self, elements: Option<Dtype>, row: U64<'k>, keys: &[Ranked<'k>]) {
        let Some(dtype) = elements else {
            for it in keys {
                let to = self.keys.element_wide::<u64>(it.to);
                to.store_if(it.exists, it.key);
            }
            return;
        };
        let (start, size) = (row * self.features.wide(), u64::from(dtype.size()));
        let load = |it: &Ranked<'k>| {
            let from = self.x.byte_add((start + index_of(it.key).wide()) * size);
            Loaded::new(dtype, 1, it.exists, from)
        };
        let values: Vec<Loaded<'k>> = keys.iter().map(load).collect();
        for (it, value) in keys.iter().zip(values) {
            value.store_if(it.exists, self.values.byte_add(it.to * size));
            let place = self.indices.element_wide::<u64>(it.to);
            place.store_if(it.exists, index_of(it.key).wide());
        }
    }
}

/// A key with its destination.
struct Ranked<'k> {
    /// Whether the key exists and is kept.
    exists: Pred<'k>,
    key: U64<'k>,
    /// Index of the destination, counted from the first row.
    to: U64<'k>,
}
