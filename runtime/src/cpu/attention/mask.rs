//! Attention masks. Under every supported mask a query attends to one range of keys, which is all
//! that the kernels use.

use std::ops::Range;

use meshgrad_error::{ensure, error};

use super::Shape;
use crate::Result;

/// The range of keys that each query sees, and the runs of queries that share keys.
#[derive(Clone, Debug)]
pub(crate) struct KeyRanges {
    /// The first key and the end, [B, T, 2].
    bounds: Vec<[i32; 2]>,
    /// The runs of all rows in order, as ranges of the flat [B, T].
    runs: Vec<Range<usize>>,
}

impl KeyRanges {
    /// Checks ranges [B, T, 2], and divides each row into runs. A query starts a run if its first
    /// key is neither the run's first key nor before the end of the run's keys, as at the start of
    /// a document. Two runs share no key.
    ///
    /// # Errors
    /// If a range is out of range, or decreases along T.
    pub(crate) fn new(values: &[i32], shape: &Shape) -> Result<KeyRanges> {
        let bounds = values.as_chunks().0.to_vec();
        check_ranges(&bounds, shape)?;
        let mut runs: Vec<Range<usize>> = Vec::new();
        for (at, [first, _]) in bounds.iter().enumerate() {
            let joins = |run: &Range<usize>| {
                let ([run_first, _], [_, end]) = (bounds[run.start], bounds[at - 1]);
                !at.is_multiple_of(shape.queries) && (*first == run_first || *first < end)
            };
            match runs.last_mut() {
                Some(run) if joins(run) => run.end = at + 1,
                _ => runs.push(at..at + 1),
            }
        }
        Ok(KeyRanges { bounds, runs })
    }

    /// The runs of a batch row of `queries` queries.
    fn runs(&self, batch: usize, queries: usize) -> &[Range<usize>] {
        let before = |end: usize| self.runs.partition_point(|run| run.start < end);
        &self.runs[before(batch * queries)..before((batch + 1) * queries)]
    }
}

fn check_ranges(bounds: &[[i32; 2]], shape: &Shape) -> Result<()> {
    let keys = shape.keys;
    for (at, [first, end]) in bounds.iter().copied().enumerate() {
        let (row, query) = (at / shape.queries, at % shape.queries);
        ensure!(
            0 <= first && first <= end && end as usize <= keys,
            Invalid,
            "query {query} of row {row} has the keys {first}..{end}; a range must be within \
             0..{keys} and not end before it starts"
        );
        if query > 0 {
            let [first_before, end_before] = bounds[at - 1];
            ensure!(
                first_before <= first && end_before <= end,
                Invalid,
                "query {query} of row {row} has the keys {first}..{end} after \
                 {first_before}..{end_before}; ranges must not decrease along a row, so sort its \
                 documents"
            );
        }
    }
    Ok(())
}

/// How queries and keys are divided into sequences.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sequences<'a> {
    /// Each batch row is one sequence: key j has position j, query i has position `q_offset` +
    /// [`Shape::first_query`] + i.
    /// Both slices hold one value per batch row, or a single value for all rows.
    Rows {
        /// Position of the sequence's first query.
        q_offset: &'a [usize],
        /// The number of valid keys; the others are never read.
        k_len: &'a [usize],
    },
    /// The keys of each query are given. `causal` has no effect, and the window keeps the last keys
    /// of each range.
    Ranges(&'a KeyRanges),
}

/// A mask. A query attends to a key unless `causal`, `window` or `sequences` masks the key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mask<'a> {
    /// Masks keys after the query's position.
    pub(crate) causal: bool,
    /// Masks keys at or before the query's position minus this number. With `causal`, a query
    /// attends to itself and the `window` - 1 keys before it (`sliding_window` of Hugging Face
    /// configurations).
    pub(crate) window: Option<usize>,
    /// How queries and keys are divided into sequences.
    pub(crate) sequences: Sequences<'a>,
}

/// Queries that follow each other, and the keys that they share.
#[derive(Clone, Debug)]
pub(super) struct Segment<'a> {
    pub(super) batch: usize,
    /// Range in the dim of queries.
    pub(super) queries: Range<usize>,
    /// Range in the dim of keys. Blocks of keys start at its start.
    pub(super) keys: Range<usize>,
    limits: Limits<'a>,
    window: Option<usize>,
}

/// What limits the keys of a query, besides the window.
#[derive(Clone, Debug)]
enum Limits<'a> {
    Position {
        /// Position of the first query among the keys.
        first: i64,
        causal: bool,
    },
    /// The ranges of the segment's queries.
    Ranges(&'a [[i32; 2]]),
}

impl Segment<'_> {
    /// The keys that query `t` (an index into the dim of queries) attends to, relative to the first
    /// key of the segment.
    #[inline(always)]
    pub(super) fn visible(&self, t: usize) -> Range<usize> {
        let index = t - self.queries.start;
        match self.limits {
            Limits::Position { first, causal } => {
                let len = self.keys.len() as i64;
                let position = first + index as i64;
                let end = if causal { (position + 1).clamp(0, len) } else { len };
                let start = match self.window {
                    Some(window) => position
                        .saturating_add(1)
                        .saturating_sub_unsigned(window as u64)
                        .clamp(0, end),
                    None => 0,
                };
                start as usize..end as usize
            }
            Limits::Ranges(ranges) => {
                let [first, end] = ranges[index].map(|key| key as usize - self.keys.start);
                let start = self.window.map_or(0, |window| end.saturating_sub(window));
                first.max(start)..end
            }
        }
    }
}

impl Mask<'_> {
    /// # Errors
    /// If lengths do not match the shape.
    pub(super) fn check(&self, shape: &Shape) -> Result<()> {
        let Sequences::Rows { q_offset, k_len } = self.sequences else {
            return Ok(()); // ranges were checked when they were read
        };
        shape.check_per_row("q_offset", q_offset.len())?;
        shape.check_per_row("k_len", k_len.len())?;
        match k_len.iter().find(|len| **len > shape.keys) {
            Some(&len) => {
                Err(error!(Invalid, "`k_len` is {len}, but there are only {} keys", shape.keys))
            }
            None => Ok(()),
        }
    }

    /// The segments of a batch row, in the order of their queries. Together they cover all queries.
    /// The mask must have been checked.
    pub(super) fn segments(
        &self,
        batch: usize,
        shape: &Shape,
    ) -> impl Iterator<Item = Segment<'_>> {
        let count = match self.sequences {
            Sequences::Rows { .. } => 1,
            Sequences::Ranges(ranges) => ranges.runs(batch, shape.queries).len(),
        };
        let (shape, mask) = (*shape, *self);
        (0..count).map(move |index| mask.segment(batch, index, &shape))
    }
}

impl<'a> Mask<'a> {
    fn segment(&self, batch: usize, index: usize, shape: &Shape) -> Segment<'a> {
        let (queries, keys, limits) = match self.sequences {
            Sequences::Rows { q_offset, k_len } => {
                let of_row = |values: &[usize]| values[if values.len() == 1 { 0 } else { batch }];
                let first = of_row(q_offset).saturating_add(shape.first_query);
                let first = i64::try_from(first).unwrap_or(i64::MAX).min(i64::MAX / 2);
                let limits = Limits::Position { first, causal: self.causal };
                (0..shape.queries, 0..of_row(k_len), limits)
            }
            Sequences::Ranges(ranges) => {
                let run = &ranges.runs(batch, shape.queries)[index];
                let bounds = &ranges.bounds[run.clone()];
                let row = batch * shape.queries;
                let keys = bounds[0][0] as usize..bounds[bounds.len() - 1][1] as usize;
                (run.start - row..run.end - row, keys, Limits::Ranges(bounds))
            }
        };
        Segment { batch, queries, keys, limits, window: self.window }
    }
}
