//! Copies of matrices that are stored column by column, tile by tile: a row of them lies on as many
//! cache lines as it has elements.

use super::prefetch::prefetch;
use super::strided::Dims;
use super::{BLOCK, for_blocks};
use crate::Element;

/// Rows and columns of a tile: a cache line of bf16 either way.
const TILE: usize = 32;

/// Matrices stored column by column, whatever the strides of the dims before.
pub(super) struct Columns<'a, T> {
    elements: &'a [T],
    /// The first element of each matrix.
    matrices: Dims,
    rows: usize,
    columns: usize,
    /// From one column to the next.
    stride: usize,
}

impl<'a, T: Element> Columns<'a, T> {
    /// The elements that `dims` names, if the last two of them are such a matrix.
    pub(super) fn new(elements: &'a [T], dims: &Dims) -> Option<Columns<'a, T>> {
        let (matrices, [(rows, 1), (columns, stride)]) = dims.split_last_two()? else {
            return None;
        };
        let stride = usize::try_from(stride).ok()?;
        (rows > 1 && columns > 1).then_some(Columns {
            elements,
            matrices,
            rows,
            columns,
            stride,
        })
    }

    /// Copies all of them into `out`, row by row.
    pub(super) fn copy(&self, out: &mut [T]) {
        let rows = TILE.max(BLOCK / self.columns / TILE * TILE);
        for_blocks(out, rows * self.columns, |start, mut out| {
            let mut first = start / self.columns;
            while !out.is_empty() {
                // Tiles end where a matrix does.
                let in_matrix = first % self.rows;
                let tile = TILE.min(self.rows - in_matrix);
                let (now, rest) = out.split_at_mut(out.len().min(tile * self.columns));
                let matrix = self.matrices.place(first / self.rows);
                self.copy_rows(matrix + in_matrix, now);
                first += tile;
                out = rest;
            }
        });
    }

    /// Copies as many rows as `out` has room for; the first begins at `place`.
    fn copy_rows(&self, place: usize, out: &mut [T]) {
        let rows = out.len() / self.columns;
        let column = |at: usize| &self.elements[place + at * self.stride..][..rows];
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

    /// Every element comes to its place: whole tiles, cut ones, several matrices in a block, and
    /// matrices that are part of larger ones.
    #[test]
    fn copies_are_what_they_copy() {
        let device = Device::cpu();
        for [matrices, columns, rows] in [
            [1, 64, 32],
            [3, 33, 70],
            [5, 2, 3],
            [2, 1, 40],
            [1, 700, 90],
        ] {
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
