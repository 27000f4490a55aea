//! Reductions in a fixed order. The elements of each result are divided into blocks of [`BLOCK`]
//! elements. A block is folded in [`LANES`] interleaved lanes, whose second half is merged into the
//! first until one lane is left. Then blocks are merged from first to last.

use super::rows::merge_halves;
use super::strided::{CHUNK, Chunk, Source};
use super::{BLOCK, blocks, for_blocks, for_parts};
use crate::{Float, Result, Tensor, Wide};

const LANES: usize = 16;

/// The operation that folds elements into one value. `merge` must be associative up to rounding,
/// with `start` as its neutral element.
pub(crate) struct Fold<W, M> {
    pub(crate) start: W,
    pub(crate) merge: M,
}

/// `out[row] = finish(fold of x[row, ..])`: each output folds `columns` elements that are
/// consecutive in row-major order.
pub(crate) fn rows<T: Float, M: Fn(T::Wide, T::Wide) -> T::Wide + Sync>(
    x: &Tensor,
    columns: usize,
    out: &mut [T],
    fold: &Fold<T::Wide, M>,
    finish: impl Fn(T::Wide) -> T::Wide + Sync,
) -> Result<()> {
    let x = Source::<T>::new(x)?;
    let rows_per_task = (BLOCK / columns.max(1)).max(1);
    for_blocks(out, rows_per_task, |start, part| {
        vectorized!(T::Wide, || {
            let mut buffer = Chunk::of(T::zeroed());
            for (at, out) in part.iter_mut().enumerate() {
                let first = (start + at) * columns;
                let row = match columns <= BLOCK {
                    true => fold_block(&x, first, columns, fold, &mut buffer),
                    false => fold_blocks(&x, first, columns, fold),
                };
                *out = T::narrow(finish(row));
            }
        });
    });
    Ok(())
}

/// `out[column] = finish(fold of x[.., column])`: `x` is [rows, columns] in row-major order.
///
/// Rows are folded in blocks of about [`BLOCK`] elements; blocks are merged from first to last.
pub(crate) fn columns<T: Float, M: Fn(T::Wide, T::Wide) -> T::Wide + Sync>(
    x: &Tensor,
    rows: usize,
    out: &mut [T],
    fold: &Fold<T::Wide, M>,
    finish: impl Fn(T::Wide) -> T::Wide + Sync,
) -> Result<()> {
    let x = Source::<T>::new(x)?;
    let columns = out.len();
    if columns == 0 {
        return Ok(());
    }
    let rows_per_block = BLOCK.div_ceil(columns);
    let mut partial = vec![fold.start; rows.div_ceil(rows_per_block) * columns];
    for_blocks(&mut partial, columns, |start, partial| {
        let first = start / columns * rows_per_block;
        let mut buffer = Chunk::of(fold.start);
        for row in first..rows.min(first + rows_per_block) {
            for (at, folded) in partial.chunks_mut(CHUNK).enumerate() {
                let buffer = &mut buffer[..folded.len()];
                x.load_wide(row * columns + at * CHUNK, buffer);
                merge_each(folded, buffer, fold);
            }
        }
    });

    for_blocks(out, BLOCK, |start, out| {
        let mut folded = vec![fold.start; out.len()];
        for partial in partial.chunks(columns) {
            merge_each(&mut folded, &partial[start..start + out.len()], fold);
        }
        for (out, folded) in out.iter_mut().zip(folded) {
            *out = T::narrow(finish(folded));
        }
    });
    Ok(())
}

/// Merges each of `values` into the element of the same index.
fn merge_each<W: Wide>(folded: &mut [W], values: &[W], fold: &Fold<W, impl Fn(W, W) -> W>) {
    vectorized!(W, || {
        for (folded, value) in folded.iter_mut().zip(values) {
            *folded = (fold.merge)(*folded, *value);
        }
    });
}

/// Folds the `len` elements that start at `start`, in blocks that run in parallel.
#[inline(never)]
fn fold_blocks<T: Float, M: Fn(T::Wide, T::Wide) -> T::Wide + Sync>(
    x: &Source<'_, T>,
    start: usize,
    len: usize,
    fold: &Fold<T::Wide, M>,
) -> T::Wide {
    let mut folded = vec![fold.start; len.div_ceil(BLOCK)];
    for_parts(blocks(&mut folded, 1), |at, folded| {
        let (first, mut buffer) = (at * BLOCK, Chunk::of(T::zeroed()));
        let block = BLOCK.min(len - first);
        folded[0] =
            vectorized!(T::Wide, || { fold_block(x, start + first, block, fold, &mut buffer) });
    });
    folded.into_iter().fold(fold.start, &fold.merge)
}

/// Folds the `len` elements that start at `start`. Inlined, so that it is vectorized.
#[inline(always)]
fn fold_block<T: Float, M: Fn(T::Wide, T::Wide) -> T::Wide>(
    x: &Source<'_, T>,
    start: usize,
    len: usize,
    fold: &Fold<T::Wide, M>,
    buffer: &mut Chunk<T>,
) -> T::Wide {
    let mut lanes = [fold.start; LANES];
    for first in (0..len).step_by(CHUNK) {
        let part = x.elements(start + first, CHUNK.min(len - first), &mut **buffer);
        let (groups, rest) = part.as_chunks::<LANES>();
        for group in groups {
            lanes = merge_group(lanes, group, fold);
        }
        if !rest.is_empty() {
            lanes = merge_group(lanes, rest, fold);
        }
    }
    merge_halves(lanes, &fold.merge)
}

/// Merges each of `values` into the lane of the same index. Returns new lanes, because lanes that
/// are updated in place, or up to a length that the compiler does not know, are kept on the stack.
#[inline(always)]
fn merge_group<T: Float, M: Fn(T::Wide, T::Wide) -> T::Wide>(
    mut lanes: [T::Wide; LANES],
    values: &[T],
    fold: &Fold<T::Wide, M>,
) -> [T::Wide; LANES] {
    for (lane, value) in lanes.iter_mut().zip(values) {
        *lane = (fold.merge)(*lane, value.wide());
    }
    lanes
}
