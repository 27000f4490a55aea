//! Llama 2 and 3 (Touvron et al. 2023, Grattafiori et al. 2024).

use meshgrad_autograd::ModulePath;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::llama_like::{LlamaKeys, LlamaLike};
use crate::attention::Attention;

/// The configuration of a Llama.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LlamaConfig {
    /// What it has in common with other families.
    #[serde(flatten)]
    pub keys: LlamaKeys,
    /// Whether the projections of attention (q, k, v and o) have a bias. Default false.
    #[serde(default)]
    pub attention_bias: bool,
    /// Whether the projections of the MLP have a bias; only false is supported.
    #[serde(default)]
    pub mlp_bias: bool,
    /// How transformers divides its products; the model does not depend on it. Default 1.
    #[serde(default = "one")]
    pub pretraining_tp: usize,
}

impl LlamaLike for LlamaConfig {
    const MODEL_TYPE: &'static str = "llama";
    const ARCHITECTURE: &'static str = "LlamaForCausalLM";
    const KEYS: &'static [&'static str] = &["attention_bias", "mlp_bias", "pretraining_tp"];

    fn defaults() -> Value {
        json!({
            "model_type": "llama",
            "vocab_size": 32000,
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "max_position_embeddings": 2048,
        })
    }

    fn keys(&self) -> &LlamaKeys {
        &self.keys
    }

    fn with_keys(self, keys: LlamaKeys) -> LlamaConfig {
        LlamaConfig { keys, ..self }
    }

    fn problems(&self) -> Vec<String> {
        let problem = "mlp_bias = true must be false: biases of the MLP are not supported";
        self.mlp_bias.then(|| problem.to_owned()).into_iter().collect()
    }

    fn attention(&self, at: &ModulePath, _number: usize) -> Attention {
        self.keys.attention(at).biases(self.attention_bias, self.attention_bias)
    }
}

fn one() -> usize {
    1
}
