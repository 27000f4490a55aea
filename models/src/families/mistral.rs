//! Mistral (Jiang et al. 2023).

use meshgrad_autograd::ModulePath;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::llama_like::{LlamaKeys, LlamaLike};
use crate::attention::Attention;
use crate::config::problems::zero;

/// The configuration of a Mistral.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MistralConfig {
    /// What it has in common with other families.
    #[serde(flatten)]
    pub keys: LlamaKeys,
    /// The window of all layers, including the token itself; without one, a token sees all earlier ones.
    #[serde(default)]
    pub sliding_window: Option<usize>,
}

impl LlamaLike for MistralConfig {
    const MODEL_TYPE: &'static str = "mistral";
    const ARCHITECTURE: &'static str = "MistralForCausalLM";
    const KEYS: &'static [&'static str] = &["sliding_window"];

    fn defaults() -> Value {
        json!({
            "model_type": "mistral",
            "vocab_size": 32000,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "sliding_window": 4096,
        })
    }

    fn keys(&self) -> &LlamaKeys {
        &self.keys
    }

    fn with_keys(self, keys: LlamaKeys) -> MistralConfig {
        MistralConfig { keys, ..self }
    }

    fn problems(&self) -> Vec<String> {
        let is_zero = self.sliding_window == Some(0);
        is_zero.then(|| zero("sliding_window")).into_iter().collect()
    }

    fn attention(&self, at: &ModulePath, _number: usize) -> Attention {
        self.keys.attention(at).window(self.sliding_window)
    }
}
