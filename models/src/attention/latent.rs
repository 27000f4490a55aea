//! Multi-head latent attention (DeepSeek-AI 2024, section 2.1.1).
//!
//! Legend: b batch, t tokens, d hidden size, h heads, l features of the latent of keys and values, p
//! plain and r rotated features per head of queries and keys, c = p + r, v features per head of
//! values.

use meshgrad_autograd::{Init, Module, ModulePath, Result, Seam, Var, ops};
use meshgrad_mesh::Placement;
use meshgrad_runtime::ops::RopeStyle;
use meshgrad_runtime::{Kind, Tensor};

use super::AttentionSizes;
use crate::layers::Linear;
use crate::norms::RmsNorm;

/// The sizes of latent attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatentSizes {
    /// d.
    pub inputs: usize,
    /// h.
    pub heads: usize,
    /// Features of the latent of queries; `None` for queries without one.
    pub query_latent: Option<usize>,
    /// l.
    pub latent: usize,
    /// p.
    pub plain: usize,
    /// r.
    pub rotated: usize,
    /// v, at most c.
    pub values: usize,
}

/// Projections to narrow latents, and from those to heads. The rotated features of keys are shared by all heads.
#[derive(Clone, Module)]
#[module(crate = meshgrad_autograd)]
pub struct LatentProjections {
    /// From d to the latent of queries.
    pub q_a_proj: Option<Linear>,
    /// Of the latent of queries.
    pub q_a_norm: Option<RmsNorm>,
    /// From the latent of queries, or from d, to h c features.
    pub q_proj: Linear,
    /// From d to the latent of keys and values, and the rotated features of keys: l + r.
    pub kv_a_proj: Linear,
    /// Of the latent of keys and values.
    pub kv_a_norm: RmsNorm,
    /// From l to h (p + v) features.
    pub kv_b_proj: Linear,
    /// How rotated features are paired.
    #[module(skip)]
    pub style: RopeStyle,
    #[module(skip)]
    sizes: LatentSizes,
}

impl LatentProjections {
    pub(super) fn new(at: &ModulePath, sizes: LatentSizes, eps: f64, init: Init) -> Self {
        let LatentSizes { inputs: d, heads: h, latent: l, plain: p, rotated: r, values: v, .. } =
            sizes;
        let linear =
            |name: &str, inputs, outputs| Linear::new(at.sub(name), inputs, outputs).init(init);
        let norm = |name: &str, features| RmsNorm::new(at.sub(name), features, eps);
        LatentProjections {
            q_a_proj: sizes.query_latent.map(|features| linear("q_a_proj", d, features)),
            q_a_norm: sizes.query_latent.map(|features| norm("q_a_layernorm", features)),
            q_proj: match sizes.query_latent {
                Some(features) => linear("q_b_proj", features, h * (p + r)),
                None => linear("q_proj", d, h * (p + r)),
            },
            kv_a_proj: linear("kv_a_proj_with_mqa", d, l + r),
            kv_a_norm: norm("kv_a_layernorm", l),
            kv_b_proj: linear("kv_b_proj", l, h * (p + v)),
            style: RopeStyle::Interleaved,
            sizes,
        }
    }

    /// Its sizes.
    pub fn sizes(&self) -> LatentSizes {
        self.sizes
    }

    /// The sizes of attention itself, in which each head has keys of its own.
    pub(super) fn attention_sizes(&self) -> AttentionSizes {
        let LatentSizes { inputs, heads, plain, rotated, .. } = self.sizes;
        AttentionSizes { inputs, heads, kv_heads: heads, head_dim: plain + rotated }
    }

    /// The projections of tokens that may have biases: those to latents.
    pub(super) fn of_tokens(&mut self) -> Vec<&mut Linear> {
        self.q_a_proj.iter_mut().chain([&mut self.kv_a_proj]).collect()
    }

    pub(super) fn linears(&mut self) -> Vec<&mut Linear> {
        let LatentProjections { q_a_proj, q_proj, kv_a_proj, kv_b_proj, .. } = self;
        q_a_proj.iter_mut().chain([q_proj, kv_a_proj, kv_b_proj]).collect()
    }

    /// Queries, keys and values of the tokens `x_btd`, [b, t, h, c]. Values have zeros after their v features.
    pub(super) fn forward(
        &self,
        input: &Seam,
        x_btd: &Var,
        tables: Option<&(Tensor, Tensor)>,
    ) -> Result<[Var; 3]> {
        let LatentSizes { latent, plain, rotated, values, .. } = self.sizes;
        let x_btd = input.redistribute(x_btd)?;
        let q = match (&self.q_a_proj, &self.q_a_norm) {
            (Some(down), Some(norm)) => norm.forward(&down.forward(&x_btd)?)?,
            _ => x_btd.clone(),
        };
        let q = project_to_heads(&self.q_proj, &q)?;
        let q_bthc = ops::split_last(&q, plain + rotated)?;
        let [q_plain, q_rotated] = pair(&q_bthc, [plain, rotated])?;
        let q_bthc = ops::concat(&[&q_plain, &self.rotate(&q_rotated, tables)?], -1)?;

        let kv = self.kv_a_proj.forward(&x_btd)?;
        let [kv, k_rotated] = pair(&kv, [latent, rotated])?;
        let k_rotated = self.rotate(&ops::split_last(&k_rotated, rotated)?, tables)?;
        let kv = project_to_heads(&self.kv_b_proj, &self.kv_a_norm.forward(&kv)?)?;
        let [k_plain, v] = pair(&ops::split_last(&kv, plain + values)?, [plain, values])?;
        let k_bthc = ops::concat(&[&k_plain, &for_heads(&k_rotated, &k_plain)?], -1)?;
        Ok([q_bthc, k_bthc, with_zeros(&v, plain + rotated)?])
    }

    /// The v features of the result of attention, [b, t, h, c].
    pub(super) fn values(&self, out_bthc: &Var) -> Result<Var> {
        ops::slice(out_bthc, -1, 0..self.sizes.values)
    }

    fn rotate(&self, x: &Var, tables: Option<&(Tensor, Tensor)>) -> Result<Var> {
        match tables {
            Some((cos, sin)) => ops::rope(x, cos, sin, self.style),
            None => Ok(x.clone()),
        }
    }
}

/// `projection` of `x`, which all ranks have, to the heads that each has. The gradient of `x` is added up over ranks
/// here, where it is narrow, because that of the rotated features is whole.
fn project_to_heads(projection: &Linear, x: &Var) -> Result<Var> {
    let weight = projection.weight.sharded_shape();
    let axes = weight.sharding().map(|it| it.axes_of_dim(0)).unwrap_or_default();
    let axes: Vec<_> = axes.into_iter().map(|axis| (axis, Placement::Replicate)).collect();
    projection.forward(&ops::redistribute(x, axes)?)
}

/// Splits the last dim.
fn pair(x: &Var, sizes: [usize; 2]) -> Result<[Var; 2]> {
    let parts = ops::split(x, &sizes, -1)?.try_into();
    Ok(parts.unwrap_or_else(|_| unreachable!("two sizes give two parts")))
}

/// `x` [b, t, 1, r] for each head of `like` [b, t, h, ..], with its shards of heads.
fn for_heads(x: &Var, like: &Var) -> Result<Var> {
    let shape = x.global_shape().with(2, like.global_shape()[2]);
    let x = ops::broadcast_to(x, &shape)?;
    let placements = like.value().sharding().map(|it| it.placements()).unwrap_or_default();
    let of_heads = placements.into_iter().filter(|(_, it)| it.dim() == Some(2));
    let of_heads: Vec<(&str, Placement)> = of_heads.collect();
    match of_heads.is_empty() {
        true => Ok(x),
        false => ops::redistribute(&x, of_heads),
    }
}

/// `x` [.., v] with zeros up to `features`.
fn with_zeros(x: &Var, features: usize) -> Result<Var> {
    let own = x.value().global_extent(-1)?;
    if own == features {
        return Ok(x.clone());
    }
    let one = x.value().slice(-1, 0..1)?;
    let zero = one.sharded_shape().zeros(one.device(), one.dtype(), Kind::Value)?;
    let shape = x.global_shape();
    let zeros = zero.broadcast_to(&shape.with(shape.len() - 1, features - own))?;
    ops::concat(&[x, &Var::constant(zeros)], -1)
}
