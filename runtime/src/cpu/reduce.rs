//! Reductions in a fixed order: each result folds blocks of [`BLOCK`] elements, each block in
//! [`LANES`] interleaved lanes, and merges lanes and blocks from first to last.

use super::strided::{CHUNK, Source};
use super::{BLOCK, blocks, for_blocks, for_parts};
use crate::{Float, Result, Tensor};

const LANES: usize = 16;

/// How elements are folded into one value. `merge` must be associative up to rounding, with `start`
/// as its neutral value.
pub(crate) struct Fold<W, M> {
    pub(crate) start: W,
    pub(crate) merge: M,
}

/// `out[row] = finish(fold of x[row, ..])`: each output folds `columns` elements that follow each
/// other in row-major order.
pub(crate) fn rows<T: Float, M: Fn(T::Wide, T::Wide) -> T::Wide + Sync>(
    x: &Tensor,
    columns: usize,
    out: &mut [T],
    fold: &Fold<T::Wide, M>,
    finish: impl Fn(T::Wide) -> T::Wide + Sync,
) -> Result<()> {
    let x = Source::<T>::new(x)?;
    let rows_a_task = (BLOCK / columns.max(1)).max(1);
    for_blocks(out, rows_a_task, |start, part| {
        for (at, out) in part.iter_mut().enumerate() {
            let row = fold_row(&x, (start + at) * columns, columns, fold);
            *out = T::narrow(finish(row));
        }
    });
    Ok(())
}

/// `out[column] = finish(fold of x[.., column])`: `x` is [rows, columns] in row-major order.
///
/// A task owns some columns and walks all rows, so that rows are folded in order.
pub(crate) fn columns<T: Float, M: Fn(T::Wide, T::Wide) -> T::Wide + Sync>(
    x: &Tensor,
    rows: usize,
    out: &mut [T],
    fold: &Fold<T::Wide, M>,
    finish: impl Fn(T::Wide) -> T::Wide + Sync,
) -> Result<()> {
    let x = Source::<T>::new(x)?;
    let columns = out.len();
    let task = |start: usize, part: &mut [T]| {
        let mut folded = [fold.start; CHUNK];
        let mut buffer = [fold.start; CHUNK];
        let (folded, buffer) = (&mut folded[..part.len()], &mut buffer[..part.len()]);
        for row in 0..rows {
            x.load_wide(row * columns + start, buffer);
            vectorised!(T::Wide, || {
                for (folded, value) in folded.iter_mut().zip(&*buffer) {
                    *folded = (fold.merge)(*folded, *value);
                }
            });
        }
        for (out, folded) in part.iter_mut().zip(&*folded) {
            *out = T::narrow(finish(*folded));
        }
    };

    for_blocks(out, CHUNK, task);
    Ok(())
}

/// Folds `len` elements from `start` on: block by block, the blocks in parallel where there are
/// several.
fn fold_row<T: Float, M: Fn(T::Wide, T::Wide) -> T::Wide + Sync>(
    x: &Source<'_, T>,
    start: usize,
    len: usize,
    fold: &Fold<T::Wide, M>,
) -> T::Wide {
    let block = |at: usize| {
        let first = at * BLOCK;
        fold_block(x, start + first, BLOCK.min(len - first), fold)
    };
    if len <= BLOCK {
        return if len == 0 { fold.start } else { block(0) };
    }

    let mut folded = vec![fold.start; len.div_ceil(BLOCK)];
    for_parts(blocks(&mut folded, 1), |at, folded| folded[0] = block(at));
    folded.into_iter().fold(fold.start, &fold.merge)
}

fn fold_block<T: Float, M: Fn(T::Wide, T::Wide) -> T::Wide>(
    x: &Source<'_, T>,
    start: usize,
    len: usize,
    fold: &Fold<T::Wide, M>,
) -> T::Wide {
    let mut lanes = [fold.start; LANES];
    let mut buffer = [fold.start; CHUNK];
    for first in (0..len).step_by(CHUNK) {
        let part = &mut buffer[..CHUNK.min(len - first)];
        x.load_wide(start + first, part);
        vectorised!(T::Wide, || {
            for group in part.chunks(LANES) {
                for (lane, value) in lanes.iter_mut().zip(group) {
                    *lane = (fold.merge)(*lane, *value);
                }
            }
        });
    }
    lanes.into_iter().fold(fold.start, &fold.merge)
}
