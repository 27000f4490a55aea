//! Errors of attention.

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
    /// The number of keys exceeds 2^24, up to which f32 represents every integer.
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
    /// `k_len` exceeds the number of keys.
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
