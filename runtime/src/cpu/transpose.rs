//! Copies of column-major matrices, tile by tile, because adjacent elements of a row are on
//! different cache lines.

use super::prefetch::prefetch;
use super::{BLOCK, for_blocks};
use crate::Element;
use crate::core::strides::Dims;

/// Rows and columns of a tile: one cache line of bf16 in each direction.
const TILE: usize = 32;

/// Column-major matrices; the outer dims may have any strides.
pub(super) struct ColumnMajor<'a, T> {
    elements: &'a [T],
    /// The offset of the first element of each matrix.
    matrices: Dims,
    rows: usize,
    columns: usize,
    /// The distance between columns.
    stride: usize,
}

impl<'a, T: Element> ColumnMajor<'a, T> {
    /// A view of `elements` if the last two of `dims` are a column-major matrix.
    pub(super) fn new(elements: &'a [T], dims: &Dims) -> Option<ColumnMajor<'a, T>> {
        let (matrices, [(rows, 1), (columns, stride)]) = dims.split_last_two()? else {
            return None;
        };
        let stride = usize::try_from(stride).ok()?;
        (rows > 1 && columns > 1).then_some(ColumnMajor {
            elements,
            matrices,
            rows,
            columns,
            stride,
        })
    }

    /// Copies all matrices into `out`, row by row.
    pub(super) fn copy(&self, out: &mut [T]) {
        let rows = TILE.max(BLOCK / self.columns / TILE * TILE);
        for_blocks(out, rows * self.columns, |start, mut out| {
            let mut first = start / self.columns;
            while !out.is_empty() {
                // Tiles do not cross matrices.
                let in_matrix = first % self.rows;
                let tile = TILE.min(self.rows - in_matrix);
                let (now, rest) = out.split_at_mut(out.len().min(tile * self.columns));
                let matrix = self.matrices.offset(first / self.rows);
                self.copy_rows(matrix + in_matrix, now);
                first += tile;
                out = rest;
            }
        });
    }

    /// Copies the rows that fill `out`, at most [`TILE`]. The first starts at `offset`.
    fn copy_rows(&self, offset: usize, out: &mut [T]) {
        let rows = out.len() / self.columns;
        let column = |at: usize| &self.elements[offset + at * self.stride..][..rows];
        let mut tile = [[T::zeroed(); TILE]; TILE];
        for first in (0..self.columns).step_by(TILE) {
            let count = TILE.min(self.columns - first);
            for (at, tile) in (first..).zip(&mut tile[..count]) {
                if at + TILE < self.columns {
                    prefetch(column(at + TILE));
                }
                tile[..rows].copy_from_slice(column(at));
            }
            for (row, out) in out.chunks_exact_mut(self.columns).enumerate() {
                for (out, tile) in out[first..first + count].iter_mut().zip(&tile) {
                    *out = tile[row];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::ops::{arange, copy, reshape};
    use crate::{DType, Device};

    /// Covers whole and partial tiles, several matrices per block, and views of larger matrices.
    #[test]
    fn copies_equal_their_source() {
        let device = Device::cpu();
        for [matrices, columns, rows] in
            [[1, 64, 32], [3, 33, 70], [5, 2, 3], [2, 1, 40], [1, 700, 90]]
        {
            let count = (matrices * columns * rows) as i64;
            let x = arange(&device, count as usize, DType::I64).unwrap();
            let x = reshape(&x, &[matrices, columns, rows]).unwrap();
            let (from, to) = (columns / 3, rows - rows / 4);
            let part = x.slice(1, from..columns).unwrap().slice(2, 0..to).unwrap();
            for view in [x, part] {
                let transposed = view.transpose(1, 2).unwrap();
                let copied = copy(&transposed).unwrap();
                assert!(copied.is_contiguous());
                let element_by_element = transposed.to_vec::<i64>().unwrap();
                assert_eq!(copied.to_vec::<i64>().unwrap(), element_by_element);
            }
        }
    }
}
