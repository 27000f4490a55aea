//! OLMoE (Muennighoff et al. 2024).

use meshgrad_autograd::ModulePath;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::llama_like::{LlamaKeys, LlamaLike};
use crate::attention::Attention;
use crate::config::checks::{check_experts, check_numbers};
use crate::config::json::unify;
use crate::layer::FeedForward;
use crate::norms::RmsNorm;

/// The configuration of an OLMoE. `intermediate_size` is that of an expert.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OlmoeConfig {
    /// What it has in common with other families.
    #[serde(flatten)]
    pub keys: LlamaKeys,
    /// Experts of a layer.
    pub num_experts: usize,
    /// Experts per token.
    pub num_experts_per_tok: usize,
    /// Whether the weights of a token's experts are divided by their sum. Default false.
    #[serde(default)]
    pub norm_topk_prob: bool,
    /// Whether the projections of attention (q, k, v and o) have a bias. Default false.
    #[serde(default)]
    pub attention_bias: bool,
    /// The largest absolute value of queries, keys and values; only none is supported.
    #[serde(default)]
    pub clip_qkv: Option<f64>,
    /// Weight of the load-balancing loss. Default 0.01.
    #[serde(default = "default_router_aux_loss_coef")]
    pub router_aux_loss_coef: f64,
    /// Whether transformers adds the load-balancing loss. Default false.
    #[serde(default)]
    pub output_router_logits: bool,
}

impl LlamaLike for OlmoeConfig {
    const MODEL_TYPE: &'static str = "olmoe";
    const ARCHITECTURE: &'static str = "OlmoeForCausalLM";
    const KEYS: &'static [&'static str] = &[
        "num_experts",
        "num_experts_per_tok",
        "norm_topk_prob",
        "attention_bias",
        "clip_qkv",
        "router_aux_loss_coef",
        "output_router_logits",
    ];

    fn defaults() -> Value {
        json!({
            "model_type": "olmoe",
            "vocab_size": 50304,
            "hidden_size": 2048,
            "intermediate_size": 2048,
            "num_hidden_layers": 16,
            "num_attention_heads": 16,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
            "num_experts": 64,
            "num_experts_per_tok": 8,
            "pad_token_id": 1,
            "eos_token_id": 50279,
        })
    }

    fn rename(keys: &mut Map<String, Value>) -> meshgrad_error::Result<()> {
        unify(keys, "num_experts", "num_local_experts")
    }

    fn keys(&self) -> &LlamaKeys {
        &self.keys
    }

    fn with_keys(self, keys: LlamaKeys) -> OlmoeConfig {
        OlmoeConfig { keys, ..self }
    }

    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let (experts, top_k) = (("num_experts", self.num_experts), self.num_experts_per_tok);
        check_experts(experts, top_k, self.keys.hidden_act, &mut problems);
        check_numbers(&[("router_aux_loss_coef", self.router_aux_loss_coef)], &mut problems);
        if let Some(most) = self.clip_qkv {
            problems.push(format!("clip_qkv = {most} must be null: clipping is not supported"));
        }
        let (heads, hidden) = (self.keys.num_attention_heads, self.keys.hidden_size);
        if self.keys.head_dim() * heads != hidden {
            problems.push(format!(
                "head_dim = {} times num_attention_heads = {heads} must be hidden_size = {hidden}: transformers has no \
                 other OLMoE",
                self.keys.head_dim()
            ));
        }
        problems
    }

    fn sizes(&self) -> Vec<(&'static str, usize)> {
        let (experts, top_k) = (self.num_experts, self.num_experts_per_tok);
        vec![("num_experts", experts), ("num_experts_per_tok", top_k)]
    }

    fn attention(&self, at: &ModulePath, _number: usize) -> Attention {
        let attention = self.keys.attention(at).biases(self.attention_bias, self.attention_bias);
        let eps = self.keys.rms_norm_eps;
        attention.joint_norms(|name, features| RmsNorm::new(at.sub(name), features, eps))
    }

    fn feed_forward(&self, at: &ModulePath, _number: usize) -> FeedForward {
        let mut moe = self.keys.moe(at, self.num_experts, self.num_experts_per_tok);
        moe.router.normalize = self.norm_topk_prob;
        FeedForward::Sparse(moe)
    }

    fn auxiliary(&self) -> (f64, bool) {
        (self.router_aux_loss_coef, self.output_router_logits)
    }
}

fn default_router_aux_loss_coef() -> f64 {
    0.01
}
