//! Extents and masks of attention, and their errors.

use crate::Tensor;

/// Which keys a query attends to: those that no condition masks out.
#[derive(Clone, Debug, Default)]
pub struct AttentionMask {
    /// Masks out keys after the query's position.
    pub causal: bool,
    /// Masks out keys at or before the query's position minus this. With `causal`, a query attends to
    /// itself and the `window` - 1 keys before it (Hugging Face's `sliding_window`).
    pub window: Option<usize>,
    /// The positions of queries and keys.
    pub sequences: AttentionSequences,
}

/// The positions of queries and keys in their sequences. Values that change from step to step are
/// tensors.
#[derive(Clone, Debug, Default)]
pub enum AttentionSequences {
    /// Each row of the batch is one sequence; queries and keys start at position 0.
    #[default]
    Rows,
    /// Each row of the batch is one sequence whose keys are in a cache.
    Cached {
        /// Position of the first query, i64 \[B\] or \[1\].
        q_offset: Tensor,
        /// The number of valid keys, i64 \[B\] or \[1\]. Other keys are never read.
        k_len: Tensor,
    },
    /// The batch is one row (B = 1) of concatenated sequences; a query attends to keys of its own
    /// sequence only.
    Packed {
        /// Offsets of the queries of each sequence, and their end, i64 or i32 [N + 1].
        cu_seqlens_q: Tensor,
        /// Offsets of the keys of each sequence, and their end, i64 or i32 [N + 1].
        cu_seqlens_k: Tensor,
    },
}

impl AttentionMask {
    /// Each query attends to itself and the keys before it.
    pub fn causal() -> AttentionMask {
        AttentionMask {
            causal: true,
            ..AttentionMask::default()
        }
    }

    /// The number of (query, key) pairs per row, for counting FLOPs. Cached and packed sequences count
    /// in full, because only the device knows their lengths.
    pub(crate) fn pairs(&self, queries: usize, keys: usize) -> u64 {
        let whole = matches!(self.sequences, AttentionSequences::Rows) && self.causal;
        let window = self.window.unwrap_or(usize::MAX);
        match whole && queries == keys {
            true => (1..=queries).map(|seen| seen.min(window) as u64).sum(),
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

/// An invalid argument of attention.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttentionError {
    /// The number of query heads is not a multiple of the number of key-value heads.
    #[error("{heads} query heads are not a multiple of {kv_heads} key-value heads")]
    Heads {
        /// Hq.
        heads: usize,
        /// Hkv.
        kv_heads: usize,
    },
    /// The head dimension is 0.
    #[error("the head dimension is 0; it must be at least 1")]
    HeadDim,
    /// More keys than f32 counts exactly.
    #[error("{keys} keys exceed the limit of 2^24; split the sequence")]
    TooManyKeys {
        /// Tk.
        keys: usize,
    },
    /// A view is out of bounds.
    #[error(
        "`{name}` of extents {extents:?} ends at element {end}, but its memory has {len} elements"
    )]
    OutOfBounds {
        /// The operand.
        name: &'static str,
        /// Its extents.
        extents: [usize; 4],
        /// One past the last element of the view.
        end: usize,
        /// Elements in its memory.
        len: usize,
    },
    /// A contiguous operand has the wrong length.
    #[error("`{name}` has {len} elements, but the shape requires {needed}")]
    Length {
        /// The operand.
        name: &'static str,
        /// Elements given.
        len: usize,
        /// Elements needed.
        needed: usize,
    },
    /// The workspace is too small.
    #[error("the workspace has {len} elements, but `backward_workspace` requires {needed}")]
    Workspace {
        /// Elements given.
        len: usize,
        /// Elements needed.
        needed: usize,
    },
    /// A per-row argument has the wrong number of values.
    #[error("`{name}` has {len} values; pass 1 value, or one per batch row ({batch})")]
    PerRow {
        /// The argument.
        name: &'static str,
        /// Values given.
        len: usize,
        /// B.
        batch: usize,
    },
    /// More valid keys than keys.
    #[error("`k_len` is {len}, but there are only {keys} keys")]
    KeyLength {
        /// The value given.
        len: usize,
        /// Tk.
        keys: usize,
    },
    /// Packed sequences with more than one batch row.
    #[error("packed sequences require a batch of 1, not {batch}; concatenate the rows")]
    PackedBatch {
        /// B.
        batch: usize,
    },
    /// Offsets do not partition the packed dim.
    #[error("`{name}` must be non-decreasing from 0 to {end}, the length of the packed dim")]
    Offsets {
        /// The argument.
        name: &'static str,
        /// The required last offset.
        end: usize,
    },
    /// Queries and keys have different numbers of sequences.
    #[error("`cu_seqlens_q` has {queries} sequences, but `cu_seqlens_k` has {keys}")]
    Sequences {
        /// Sequences in `cu_seqlens_q`.
        queries: usize,
        /// Sequences in `cu_seqlens_k`.
        keys: usize,
    },
}
