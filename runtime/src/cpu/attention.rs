//! Scaled dot-product attention and its gradient on slices, computed block by block. The memory
//! needed is linear in the sequence length.
//!
//! Legend: B batch rows, Tq queries, Tk keys, Hq heads, Hkv key-value heads, D head dimension. Head
//! h of the queries uses key-value head h / (Hq / Hkv).
//!
//! Laws, all tested:
//! - Bits do not depend on the number of threads.
//! - The output of a query does not depend on the other queries: decoding one token with a cache, a
//!   row of documents and a full forward pass give the same bits. This holds because blocks of keys
//!   start at the first key of a sequence or document, and values of different queries are never combined.
//!   Masked elements of k and v must be finite.
//! - For a query that attends to no key, out is 0, lse is minus infinity, and all gradients are 0. The
//!   gradient of its lse is not used.

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
pub(crate) use mask::{KeyRanges, Mask, Sequences};
pub(crate) use real::Element;
pub(crate) use rows::Rows;

use meshgrad_error::ensure;

use crate::Result;
use crate::core::arguments::attention::Shape;

/// The most keys. Masks compare key indices in f32, which is exact up to this number.
const MAX_KEYS: usize = 1 << 24;

/// The operands, the mask and the scale.
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
    /// The keys that each query attends to.
    pub(crate) mask: Mask<'a>,
    /// Factor of q k^T before softmax, usually 1 / sqrt(D).
    pub(crate) scale: f64,
}

impl<E: Element> Attention<'_, E> {
    /// out = softmax(scale q k^T) v, [B, Tq, Hq, D], and lse = ln sum e^(scale q k), [B, Hq, Tq];
    /// both contiguous.
    ///
    /// Computed in f32 (f64 for f64). Needs no workspace.
    ///
    /// # Errors
    /// If the mask does not match the shape, the head dimension is 0, or there are too many keys.
    ///
    /// # Panics
    /// If the operands or the outputs do not match the shape.
    pub(crate) fn forward(&self, out: &mut [E], lse: &mut [E::Real]) -> Result<()> {
        self.check()?;
        let [b, t, h, d] = self.shape.of_queries();
        check_len("out", out.len(), b * t * h * d);
        check_len("lse", lse.len(), b * t * h);

        forward::run(self, out, lse);
        Ok(())
    }

    /// Gradients with respect to q, k and v. Those of k and v are summed over the query heads that
    /// share a key-value head.
    ///
    /// # Errors
    /// As [`Attention::forward`].
    ///
    /// # Panics
    /// If the operands, the gradients or the workspace do not match the shape.
    pub(crate) fn backward(
        &self,
        saved: &Saved<E>,
        gradients: Gradients<E>,
        workspace: &mut [E::Real],
    ) -> Result<()> {
        self.check()?;
        saved.check(&self.shape);
        gradients.check(&self.shape);
        let needed = backward_workspace(&self.shape);
        assert!(workspace.len() >= needed, "the workspace is shorter than `backward_workspace`");

        backward::run(self, saved, gradients, &mut workspace[..needed]);
        Ok(())
    }

    fn check(&self) -> Result<()> {
        let Shape { heads, kv_heads, keys, .. } = self.shape;
        assert!(
            kv_heads != 0 && heads % kv_heads == 0,
            "{heads} query heads are not a multiple of {kv_heads} key-value heads"
        );
        self.shape.check_head_dim()?;
        ensure!(
            keys <= MAX_KEYS,
            Invalid,
            "{keys} keys exceed the limit of 2^24; split the sequence"
        );

        check_rows("q", &self.q, self.shape.of_queries());
        check_rows("k", &self.k, self.shape.of_keys());
        check_rows("v", &self.v, self.shape.of_keys());
        self.mask.check(&self.shape)
    }
}

/// The number of workspace elements (f32, or f64 for f64) that [`Attention::backward`] needs.
pub(crate) fn backward_workspace(shape: &Shape) -> usize {
    slabs::workspace(shape)
}

fn check_rows<T>(name: &str, rows: &Rows<T>, extents: [usize; 4]) {
    let (end, len) = (rows.end(extents), rows.data.len());
    assert!(
        end.is_some_and(|end| end <= len),
        "`{name}` of extents {extents:?} ends at {end:?}, but its memory has {len} elements"
    );
}

fn check_len(name: &str, len: usize, needed: usize) {
    assert_eq!(len, needed, "elements of `{name}`");
}
