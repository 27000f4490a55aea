//! The unit of work: query rows of one key-value head, and the strips that divide them.
//!
//! A *row* is one query of one head. Rows of a segment are numbered by position, then by head
//! within the group, so that adjacent rows attend to nearly the same keys. A *strip* is [`STRIP`]
//! rows, one per vector lane. Scores are stored as [keys, rows], so softmax reduces within a lane
//! and lanes are never combined.

use std::ops::Range;

use super::real::{Element, Real};
use super::rows::Rows;
use super::{Attention, mask::Segment};
use crate::cpu::prefetch::prefetch;

/// Rows in a strip.
pub(super) const STRIP: usize = 32;

/// Keys per block. Blocks start at the first key of the sequence, for every query.
pub(super) const KEYS: usize = 64;

/// The head dimension, padded to whole vectors of any SIMD level. The padding is zero.
pub(super) fn padded(head_dim: usize) -> usize {
    head_dim.next_multiple_of(16)
}

/// Rows of one segment and one key-value head.
pub(super) struct Group<'a, E> {
    pub(super) attention: &'a Attention<'a, E>,
    pub(super) segment: &'a Segment<'a>,
    pub(super) kv_head: usize,
    /// Relative to the first row of the segment.
    pub(super) rows: Range<usize>,
}

/// Up to [`STRIP`] rows of a group.
#[derive(Clone)]
pub(super) struct Strip<R> {
    /// The first row, relative to the group.
    pub(super) first: usize,
    pub(super) rows: usize,
    /// Keys that at least one row attends to.
    pub(super) keys: Range<usize>,
    /// Keys that every row attends to.
    common: Range<usize>,
    /// Row i attends to keys `low[i]..high[i]`.
    pub(super) low: [R; STRIP],
    pub(super) high: [R; STRIP],
}

impl<R: Real> Strip<R> {
    /// Whether any of these keys is masked for any row.
    #[inline(always)]
    pub(super) fn masks(&self, keys: &Range<usize>) -> bool {
        keys.start < self.common.start || keys.end > self.common.end
    }

    /// Lanes in use, rounded up to whole vectors of any SIMD level. In the extra lanes all keys are
    /// masked.
    #[inline(always)]
    pub(super) fn lanes(&self) -> usize {
        self.rows.next_multiple_of(16)
    }
}

impl<E: Element> Group<'_, E> {
    /// Batch row, query and head of the group's rows, starting at `first`.
    #[inline(always)]
    pub(super) fn row_indices(&self, first: usize) -> impl Iterator<Item = [usize; 3]> {
        let heads = self.attention.shape.group();
        let (batch, first_head) = (self.segment.batch, self.kv_head * heads);
        let row = self.rows.start + first;

        let mut t = self.segment.queries.start + row / heads;
        let mut head = row % heads;
        std::iter::from_fn(move || {
            let index = [batch, t, first_head + head];
            head += 1;
            if head == heads {
                (t, head) = (t + 1, 0);
            }
            Some(index)
        })
    }

    /// Strip `index` of the group; empty past the end.
    #[inline(always)]
    pub(super) fn strip(&self, index: usize) -> Strip<E::Real> {
        let first = index * STRIP;
        let rows = self.rows.len().saturating_sub(first).min(STRIP);

        let mut low = [E::Real::ZERO; STRIP];
        let mut high = [E::Real::ZERO; STRIP];
        let (mut first_visible, mut end) = (usize::MAX, 0);
        let mut common = 0..usize::MAX;
        for (row, [_, t, _]) in (0..rows).zip(self.row_indices(first)) {
            let visible = self.segment.visible(t);
            (low[row], high[row]) =
                (Real::from_count(visible.start), Real::from_count(visible.end));

            common = common.start.max(visible.start)..common.end.min(visible.end);
            if !visible.is_empty() {
                (first_visible, end) = (first_visible.min(visible.start), end.max(visible.end));
            }
        }

        let keys = first_visible.min(end)..end;
        Strip { first, rows, keys, common, low, high }
    }

    /// Copies rows of a [B, Tq, Hq, D] operand to [STRIP, padded D]; missing rows are zero.
    #[inline(always)]
    pub(super) fn load_rows(&self, from: &Rows<E>, strip: &Strip<E::Real>, to: &mut [E::Real]) {
        let head_dim = self.attention.shape.head_dim;
        let (rows, missing) = to.split_at_mut(strip.rows * padded(head_dim));

        // Rows of a head are far apart, so the hardware prefetcher does not load them.
        for index in self.row_indices(strip.first).take(strip.rows) {
            prefetch(from.row(index, head_dim));
        }
        let indices = self.row_indices(strip.first);
        for (index, to) in indices.zip(rows.chunks_exact_mut(padded(head_dim))) {
            load_row(from.row(index, head_dim), to);
        }
        missing.fill(E::Real::ZERO);
    }

    /// Copies keys (or values) of a [B, Tk, Hkv, D] operand to [keys, padded D].
    #[inline(always)]
    pub(super) fn load_keys(&self, from: &Rows<E>, keys: Range<usize>, to: &mut [E::Real]) {
        let head_dim = self.attention.shape.head_dim;
        let row = |key: usize| {
            let at = self.segment.keys.start + key;
            from.row([self.segment.batch, at, self.kv_head], head_dim)
        };
        let end = keys.end;
        for (key, to) in keys.zip(to.chunks_exact_mut(padded(head_dim))) {
            load_row(row(key), to);
        }
        // Prefetches the next block while this one is multiplied.
        for key in end..(end + KEYS).min(self.segment.keys.len()) {
            prefetch(row(key));
        }
    }
}

#[inline(always)]
fn load_row<E: Element>(from: &[E], to: &mut [E::Real]) {
    let (to, padding) = to.split_at_mut(from.len());
    for (to, from) in to.iter_mut().zip(from) {
        *to = from.to_real();
    }
    padding.fill(E::Real::ZERO);
}

/// Writes [STRIP, columns] as [columns, STRIP]. `spare`, of the same length, is overwritten with
/// arbitrary values.
///
/// Interleaving `n` parts of a flat array moves element i to n i modulo (length - 1). Interleaving
/// 4, 4 and 2 parts in turn therefore moves r * columns + c to c * STRIP + r. The compiler turns
/// these loops into shuffles.
#[inline(always)]
pub(super) fn transpose<R: Real>(from: &[R], spare: &mut [R], to: &mut [R]) {
    const { assert!(STRIP == 4 * 4 * 2) };

    interleave::<R, 4>(from, to);
    interleave::<R, 4>(to, spare);
    interleave::<R, 2>(spare, to);
}

/// to = from[0], from[len / N], from[2 len / N], ..., from[1], ...
#[inline(always)]
fn interleave<R: Real, const N: usize>(from: &[R], to: &mut [R]) {
    let part = from.len() / N;
    let parts: [&[R]; N] = std::array::from_fn(|n| &from[n * part..][..part]);

    for (i, to) in to.chunks_exact_mut(N).take(part).enumerate() {
        for n in 0..N {
            to[n] = parts[n][i];
        }
    }
}
