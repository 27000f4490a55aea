//! Queries in groups that share a key-value head (Ainslie et al. 2023).
//!
//! Legend: b batch, t tokens, d hidden size, h query heads, g key-value heads, c features per head.

use meshgrad_autograd::{Init, Module, ModulePath, Result, Seam, Var, ops};
use meshgrad_runtime::Tensor;
use meshgrad_runtime::ops::RopeStyle;

use crate::layers::Linear;
use crate::norms::RmsNorm;

/// The sizes of attention.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttentionSizes {
    /// d.
    pub inputs: usize,
    /// h.
    pub heads: usize,
    /// g, a divisor of h.
    pub kv_heads: usize,
    /// c.
    pub head_dim: usize,
}

/// One projection each for queries, keys and values.
#[derive(Clone, Module)]
#[module(crate = meshgrad_autograd)]
pub struct GroupedProjections {
    /// From d to h c features.
    pub q_proj: Linear,
    /// From d to g c features.
    pub k_proj: Linear,
    /// From d to g c features.
    pub v_proj: Linear,
    /// Of queries, before their rotation: over the c features of a head, or over all h c.
    pub q_norm: Option<RmsNorm>,
    /// Of keys, before their rotation: over the c features of a head, or over all g c.
    pub k_norm: Option<RmsNorm>,
    /// c.
    pub head_dim: usize,
}

impl GroupedProjections {
    pub(super) fn new(at: &ModulePath, sizes: AttentionSizes, init: Init) -> GroupedProjections {
        let AttentionSizes { inputs: d, heads: h, kv_heads: g, head_dim: c } = sizes;
        let linear = |name: &str, outputs| Linear::new(at.sub(name), d, outputs).init(init);
        GroupedProjections {
            q_proj: linear("q_proj", h * c),
            k_proj: linear("k_proj", g * c),
            v_proj: linear("v_proj", g * c),
            q_norm: None,
            k_norm: None,
            head_dim: c,
        }
    }

    pub(super) fn sizes(&self) -> AttentionSizes {
        let [of_queries, inputs] = [0, 1].map(|dim| self.q_proj.weight.shape()[dim]);
        let [heads, kv_heads] =
            [of_queries, self.k_proj.weight.shape()[0]].map(|features| features / self.head_dim);
        AttentionSizes { inputs, heads, kv_heads, head_dim: self.head_dim }
    }

    /// Whether its norms are of all heads together.
    pub(crate) fn has_joint_norms(&self) -> bool {
        [&self.q_norm, &self.k_norm].into_iter().flatten().any(|norm| self.is_joint(norm))
    }

    fn is_joint(&self, norm: &RmsNorm) -> bool {
        norm.weight.shape()[0] != self.head_dim
    }

    /// Queries, keys and values of the tokens `x_btd`, [b, t, heads, c], rotated by the angles of `tables`.
    pub(super) fn forward(
        &self,
        input: &Seam,
        x_btd: &Var,
        tables: Option<&(Tensor, Tensor)>,
    ) -> Result<[Var; 3]> {
        let projections = [&self.q_proj, &self.k_proj, &self.v_proj];
        let [q, k, v] = Linear::forward_after(input, x_btd, projections)?;
        let q_bthc = self.heads(q, self.q_norm.as_ref(), tables)?;
        let k_btgc = self.heads(k, self.k_norm.as_ref(), tables)?;
        Ok([q_bthc, k_btgc, ops::split_last(&v, self.head_dim)?])
    }

    /// The heads of queries or keys `x` [b, t, heads c], normalized and rotated: [b, t, heads, c].
    fn heads(
        &self,
        x: Var,
        norm: Option<&RmsNorm>,
        tables: Option<&(Tensor, Tensor)>,
    ) -> Result<Var> {
        let (x, of_heads) = match norm {
            Some(norm) if self.is_joint(norm) => (norm.forward(&x)?, None),
            norm => (x, norm),
        };
        let x = ops::split_last(&x, self.head_dim)?;
        match (of_heads, tables) {
            (Some(norm), Some((cos, sin))) => norm.forward_rotated(&x, cos, sin),
            (None, Some((cos, sin))) => ops::rope(&x, cos, sin, RopeStyle::Half),
            (Some(norm), None) => norm.forward(&x),
            (None, None) => Ok(x),
        }
    }
}
