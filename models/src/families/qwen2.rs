//! Qwen2 and Qwen2.5 (Yang et al. 2024).

use meshgrad_autograd::ModulePath;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::llama_like::{LlamaKeys, LlamaLike};
use crate::attention::Attention;
use crate::config::LayerType;
use crate::config::checks::check_layer_types;
use crate::config::problems::zero;

/// The configuration of a Qwen2.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Qwen2Config {
    /// What it has in common with other families.
    #[serde(flatten)]
    pub keys: LlamaKeys,
    /// Whether sliding windows are used. Default false.
    #[serde(default)]
    pub use_sliding_window: bool,
    /// Window length of a sliding layer, including the token itself.
    #[serde(default)]
    pub sliding_window: Option<usize>,
    /// Without `layer_types`: the first sliding layer. Default 28.
    #[serde(default = "default_max_window_layers")]
    pub max_window_layers: usize,
    /// The attention of each layer. Default: from `max_window_layers`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer_types: Option<Vec<LayerType>>,
}

impl LlamaLike for Qwen2Config {
    const MODEL_TYPE: &'static str = "qwen2";
    const ARCHITECTURE: &'static str = "Qwen2ForCausalLM";
    const KEYS: &'static [&'static str] =
        &["use_sliding_window", "sliding_window", "max_window_layers", "layer_types"];

    fn defaults() -> Value {
        json!({
            "model_type": "qwen2",
            "vocab_size": 151936,
            "hidden_size": 4096,
            "intermediate_size": 22016,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "sliding_window": 4096,
        })
    }

    fn keys(&self) -> &LlamaKeys {
        &self.keys
    }

    fn with_keys(self, keys: LlamaKeys) -> Qwen2Config {
        Qwen2Config { keys, ..self }
    }

    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        match self.sliding_window {
            Some(0) if self.use_sliding_window => problems.push(zero("sliding_window")),
            None if self.use_sliding_window => problems.push(
                "use_sliding_window requires a sliding window but sliding_window is missing; set it to the length"
                    .to_owned(),
            ),
            _ => {}
        }
        let types = self.layer_types.as_deref();
        check_layer_types(types, self.keys.num_hidden_layers, &mut problems);
        problems
    }

    /// Queries, keys and values have biases.
    fn attention(&self, at: &ModulePath, number: usize) -> Attention {
        let slides = match &self.layer_types {
            Some(types) => types.get(number) == Some(&LayerType::SlidingAttention),
            None => number >= self.max_window_layers,
        };
        let window = self.sliding_window.filter(|_| self.use_sliding_window && slides);
        self.keys.attention(at).biases(true, false).window(window)
    }
}

fn default_max_window_layers() -> usize {
    28
}
