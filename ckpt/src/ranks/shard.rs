//! A rank's statement of what it holds.

use std::fmt;

use meshgrad_mesh::Region;
use serde::{Deserialize, Serialize};

use crate::Dtype;
use crate::mapping::TensorSpec;

/// A tensor of a model, and the region of it that a rank holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shard {
    pub(super) name: String,
    #[serde(with = "dtype_by_name")]
    pub(super) dtype: Dtype,
    /// The global shape.
    pub(super) shape: Vec<u64>,
    pub(super) region: Indices,
}

impl Shard {
    /// A region of a tensor; `tensor` has its global shape.
    pub fn new(tensor: TensorSpec, region: &Region) -> Shard {
        let dims = region.dims().iter().map(|dim| {
            let ranges = dim.ranges().iter().filter(|range| !range.is_empty());
            let ranges = ranges.map(|range| [range.start as u64, range.end as u64]);
            ranges.collect()
        });
        Shard {
            name: tensor.name,
            dtype: tensor.dtype,
            shape: tensor.shape,
            region: Indices(dims.collect()),
        }
    }

    /// A whole tensor.
    pub fn whole(tensor: TensorSpec) -> Shard {
        let dims = tensor.shape.iter().map(|extent| match extent {
            0 => Vec::new(),
            _ => vec![[0, *extent]],
        });
        Shard {
            region: Indices(dims.collect()),
            name: tensor.name,
            dtype: tensor.dtype,
            shape: tensor.shape,
        }
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
        self.0.iter().map(|dim| len(dim)).collect()
    }

    pub(super) fn elements(&self) -> u64 {
        self.0.iter().map(|dim| len(dim)).product()
    }

    /// Whether its ranges are ascending and inside of a tensor of this shape.
    pub(super) fn is_inside(&self, shape: &[u64]) -> bool {
        let is_inside = |(dim, extent): (&IndexRanges, &u64)| {
            let is_sorted = dim.windows(2).all(|pair| pair[0][1] <= pair[1][0]);
            let ranges = dim.iter();
            is_sorted && { ranges }.all(|[start, end]| start < end && end <= extent)
        };
        self.0.len() == shape.len() && self.0.iter().zip(shape).all(is_inside)
    }
}

/// The number of indices.
pub(super) fn len(dim: &[[u64; 2]]) -> u64 {
    dim.iter().map(|[start, end]| end - start).sum()
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

mod dtype_by_name {
    use serde::{Deserialize, Deserializer, Serializer, de};

    use crate::Dtype;

    pub(super) fn serialize<S: Serializer>(
        dtype: &Dtype,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(dtype.name())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Dtype, D::Error> {
        let name = String::deserialize(deserializer)?;
        name.parse().map_err(de::Error::custom)
    }
}
