//! A rank's statement of what it holds.

use std::fmt;
use std::ops::Range;

use meshgrad_mesh::Region;
use serde::{Deserialize, Serialize};

use crate::mapping::TensorSpec;

/// A tensor of a model, and the rows of a region of it that a rank holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shard {
    /// With the global shape.
    pub(super) tensor: TensorSpec,
    pub(super) region: Indices,
    /// Start and end. A row has one index of every dim of the region but the last.
    pub(super) rows: [u64; 2],
}

impl Shard {
    /// A region of a tensor; `tensor` has its global shape.
    pub fn new(tensor: TensorSpec, region: &Region) -> Shard {
        let dims = region.dims().iter().map(|dim| {
            let ranges = dim.ranges().iter().filter(|range| !range.is_empty());
            let ranges = ranges.map(|range| [range.start as u64, range.end as u64]);
            ranges.collect()
        });
        Shard::with_all_rows(tensor, Indices(dims.collect()))
    }

    /// A whole tensor.
    pub fn whole(tensor: TensorSpec) -> Shard {
        let dims = tensor.shape.iter().map(|extent| match extent {
            0 => Vec::new(),
            _ => vec![[0, *extent]],
        });
        let region = Indices(dims.collect());
        Shard::with_all_rows(tensor, region)
    }

    fn with_all_rows(tensor: TensorSpec, region: Indices) -> Shard {
        let rows = [0, region.rows()];
        Shard { tensor, region, rows }
    }

    /// These rows of the shard only. A row has one index of every dim of the region but the last,
    /// and rows count in row-major order; a region with fewer than two dims is one row.
    #[must_use]
    pub fn of_rows(self, rows: Range<usize>) -> Shard {
        let rows = [rows.start as u64, rows.end as u64];
        Shard { rows, ..self }
    }

    /// The number of elements that the rank holds.
    pub(super) fn elements(&self) -> u64 {
        (self.rows[1] - self.rows[0]) * self.region.row_elements()
    }

    /// Whether the region has these rows.
    pub(super) fn has_its_rows(&self) -> bool {
        let [start, end] = self.rows;
        start <= end && end <= self.region.rows()
    }
}

/// The indices of one dim: the starts and ends of ascending ranges, none of them empty.
pub(super) type IndexRanges = Vec<[u64; 2]>;

/// A region: the indices of each dim.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Indices(pub(super) Vec<IndexRanges>);

impl Indices {
    /// The extents of the tensor that stores the region.
    pub(super) fn extents(&self) -> Vec<u64> {
        let indices = |dim: &IndexRanges| dim.iter().map(|[start, end]| end - start).sum();
        self.0.iter().map(indices).collect()
    }

    /// The number of rows.
    pub(super) fn rows(&self) -> u64 {
        let extents = self.extents();
        let outer = extents.split_last().map(|(_, outer)| outer);
        outer.map_or(1, |outer| outer.iter().product())
    }

    pub(super) fn row_elements(&self) -> u64 {
        self.extents().last().copied().unwrap_or(1)
    }

    pub(super) fn is_inside(&self, shape: &[u64]) -> bool {
        let is_inside = |(dim, extent): (&IndexRanges, &u64)| {
            dim.last().is_none_or(|[_, end]| end <= extent) // they ascend
        };
        self.0.len() == shape.len() && self.0.iter().zip(shape).all(is_inside)
    }
}

/// `[0..4, 0..2 + 6..8]`.
impl fmt::Display for Indices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims = self.0.iter().map(|dim| {
            let ranges = dim.iter().map(|[start, end]| format!("{start}..{end}"));
            ranges.collect::<Vec<String>>().join(" + ")
        });
        write!(f, "[{}]", dims.collect::<Vec<String>>().join(", "))
    }
}
