//! OLMo 2 (OLMo et al. 2024).

use meshgrad_autograd::ModulePath;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::llama_like::{LlamaKeys, LlamaLike};
use crate::attention::Attention;
use crate::layer::{FeedForward, Layer};
use crate::norms::RmsNorm;

/// The configuration of an OLMo 2.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Olmo2Config {
    /// What it has in common with other families.
    #[serde(flatten)]
    pub keys: LlamaKeys,
    /// Whether the projections of attention (q, k, v and o) have a bias. Default false.
    #[serde(default)]
    pub attention_bias: bool,
}

impl LlamaLike for Olmo2Config {
    const MODEL_TYPE: &'static str = "olmo2";
    const ARCHITECTURE: &'static str = "Olmo2ForCausalLM";
    const KEYS: &'static [&'static str] = &["attention_bias"];

    fn defaults() -> Value {
        json!({
            "model_type": "olmo2",
            "vocab_size": 50304,
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-5,
            "pad_token_id": 1,
            "eos_token_id": 50279,
        })
    }

    fn keys(&self) -> &LlamaKeys {
        &self.keys
    }

    fn with_keys(self, keys: LlamaKeys) -> Olmo2Config {
        Olmo2Config { keys, ..self }
    }

    fn attention(&self, at: &ModulePath, _number: usize) -> Attention {
        let attention = self.keys.attention(at).biases(self.attention_bias, self.attention_bias);
        let eps = self.keys.rms_norm_eps;
        attention.joint_norms(|name, features| RmsNorm::new(at.sub(name), features, eps))
    }

    /// Norms are after the blocks.
    fn layer(&self, at: &ModulePath, number: usize) -> Layer {
        let norm = |name: &str| Some(self.keys.norm(at.sub(name)).into());
        Layer {
            before_attention: None,
            self_attn: self.attention(&at.sub("self_attn"), number),
            after_attention: norm("post_attention_layernorm"),
            before_mlp: None,
            mlp: FeedForward::Dense(self.keys.mlp(&at.sub("mlp"))),
            after_mlp: norm("post_feedforward_layernorm"),
        }
    }
}
