//! Mixtral (Jiang et al. 2024): a Mistral whose layers have experts.

use meshgrad_autograd::{ModulePath, Result};
use meshgrad_ckpt::mapping::Mapping;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::llama_like::{LlamaKeys, LlamaLike};
use crate::attention::Attention;
use crate::config::checks::{check_experts, check_numbers};
use crate::config::json::unify;
use crate::config::problems::{range, zero};
use crate::hf::map::{Experts, TIED, mapping};
use crate::layer::FeedForward;

/// The names on the Hub: w1 is gate, w3 is up, w2 is down.
const ONE_BY_ONE: &str = "
[model.layers.{l}.mlp.experts. = model.layers.{l}.block_sparse_moe.experts.]
gate_up_proj = stack(stack({e}.{h:w1|w3}.weight, each=h), each=e)
down_proj = stack({e}.w2.weight, each=e)
[=]
model.layers.{l}.mlp.gate.weight = model.layers.{l}.block_sparse_moe.gate.weight
{rest:path} = {rest:path}
";

/// The configuration of a Mixtral. `intermediate_size` is that of an expert.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MixtralConfig {
    /// What it has in common with other families.
    #[serde(flatten)]
    pub keys: LlamaKeys,
    /// Experts of a layer.
    pub num_local_experts: usize,
    /// Experts per token.
    pub num_experts_per_tok: usize,
    /// The window of all layers, including the token itself; without one, a token sees all earlier ones.
    #[serde(default)]
    pub sliding_window: Option<usize>,
    /// Weight of the load-balancing loss. Default 0.001.
    #[serde(default = "default_router_aux_loss_coef")]
    pub router_aux_loss_coef: f64,
    /// Whether transformers adds the load-balancing loss. Default false.
    #[serde(default)]
    pub output_router_logits: bool,
    /// Noise on the router's input; only 0 is supported. Default 0.
    #[serde(default)]
    pub router_jitter_noise: f64,
}

impl LlamaLike for MixtralConfig {
    const MODEL_TYPE: &'static str = "mixtral";
    const ARCHITECTURE: &'static str = "MixtralForCausalLM";
    const THETA: f64 = 1_000_000.0;
    const KEYS: &'static [&'static str] = &[
        "num_local_experts",
        "num_experts_per_tok",
        "sliding_window",
        "router_aux_loss_coef",
        "output_router_logits",
        "router_jitter_noise",
    ];

    fn defaults() -> Value {
        json!({
            "model_type": "mixtral",
            "vocab_size": 32000,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
        })
    }

    fn rename(keys: &mut Map<String, Value>) -> Result<()> {
        unify(keys, "num_local_experts", "num_experts")
    }

    fn keys(&self) -> &LlamaKeys {
        &self.keys
    }

    fn with_keys(self, keys: LlamaKeys) -> MixtralConfig {
        MixtralConfig { keys, ..self }
    }

    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let experts = ("num_local_experts", self.num_local_experts);
        let (top_k, activation) = (self.num_experts_per_tok, self.keys.hidden_act);
        check_experts(experts, top_k, activation, &mut problems);
        if self.sliding_window == Some(0) {
            problems.push(zero("sliding_window"));
        }
        if self.router_jitter_noise != 0.0 {
            problems.push(range(
                "router_jitter_noise",
                self.router_jitter_noise,
                "0: noise is not supported",
            ));
        }
        check_numbers(&[("router_aux_loss_coef", self.router_aux_loss_coef)], &mut problems);
        problems
    }

    fn sizes(&self) -> Vec<(&'static str, usize)> {
        let (experts, top_k) = (self.num_local_experts, self.num_experts_per_tok);
        vec![("num_local_experts", experts), ("num_experts_per_tok", top_k)]
    }

    fn attention(&self, at: &ModulePath, _number: usize) -> Attention {
        self.keys.attention(at).window(self.sliding_window)
    }

    fn feed_forward(&self, at: &ModulePath, _number: usize) -> FeedForward {
        let mut moe = self.keys.moe(at, self.num_local_experts, self.num_experts_per_tok);
        moe.router.normalize = true;
        FeedForward::Sparse(moe)
    }

    fn tensors(&self, experts: Experts, twice: bool) -> Result<Mapping> {
        match experts {
            Experts::OneByOne => {
                Mapping::parse(&[if twice { TIED } else { "" }, ONE_BY_ONE].concat())
            }
            Experts::Fused => mapping(experts, twice),
        }
    }

    fn auxiliary(&self) -> (f64, bool) {
        (self.router_aux_loss_coef, self.output_router_logits)
    }
}

fn default_router_aux_loss_coef() -> f64 {
    0.001
}
