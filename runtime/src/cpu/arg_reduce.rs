//! Indices of the largest or smallest elements of rows.

use super::rows::rows_per_task;
use super::strided::CHUNK;
use super::top_k::{is_nan, ranks_before, top_k_indices};
use super::{blocks, for_blocks, for_parts};
use crate::Float;

/// For each row of `columns` elements of `x`, the index of the first element with the largest
/// `key`. NaN counts as larger than all numbers.
pub(crate) fn argmax_by<T: Float>(
    x: &[T],
    columns: usize,
    key: impl Fn(T) -> T::Wide + Sync,
    out: &mut [i64],
) {
    for_blocks(out, rows_per_task(columns), |start, part| {
        vectorized!(T::Wide, || {
            for (at, out) in part.iter_mut().enumerate() {
                *out = argmax_of_row(&x[(start + at) * columns..][..columns], &key) as i64;
            }
        });
    });
}

/// A vectorized test skips chunks without a larger element. In a long row, these are nearly all
/// chunks.
#[inline(always)]
fn argmax_of_row<T: Float>(row: &[T], key: &impl Fn(T) -> T::Wide) -> usize {
    let (mut best, mut place) = (key(row[0]), 0);
    for (at, chunk) in row.chunks(CHUNK).enumerate() {
        if is_nan(best) {
            return place;
        }
        if !any_above(chunk, best, key) {
            continue;
        }
        for (i, element) in chunk.iter().enumerate() {
            let value = key(*element);
            if ranks_before(value, best) {
                (best, place) = (value, at * CHUNK + i);
            }
        }
    }
    place
}

#[inline(always)]
#[expect(clippy::neg_cmp_op_on_partial_ord, reason = "a NaN counts as above")]
fn any_above<T: Float>(chunk: &[T], best: T::Wide, key: &impl Fn(T) -> T::Wide) -> bool {
    let mut any = 0u32;
    for element in chunk {
        any |= u32::from(!(key(*element) <= best));
    }
    any != 0
}

/// The `k` largest elements of each row of `columns` elements of `x`, in descending order, and
/// their indices.
pub(crate) fn top_k<T: Float>(
    x: &[T],
    columns: usize,
    k: usize,
    values: &mut [T],
    indices: &mut [i64],
) {
    let rows = rows_per_task(columns);
    let out = (blocks(values, rows * k), blocks(indices, rows * k));
    for_parts(out, |task, (values, indices)| {
        let out = values.chunks_mut(k).zip(indices.chunks_mut(k));
        for (at, (values, indices)) in out.enumerate() {
            let row = &x[(task * rows + at) * columns..][..columns];
            top_k_indices(columns, |at| row[at].wide(), indices);
            for (value, place) in values.iter_mut().zip(&*indices) {
                *value = row[*place as usize];
            }
        }
    });
}

/// The key of argmax.
#[inline(always)]
pub(crate) fn largest<T: Float>(element: T) -> T::Wide {
    element.wide()
}

/// The key of argmin.
#[inline(always)]
pub(crate) fn smallest<T: Float>(element: T) -> T::Wide {
    -element.wide()
}
