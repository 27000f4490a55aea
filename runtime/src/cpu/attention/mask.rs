//! Attention masks. Under every supported mask a query attends to one range of keys, which is all
//! that the kernels use.

use std::ops::Range;

use meshgrad_error::error;

use super::Shape;
use crate::Result;
use crate::core::arguments::attention::{bad_offsets, check_sequences};

/// Offsets of packed sequences: N + 1 non-decreasing numbers from 0 to the length of the packed
/// dim.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offsets<'a>(pub(crate) &'a [i64]);

impl Offsets<'_> {
    fn len(self) -> usize {
        self.0.len()
    }

    /// The offsets must have been checked, so that they are not negative.
    fn get(self, index: usize) -> usize {
        self.0[index] as usize
    }

    fn check(self, name: &str, end: usize) -> Result<()> {
        let rises = self.0.is_sorted();
        let spans = self.0.first() == Some(&0) && self.0.last() == Some(&(end as i64));
        match rises && spans {
            true => Ok(()),
            false => Err(bad_offsets(name, end)),
        }
    }
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
    /// The batch has one row, which holds several concatenated sequences. A query attends only to
    /// keys of its own sequence. If a sequence has fewer queries than keys, the queries are at its
    /// last positions (as in flash attention).
    Packed {
        /// The start of each sequence's queries, and the total.
        cu_seqlens_q: Offsets<'a>,
        /// The start of each sequence's keys, and the total.
        cu_seqlens_k: Offsets<'a>,
    },
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

/// The queries of one sequence and its keys.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    pub(super) batch: usize,
    /// Range in the dim of queries.
    pub(super) queries: Range<usize>,
    /// Range in the dim of keys. Blocks of keys start at its start.
    pub(super) keys: Range<usize>,
    /// Position of the first query among the keys.
    first_position: i64,
    causal: bool,
    window: Option<usize>,
}

impl Segment {
    /// The keys that query `t` (an index into the dim of queries) attends to, relative to the first
    /// key of the segment.
    #[inline(always)]
    pub(super) fn visible(&self, t: usize) -> Range<usize> {
        let len = self.keys.len() as i64;
        let position = self.first_position + (t - self.queries.start) as i64;

        let end = if self.causal { (position + 1).clamp(0, len) } else { len };
        let start = match self.window {
            Some(window) => {
                position.saturating_add(1).saturating_sub_unsigned(window as u64).clamp(0, end)
            }
            None => 0,
        };
        start as usize..end as usize
    }
}

impl Mask<'_> {
    /// # Errors
    /// If lengths or offsets do not match the shape.
    pub(super) fn check(&self, shape: &Shape) -> Result<()> {
        match self.sequences {
            Sequences::Rows { q_offset, k_len } => {
                shape.check_per_row("q_offset", q_offset.len())?;
                shape.check_per_row("k_len", k_len.len())?;
                match k_len.iter().find(|len| **len > shape.keys) {
                    Some(&len) => Err(error!(
                        Invalid,
                        "`k_len` is {len}, but there are only {} keys", shape.keys
                    )),
                    None => Ok(()),
                }
            }
            Sequences::Packed { cu_seqlens_q, cu_seqlens_k } => {
                shape.check_packed()?;
                cu_seqlens_q.check("cu_seqlens_q", shape.queries)?;
                cu_seqlens_k.check("cu_seqlens_k", shape.keys)?;
                check_sequences(cu_seqlens_q.len() - 1, cu_seqlens_k.len() - 1)
            }
        }
    }

    /// The segments of a batch row, in the order of their queries. Together they cover all queries.
    /// The mask must have been checked.
    pub(super) fn segments(&self, batch: usize, shape: &Shape) -> impl Iterator<Item = Segment> {
        let count = match self.sequences {
            Sequences::Rows { .. } => 1,
            Sequences::Packed { cu_seqlens_q, .. } => cu_seqlens_q.len() - 1,
        };

        let (shape, mask) = (*shape, *self);
        (0..count).map(move |index| {
            let (queries, keys, first_position) = mask.extents(batch, index, &shape);
            let (causal, window) = (mask.causal, mask.window);
            Segment { batch, queries, keys, first_position, causal, window }
        })
    }

    fn extents(
        &self,
        batch: usize,
        index: usize,
        shape: &Shape,
    ) -> (Range<usize>, Range<usize>, i64) {
        match self.sequences {
            Sequences::Rows { q_offset, k_len } => {
                let of_row = |values: &[usize]| values[if values.len() == 1 { 0 } else { batch }];
                let first = of_row(q_offset).saturating_add(shape.first_query);
                let first = i64::try_from(first).unwrap_or(i64::MAX).min(i64::MAX / 2);
                (0..shape.queries, 0..of_row(k_len), first)
            }
            Sequences::Packed { cu_seqlens_q, cu_seqlens_k } => {
                let queries = cu_seqlens_q.get(index)..cu_seqlens_q.get(index + 1);
                let keys = cu_seqlens_k.get(index)..cu_seqlens_k.get(index + 1);
                let first = keys.len() as i64 - queries.len() as i64;
                (queries, keys, first)
            }
        }
    }
}
