//! The unit of work: query rows of one key-value head, and the strips they are computed in.
//!
//! A *row* is one query of one head. Rows of a segment are numbered position by position, the heads
//! of the group within a position, so that neighbours see nearly the same keys. A *strip* is
//! [`STRIP`] rows that stand in the lanes of vectors; scores are kept as [keys, rows], so that
//! softmax runs down the lanes and no lane ever meets another.

use std::ops::Range;

use super::real::{Element, Real};
use super::rows::Rows;
use super::{Attention, mask::Segment};
use crate::cpu::prefetch::prefetch;

/// Rows in a strip.
pub(super) const STRIP: usize = 32;

/// Keys in a block, counted from the first key of the sequence whatever the query.
pub(super) const KEYS: usize = 64;

/// The head dimension is padded with zeros to whole vectors of any SIMD level.
pub(super) fn padded(head_dim: usize) -> usize {
    head_dim.next_multiple_of(16)
}

/// Rows of one segment and one key-value head.
pub(super) struct Group<'a, E> {
    pub(super) attention: &'a Attention<'a, E>,
    pub(super) segment: &'a Segment,
    pub(super) kv_head: usize,
    /// Counted from the segment's first row.
    pub(super) rows: Range<usize>,
}

/// Up to [`STRIP`] rows of a group.
#[derive(Clone)]
pub(super) struct Strip<R> {
    /// Within the group.
    pub(super) first: usize,
    pub(super) rows: usize,
    /// Keys that any row sees.
    pub(super) keys: Range<usize>,
    /// Keys that every row sees.
    common: Range<usize>,
    /// First visible key of each row, and the end.
    pub(super) low: [R; STRIP],
    pub(super) high: [R; STRIP],
}

impl<R: Real> Strip<R> {
    /// Whether some row does not see some of these keys.
    #[inline(always)]
    pub(super) fn masks(&self, keys: &Range<usize>) -> bool {
        keys.start < self.common.start || keys.end > self.common.end
    }

    /// Lanes in use, in whole vectors of any SIMD level. No row stands in the last ones; they see
    /// no key.
    #[inline(always)]
    pub(super) fn lanes(&self) -> usize {
        self.rows.next_multiple_of(16)
    }
}

impl<E: Element> Group<'_, E> {
    /// Batch row, query and head of the group's rows from `first` on.
    #[inline(always)]
    pub(super) fn places(&self, first: usize) -> impl Iterator<Item = [usize; 3]> {
        let heads = self.attention.shape.group();
        let (batch, first_head) = (self.segment.batch, self.kv_head * heads);
        let row = self.rows.start + first;

        let mut t = self.segment.queries.start + row / heads;
        let mut head = row % heads;
        std::iter::from_fn(move || {
            let place = [batch, t, first_head + head];
            head += 1;
            if head == heads {
                (t, head) = (t + 1, 0);
            }
            Some(place)
        })
    }

    /// Strip `index` of the group; empty past the end.
    #[inline(always)]
    pub(super) fn strip(&self, index: usize) -> Strip<E::Real> {
        let first = index * STRIP;
        let rows = self.rows.len().saturating_sub(first).min(STRIP);

        let mut low = [E::Real::ZERO; STRIP];
        let mut high = [E::Real::ZERO; STRIP];
        let (mut first_seen, mut end) = (usize::MAX, 0);
        let mut common = 0..usize::MAX;
        for (row, [_, t, _]) in (0..rows).zip(self.places(first)) {
            let seen = self.segment.visible(t);
            (low[row], high[row]) = (Real::from_count(seen.start), Real::from_count(seen.end));

            common = common.start.max(seen.start)..common.end.min(seen.end);
            if !seen.is_empty() {
                (first_seen, end) = (first_seen.min(seen.start), end.max(seen.end));
            }
        }

        let keys = first_seen.min(end)..end;
        Strip {
            first,
            rows,
            keys,
            common,
            low,
            high,
        }
    }

    /// Copies rows of a [B, Tq, Hq, D] operand to [STRIP, padded D]; rows that the strip lacks
    /// become zero.
    #[inline(always)]
    pub(super) fn load_rows(&self, from: &Rows<E>, strip: &Strip<E::Real>, to: &mut [E::Real]) {
        let head_dim = self.attention.shape.head_dim;
        let (rows, lacking) = to.split_at_mut(strip.rows * padded(head_dim));

        // Rows of a head lie apart, and a processor does not see them coming.
        for place in self.places(strip.first).take(strip.rows) {
            prefetch(from.row(place, head_dim));
        }
        let places = self.places(strip.first);
        for (place, to) in places.zip(rows.chunks_exact_mut(padded(head_dim))) {
            load_row(from.row(place, head_dim), to);
        }
        lacking.fill(E::Real::ZERO);
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
        // Those of the next block, while this one is multiplied.
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

/// Writes [STRIP, columns] as [columns, STRIP]; what `spare`, of the same length, holds afterwards
/// is arbitrary.
///
/// Interleaving the `n` parts of a flat array moves element i to n i modulo (length - 1), so that
/// interleaving 4, 4 and 2 parts moves r * columns + c to c * STRIP + r. The loops are of a form
/// that compilers turn into shuffles.
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
