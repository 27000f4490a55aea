//! Where the best elements of rows are.

use super::rank::{is_nan, ranks_before, top_of};
use super::rows::rows_a_task;
use super::strided::CHUNK;
use super::{blocks, for_blocks, for_parts};
use crate::Float;

/// The place of the first best element of each row of `x`, `columns` elements each, ranked by
/// `key`.
pub(crate) fn first_best<T: Float>(
    x: &[T],
    columns: usize,
    key: impl Fn(T) -> T::Wide + Sync,
    out: &mut [i64],
) {
    for_blocks(out, rows_a_task(columns), |start, part| {
        vectorised!(T::Wide, || {
            for (at, out) in part.iter_mut().enumerate() {
                *out = first_best_of(&x[(start + at) * columns..][..columns], &key) as i64;
            }
        });
    });
}

/// Chunks without a better element, nearly all of a long row, are passed over by a test that is
/// vector code.
#[inline(always)]
fn first_best_of<T: Float>(row: &[T], key: &impl Fn(T) -> T::Wide) -> usize {
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

/// The `k` best elements of each row of `x`, `columns` elements each, and their places.
pub(crate) fn top_k<T: Float>(
    x: &[T],
    columns: usize,
    k: usize,
    values: &mut [T],
    places: &mut [i64],
) {
    let rows = rows_a_task(columns);
    let out = (blocks(values, rows * k), blocks(places, rows * k));
    for_parts(out, |task, (values, places)| {
        let out = values.chunks_mut(k).zip(places.chunks_mut(k));
        for (at, (values, places)) in out.enumerate() {
            let row = &x[(task * rows + at) * columns..][..columns];
            top_of(columns, |at| row[at].wide(), places);
            for (value, place) in values.iter_mut().zip(&*places) {
                *value = row[*place as usize];
            }
        }
    });
}

/// Ranks descending.
#[inline(always)]
pub(crate) fn largest<T: Float>(element: T) -> T::Wide {
    element.wide()
}

/// Ranks ascending.
#[inline(always)]
pub(crate) fn smallest<T: Float>(element: T) -> T::Wide {
    -element.wide()
}
