//! What each part of a decoder knows of the whole.

use std::collections::BTreeSet;
use std::sync::Arc;

use meshgrad_autograd::Module;

use crate::attention::AttentionSizes;
use crate::family::FamilyConfig;
use crate::layer::FeedForward;
use crate::parts::Parts;

/// What each part of a decoder knows of the whole.
pub(super) struct Whole {
    pub(super) config: Arc<dyn FamilyConfig>,
    /// Whether each layer has experts.
    pub(super) sparse: Vec<bool>,
    pub(super) attention: AttentionSizes,
    /// The numbers of experts of a sparse layer, and of those that a token has; 0 without sparse layers.
    pub(super) experts: usize,
    pub(super) top_k: usize,
    pub(super) parameters: ParameterCount,
    /// The names of the buffers that the family has.
    pub(super) buffers: BTreeSet<String>,
}

impl Whole {
    pub(super) fn of(config: Arc<dyn FamilyConfig>, parts: &Parts) -> Whole {
        let moe = parts.layers.iter().find_map(|layer| layer.mlp.sparse());
        let attention = parts.layers.first().map(|layer| layer.self_attn.sizes());
        Whole {
            config,
            sparse: parts.layers.iter().map(|layer| layer.mlp.sparse().is_some()).collect(),
            attention: attention.unwrap_or_default(),
            experts: moe.map_or(0, |moe| moe.router.experts()),
            top_k: moe.map_or(0, |moe| moe.router.top_k),
            parameters: ParameterCount::of(parts),
            buffers: parts.layers.buffers().iter().map(|it| it.name().to_owned()).collect(),
        }
    }

    /// Floating-point operations with which a step trains a token of sequences of `tokens` tokens,
    /// without recomputation: 6 per parameter that the token is multiplied by, and 6 L H Q T for
    /// attention, with L layers and H heads of Q features. That is the count of Chowdhery et al. (2022,
    /// PaLM, appendix B) with half of its attention, because a mask is causal.
    pub(super) fn flops_per_token(&self, tokens: usize) -> f64 {
        let products = 6.0 * self.parameters.active_in_matmuls() as f64;
        let features = (self.attention.heads * self.attention.head_dim) as f64;
        products + 6.0 * self.sparse.len() as f64 * features * tokens as f64
    }
}

/// Parameters of a model by kind, over all layers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ParameterCount {
    /// The embedding table.
    pub embedding: u64,
    /// The output projection; 0 if it shares the embedding table.
    pub lm_head: u64,
    /// Projections of attention, their biases, and the norms of queries and keys.
    pub attention: u64,
    /// The other norms.
    pub norms: u64,
    /// MLPs of dense layers, and experts that all tokens have.
    pub dense_mlp: u64,
    /// Routers of sparse layers.
    pub routers: u64,
    /// All experts of sparse layers.
    pub experts: u64,
    /// Experts of sparse layers that are active for one token.
    pub active_experts: u64,
}

impl ParameterCount {
    fn of(parts: &Parts) -> ParameterCount {
        let table = &parts.embedding.weight;
        let mut count = ParameterCount { embedding: elements(table.shape()), ..Default::default() };
        if parts.head.weight.name() != table.name() {
            count.lm_head = elements(parts.head.weight.shape());
        }
        count.norms = all(&parts.head.norm);
        for layer in &parts.layers {
            count.norms += layer.norms().map(all).sum::<u64>();
            count.attention += all(&layer.self_attn);
            match &layer.mlp {
                FeedForward::Dense(mlp) => count.dense_mlp += all(mlp),
                FeedForward::Plain(mlp) => count.dense_mlp += all(mlp),
                FeedForward::Sparse(moe) => {
                    let experts =
                        [&moe.gate_up_proj, &moe.down_proj].map(|it| elements(it.shape()));
                    let experts = experts.iter().sum::<u64>();
                    count.routers += elements(moe.router.gate.shape());
                    count.dense_mlp += moe.shared.as_ref().map_or(0, all);
                    count.experts += experts;
                    count.active_experts +=
                        experts / moe.router.experts() as u64 * moe.router.top_k as u64;
                }
            }
        }
        count
    }

    /// All parameters; a tied table counts once.
    pub fn total(&self) -> u64 {
        self.always_active() + self.experts
    }

    /// Parameters that are active for one token: all but its inactive experts. This is the "A3B" of
    /// Qwen3-30B-A3B.
    pub fn active(&self) -> u64 {
        self.always_active() + self.active_experts
    }

    /// Parameters that one token is multiplied by: [`active`](Self::active) without the embedding
    /// lookup.
    pub fn active_in_matmuls(&self) -> u64 {
        let head = if self.lm_head == 0 { self.embedding } else { self.lm_head };
        self.active() - self.embedding - self.lm_head + head
    }

    fn always_active(&self) -> u64 {
        let layers = self.attention + self.norms + self.dense_mlp + self.routers;
        self.embedding + self.lm_head + layers
    }
}

fn elements(shape: &[usize]) -> u64 {
    shape.iter().map(|extent| *extent as u64).product()
}

/// The parameters of a block.
fn all<M: Module>(block: &M) -> u64 {
    let mut seen = BTreeSet::new();
    let params = block.params().into_iter().filter(|param| seen.insert(param.name().to_owned()));
    params.map(|param| elements(param.shape())).sum()
}
