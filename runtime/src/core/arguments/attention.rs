//! Extents and masks of attention, and their errors.

use meshgrad_error::ensure;

use crate::{Result, Tensor};

/// The conditions that mask out keys. A query attends to every other key.
#[derive(Clone, Debug, Default)]
pub struct AttentionMask {
    /// Masks out keys after the query's position. Masks nothing of [`AttentionSequences::Ranges`].
    pub causal: bool,
    /// Masks out keys at positions up to the query's position - `window`. With `causal`, a query
    /// attends to itself and the `window` - 1 keys before it (Hugging Face's `sliding_window`).
    pub window: Option<usize>,
    /// The positions of queries and keys.
    pub sequences: AttentionSequences,
}

/// The positions of queries and keys in their sequences. Values that change from step to step are
/// tensors.
#[derive(Clone, Debug, Default)]
pub enum AttentionSequences {
    /// Each row of the batch is one sequence; queries and keys start at position 0. The positions
    /// of sharded queries count from the start of the global tensor.
    #[default]
    Rows,
    /// Each row of the batch is one sequence whose keys are in a cache.
    Cached {
        /// Position of the first query, i64 \[B\] or \[1\].
        q_offset: Tensor,
        /// The number of valid keys, i64 \[B\] or \[1\]. Other keys are never read.
        k_len: Tensor,
    },
    /// Each query sees the keys of one range: i32 [B, T, 2], the first key and the end. Along T
    /// neither decreases, as in rows of concatenated documents, whose queries see the keys from the
    /// start of their document on ([`visible_keys`](crate::ops::visible_keys) finds them). An empty
    /// range sees no key. The end of a range says what `causal` would, and `window` keeps the last
    /// keys of each range.
    Ranges(Tensor),
}

impl AttentionMask {
    /// Each query attends to itself and the keys before it.
    pub fn causal() -> AttentionMask {
        AttentionMask { causal: true, ..AttentionMask::default() }
    }

    /// The number of (query, key) pairs per row, for counting FLOPs. The queries start at position
    /// `first`. Lengths on the device do not count: cached sequences count as if nothing but the
    /// window were masked, and ranges as one sequence.
    pub(crate) fn pairs(&self, first: usize, queries: usize, keys: usize) -> u64 {
        let end = first + queries;
        let is_cached = matches!(self.sequences, AttentionSequences::Cached { .. });
        let window = self.window.unwrap_or(usize::MAX);
        match self.causal && !is_cached && end <= keys {
            true => (first + 1..=end).map(|seen| seen.min(window) as u64).sum(),
            false => (queries * keys.min(window)) as u64,
        }
    }
}

/// The extents of the operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// B.
    pub(crate) batch: usize,
    /// Tq.
    pub(crate) queries: usize,
    /// Tk.
    pub(crate) keys: usize,
    /// Hq, a multiple of Hkv.
    pub(crate) heads: usize,
    /// Hkv.
    pub(crate) kv_heads: usize,
    /// D.
    pub(crate) head_dim: usize,
    /// The index of the first query in the global tensor, if the operand is a part of it.
    pub(crate) first_query: usize,
}

/// What both kinds of devices check.
impl Shape {
    /// # Errors
    /// When the head dimension is 0.
    pub(crate) fn check_head_dim(&self) -> Result<()> {
        ensure!(self.head_dim > 0, Invalid, "the head dimension is 0; it must be at least 1");
        Ok(())
    }

    /// # Errors
    /// When a list of the mask has another number of values than 1 or the batch.
    pub(crate) fn check_per_row(&self, name: &str, values: usize) -> Result<()> {
        let Shape { batch, .. } = self;
        ensure!(
            values == 1 || values == *batch,
            Invalid,
            "`{name}` has {values} values; pass 1 value, or one per batch row ({batch})"
        );
        Ok(())
    }
}

impl Shape {
    /// Query heads per key-value head.
    pub(crate) fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Extents of queries and outputs.
    pub(crate) fn of_queries(&self) -> [usize; 4] {
        [self.batch, self.queries, self.heads, self.head_dim]
    }

    /// Extents of keys and values.
    pub(crate) fn of_keys(&self) -> [usize; 4] {
        [self.batch, self.keys, self.kv_heads, self.head_dim]
    }
}
