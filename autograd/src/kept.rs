//! The rows of a parameter that a rank keeps.

use std::fmt;
use std::ops::Range;

use meshgrad_error::ensure;
use meshgrad_mesh::RowBox;
use meshgrad_runtime::{Key, Region, RegionKey, Result, ShardedShape, Tensor, ops};

/// The rows of a parameter that this rank keeps, and where they are in the whole parameter.
///
/// They are rows of this rank's part of the parameter's sharding: all, unless the parameter has a
/// [`Home`](crate::Home). A row has one index of every dim but the last; a tensor with fewer than
/// two dims is one row.
#[derive(Clone, Debug)]
pub struct KeptRows {
    shape: ShardedShape,
    rows: Range<usize>,
    is_first_copy: bool,
}

impl KeptRows {
    /// All rows of a tensor of this shape, kept by this rank alone.
    pub fn all(shape: ShardedShape) -> KeptRows {
        let rows = 0..row_count(shape.local());
        KeptRows { shape, rows, is_first_copy: true }
    }

    /// The rows `rows` of this rank's part of a tensor of shape `shape`. `is_first_copy` states
    /// whether this rank is the first of those that keep them: the rows of all first copies
    /// together make up the tensor exactly once.
    ///
    /// # Errors
    /// When the part does not have these rows.
    pub fn new(shape: ShardedShape, rows: Range<usize>, is_first_copy: bool) -> Result<KeptRows> {
        let count = row_count(shape.local());
        let Range { start, end } = rows;
        ensure!(
            start <= end && end <= count,
            Invalid,
            "rows {start}..{end} are outside of the {count} rows of shape {}",
            shape.local()
        );
        Ok(KeptRows { shape, rows, is_first_copy })
    }

    /// The shape of the whole tensor, and this rank's part of it before its rows are divided.
    pub fn shape(&self) -> &ShardedShape {
        &self.shape
    }

    /// The rows, counted in this rank's part.
    pub fn rows(&self) -> Range<usize> {
        self.rows.clone()
    }

    /// Whether this rank is the first of those that keep these rows.
    pub fn is_first_copy(&self) -> bool {
        self.is_first_copy
    }

    /// The number of all rows of this rank's part.
    pub fn count_of_all(&self) -> usize {
        row_count(self.shape.local())
    }

    /// Whether these are all rows of this rank's part.
    pub fn are_all(&self) -> bool {
        self.rows == (0..self.count_of_all())
    }

    /// The number of rows, and of elements of a row: the shape of a tensor that has them.
    pub fn by_row(&self) -> [usize; 2] {
        [self.rows.len(), row_elements(self.shape.local())]
    }

    /// Whether `x` has an element for each of these rows' elements, in their shape.
    pub fn fit(&self, x: &Tensor) -> bool {
        x.shape() == self.shape.local() && self.are_all() || x.shape()[..] == self.by_row()
    }

    /// These rows of `x`, which has all rows of this rank's part, in the shape [`KeptRows::by_row`]
    /// and without a sharding. A view if `x` is contiguous.
    ///
    /// # Errors
    /// For another number of elements.
    pub fn of(&self, x: &Tensor) -> Result<Tensor> {
        let local = self.shape.local();
        let by_row = ops::reshape(&x.local(), &[self.count_of_all(), row_elements(local)])?;
        by_row.slice(0, self.rows())
    }

    /// The boxes of the whole tensor that these rows consist of. Their rows are counted from the
    /// first kept one.
    pub fn boxes(&self) -> Vec<RowBox> {
        let mut boxes = self.shape.row_boxes(self.rows());
        for it in &mut boxes {
            it.rows = it.rows.start - self.rows.start..it.rows.end - self.rows.start;
        }
        boxes
    }

    /// The key of the random values that a box of these rows has in the whole tensor.
    ///
    /// # Errors
    /// When the box is not inside of the tensor.
    pub fn key_of(&self, part: &RowBox, key: Key) -> Result<RegionKey> {
        let mut region = Region::whole(&self.shape)?;
        for (dim, range) in part.global.iter().enumerate() {
            region = region.slice(dim, range.clone())?;
        }
        Ok(key.within(&region))
    }
}

/// `rows 0..4 of [3, 4, 6]`.
impl fmt::Display for KeptRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Range { start, end } = self.rows;
        write!(f, "rows {start}..{end} of {}", self.shape.local())
    }
}

fn row_count(shape: &[usize]) -> usize {
    let outer = shape.split_last().map(|(_, outer)| outer);
    outer.map_or(1, |outer| outer.iter().product())
}

fn row_elements(shape: &[usize]) -> usize {
    shape.last().copied().unwrap_or(1)
}
