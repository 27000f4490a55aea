//! The number of parameters of a configuration.

use super::Qwen3Config;
use super::validate::MAX_LAYERS;

/// Parameters of a model by kind, over all layers. Counts saturate instead of overflowing.
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
    /// MLPs of dense layers.
    pub dense_mlp: u64,
    /// Routers of sparse layers.
    pub routers: u64,
    /// All experts of sparse layers.
    pub experts: u64,
    /// Experts of sparse layers that are active for one token.
    pub active_experts: u64,
}

impl ParameterCount {
    /// All parameters; a tied table counts once.
    pub fn total(&self) -> u64 {
        self.always_active().saturating_add(self.experts)
    }

    /// Parameters that are active for one token: all but its inactive experts. This is the "A3B" of
    /// Qwen3-30B-A3B.
    pub fn active(&self) -> u64 {
        self.always_active().saturating_add(self.active_experts)
    }

    /// Parameters that one token is multiplied by: [`active`](Self::active) without the embedding
    /// lookup.
    pub fn active_in_matmuls(&self) -> u64 {
        let head = if self.lm_head == 0 { self.embedding } else { self.lm_head };
        let tables = self.embedding.saturating_add(self.lm_head);
        self.active().saturating_sub(tables).saturating_add(head)
    }

    fn always_active(&self) -> u64 {
        [self.lm_head, self.attention, self.norms, self.dense_mlp, self.routers]
            .into_iter()
            .fold(self.embedding, u64::saturating_add)
    }
}

impl Qwen3Config {
    /// Floating-point operations with which a step trains a token of sequences of `tokens` tokens,
    /// without recomputation: 6 per parameter that the token is multiplied by, and 6 L H Q T for
    /// attention, with L layers and H heads of Q features. That is the count of Chowdhery et al. (2022,
    /// PaLM, appendix B) with half of its attention, because a mask is causal.
    pub fn flops_per_token(&self, tokens: usize) -> f64 {
        let products = 6.0 * self.parameter_count().active_in_matmuls() as f64;
        let features = (self.num_attention_heads * self.head_dim()) as f64;
        products + 6.0 * self.num_hidden_layers as f64 * features * tokens as f64
    }

    /// Counts the parameters of a valid configuration. Nothing is allocated.
    pub fn parameter_count(&self) -> ParameterCount {
        let layers = self.num_hidden_layers.min(MAX_LAYERS);
        let sparse = (0..layers).filter(|layer| self.is_moe_layer(*layer)).count();
        let (hidden, head_dim) = (self.hidden_size, self.head_dim());
        let heads_and_kv = self.num_attention_heads.saturating_add(self.num_kv_heads());

        // q and o have heads * head_dim * hidden elements, k and v kv_heads * head_dim * hidden.
        let projections = product(&[2, heads_and_kv, head_dim, hidden]);
        let biases = if self.attention_bias {
            // q, k and v, then o.
            let kv = product(&[2, self.num_kv_heads(), head_dim]);
            let q = product(&[self.num_attention_heads, head_dim]);
            kv.saturating_add(q).saturating_add(hidden as u64)
        } else {
            0
        };
        let attention = projections.saturating_add(biases).saturating_add(product(&[2, head_dim]));

        let table = product(&[self.vocab_size, hidden]);
        let expert = [3, self.moe_intermediate_size, hidden];
        let in_experts = |count: usize| product(&expert).saturating_mul(product(&[count, sparse]));
        ParameterCount {
            embedding: table,
            lm_head: if self.tie_word_embeddings { 0 } else { table },
            attention: attention.saturating_mul(layers as u64),
            norms: product(&[2, layers, hidden]).saturating_add(hidden as u64),
            dense_mlp: product(&[3, self.intermediate_size, hidden, layers - sparse]),
            routers: product(&[self.num_experts, hidden, sparse]),
            experts: in_experts(self.num_experts),
            active_experts: in_experts(self.num_experts_per_tok),
        }
    }
}

fn product(factors: &[usize]) -> u64 {
    factors.iter().fold(1, |product: u64, factor| product.saturating_mul(*factor as u64))
}
