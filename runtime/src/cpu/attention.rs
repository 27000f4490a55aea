//! Scaled dot-product attention and its gradient on plain memory, block by block: memory is linear
//! in the sequence.
//!
//! Legend: B batch rows, Tq queries, Tk keys, Hq heads, Hkv key-value heads, D head dimension. Head
//! h of the queries uses key-value head h / (Hq / Hkv).
//!
//! Laws, each tested:
//! - Bits do not depend on the number of threads.
//! - The output of a query does not depend on the other queries: decoding one token against a
//!   cache, a packed batch and a full forward pass give the same bits. (Blocks of keys are counted
//!   from a sequence's first key, and a query's numbers meet no other query's.) Numbers that a mask
//!   hides must be finite all the same.
//! - A query that sees no key gives 0, log-sum-exp minus infinity, and no gradient.

mod backward;
mod forward;
mod group;
mod mask;
mod product;
mod real;
mod rows;
mod scratch;
mod slabs;
#[cfg(test)]
mod tests;

pub(crate) use backward::{Gradients, Saved};
pub(crate) use mask::{Mask, Offsets, Sequences};
pub(crate) use real::Element;
pub(crate) use rows::Rows;

/// Keys are counted in f32 where masks are compared.
const MAX_KEYS: usize = 1 << 24;

/// Extents of one attention.
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
    /// Query heads of one key-value head.
    fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Extents of queries and outputs.
    fn of_queries(&self) -> [usize; 4] {
        [self.batch, self.queries, self.heads, self.head_dim]
    }

    /// Extents of keys and values.
    fn of_keys(&self) -> [usize; 4] {
        [self.batch, self.keys, self.kv_heads, self.head_dim]
    }
}

/// One attention: operands, mask and scale.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attention<'a, E> {
    /// Extents of the operands.
    pub(crate) shape: Shape,
    /// Queries, [B, Tq, Hq, D].
    pub(crate) q: Rows<'a, E>,
    /// Keys, [B, Tk, Hkv, D].
    pub(crate) k: Rows<'a, E>,
    /// Values, [B, Tk, Hkv, D].
    pub(crate) v: Rows<'a, E>,
    /// Which keys a query sees.
    pub(crate) mask: Mask<'a>,
    /// Factor of q k before softmax, usually 1 / sqrt(D).
    pub(crate) scale: f64,
}

impl<E: Element> Attention<'_, E> {
    /// out = softmax(scale q k^T) v, [B, Tq, Hq, D], and lse = ln sum e^(scale q k), [B, Hq, Tq];
    /// both dense.
    ///
    /// Computed in f32 (f64 for f64). Needs no workspace.
    ///
    /// # Errors
    /// When the operands, the outputs or the mask do not fit the shape.
    pub(crate) fn forward(&self, out: &mut [E], lse: &mut [E::Real]) -> Result<(), AttentionError> {
        self.check()?;
        let [b, t, h, d] = self.shape.of_queries();
        check_len("out", out.len(), b * t * h * d)?;
        check_len("lse", lse.len(), b * t * h)?;

        forward::run(self, out, lse);
        Ok(())
    }

    /// Gradients of a loss with respect to q, k and v; those of k and v are sums over the heads of
    /// a group.
    ///
    /// # Errors
    /// When the operands, the gradients, the workspace or the mask do not fit the shape.
    pub(crate) fn backward(
        &self,
        saved: &Saved<E>,
        gradients: Gradients<E>,
        workspace: &mut [E::Real],
    ) -> Result<(), AttentionError> {
        self.check()?;
        saved.check(&self.shape)?;
        gradients.check(&self.shape)?;
        let needed = backward_workspace(&self.shape);
        if workspace.len() < needed {
            return Err(AttentionError::Workspace {
                len: workspace.len(),
                needed,
            });
        }

        backward::run(self, saved, gradients, &mut workspace[..needed]);
        Ok(())
    }

    fn check(&self) -> Result<(), AttentionError> {
        let Shape {
            heads,
            kv_heads,
            keys,
            ..
        } = self.shape;
        if kv_heads == 0 || heads % kv_heads != 0 {
            return Err(AttentionError::Heads { heads, kv_heads });
        }
        if self.shape.head_dim == 0 {
            return Err(AttentionError::HeadDim);
        }
        if keys > MAX_KEYS {
            return Err(AttentionError::TooManyKeys { keys });
        }

        check_rows("q", &self.q, self.shape.of_queries())?;
        check_rows("k", &self.k, self.shape.of_keys())?;
        check_rows("v", &self.v, self.shape.of_keys())?;
        self.mask.check(&self.shape)
    }
}

/// Elements (f32, or f64 for f64) that [`Attention::backward`] needs as workspace.
pub(crate) fn backward_workspace(shape: &Shape) -> usize {
    slabs::workspace(shape)
}

/// What is wrong with the arguments.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttentionError {
    /// Groups of query heads must be equal.
    #[error(
        "{heads} query heads cannot share {kv_heads} key-value heads: the first must be a multiple"
    )]
    Heads {
        /// Hq.
        heads: usize,
        /// Hkv.
        kv_heads: usize,
    },
    /// No features.
    #[error("the head dimension is 0")]
    HeadDim,
    /// More keys than masks can count.
    #[error("{keys} keys are more than 2^24; split the sequence")]
    TooManyKeys {
        /// Tk.
        keys: usize,
    },
    /// A view reaches beyond its memory.
    #[error("`{name}` of extents {extents:?} reaches element {end}, its memory has {len}")]
    OutOfBounds {
        /// The operand.
        name: &'static str,
        /// Its extents.
        extents: [usize; 4],
        /// One past the last element it reaches.
        end: usize,
        /// Elements of its memory.
        len: usize,
    },
    /// A dense operand has the wrong length.
    #[error("`{name}` has {len} elements, the shape asks for {needed}")]
    Length {
        /// The operand.
        name: &'static str,
        /// Elements given.
        len: usize,
        /// Elements needed.
        needed: usize,
    },
    /// The workspace is too small.
    #[error("the workspace has {len} elements, `backward_workspace` asks for {needed}")]
    Workspace {
        /// Elements given.
        len: usize,
        /// Elements needed.
        needed: usize,
    },
    /// A value a batch row is missing.
    #[error("`{name}` has {got} values; give 1, or one for each of the {batch} batch rows")]
    PerRow {
        /// The argument.
        name: &'static str,
        /// Values given.
        got: usize,
        /// B.
        batch: usize,
    },
    /// More valid keys than keys.
    #[error("`k_len` {len} is more than the {keys} keys there are")]
    KeyLength {
        /// The value given.
        len: usize,
        /// Tk.
        keys: usize,
    },
    /// Packed sequences are one batch row.
    #[error("packed sequences need a batch of 1, not {batch}: join the rows end to end")]
    PackedBatch {
        /// B.
        batch: usize,
    },
    /// Offsets that are no partition of the axis.
    #[error("`{name}` must rise from 0 to {end}, the length of the packed axis")]
    Offsets {
        /// The argument.
        name: &'static str,
        /// What the last offset must be.
        end: usize,
    },
    /// Queries and keys are packed from different numbers of sequences.
    #[error("`cu_seqlens_q` has {queries} sequences, `cu_seqlens_k` has {keys}")]
    Sequences {
        /// In `cu_seqlens_q`.
        queries: usize,
        /// In `cu_seqlens_k`.
        keys: usize,
    },
}

fn check_rows<T>(
    name: &'static str,
    rows: &Rows<T>,
    extents: [usize; 4],
) -> Result<(), AttentionError> {
    let len = rows.data.len();
    match rows.end(extents) {
        Some(end) if end <= len => Ok(()),
        end => {
            let end = end.unwrap_or(usize::MAX);
            Err(AttentionError::OutOfBounds {
                name,
                extents,
                end,
                len,
            })
        }
    }
}

fn check_len(name: &'static str, len: usize, needed: usize) -> Result<(), AttentionError> {
    if len == needed {
        Ok(())
    } else {
        Err(AttentionError::Length { name, len, needed })
    }
}
