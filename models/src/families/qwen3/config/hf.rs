//! The configuration as Hugging Face's config.json, whose defaults differ between the two architectures.

use meshgrad_error::{Kind, Result};
use serde_json::{Map, Value, json};

use super::{LayerType, ModelType, Qwen3Config};
use crate::config::json;

impl Qwen3Config {
    /// Reads the text of a config.json, with Hugging Face's defaults for missing keys, and
    /// validates it.
    ///
    /// # Errors
    /// Invalid JSON, another architecture, unknown keys (all are named), values of a wrong type,
    /// invalid sizes (all are named).
    pub fn from_json(text: &str) -> Result<Qwen3Config> {
        let keys = json::keys_of(text)?;
        let known = [ModelType::Qwen3, ModelType::Qwen3Moe].map(ModelType::name);
        match keys.get("model_type") {
            Some(Value::String(name)) if known.contains(&&**name) => Qwen3Config::from_keys(keys),
            found => Err(json::unknown_model_type(found, &known)),
        }
    }

    /// As [`from_json`](Self::from_json), from the keys.
    pub(crate) fn from_keys(mut keys: Map<String, Value>) -> Result<Qwen3Config> {
        let is_sparse = keys.get("model_type").is_some_and(|it| it == ModelType::Qwen3Moe.name());
        let model_type = if is_sparse { ModelType::Qwen3Moe } else { ModelType::Qwen3 };
        // transformers 5 writes `num_local_experts` and reads both; others use `num_experts`.
        json::unify(&mut keys, "num_experts", "num_local_experts")?;
        let defaults = hugging_face_defaults(model_type);
        let config: Qwen3Config = json::settings(Qwen3Config::KEYS, defaults, keys)?;
        config.problems().check(Kind::Malformed)?;
        Ok(config)
    }

    /// The text of a config.json that transformers (4.51 and later) reads as the same model.
    ///
    /// Every key is written. The rotary settings use the old keys, which all versions read. There
    /// is no dtype: that is a property of the tensors.
    ///
    /// # Errors
    /// For a configuration that [`validate`](Self::validate) rejects.
    pub fn to_json(&self) -> Result<String> {
        json::written(&self.written_keys()?)
    }

    pub(crate) fn written_keys(&self) -> Result<Map<String, Value>> {
        let mut keys = json::keys_to_write(&self.resolved()?, self.model_type.architecture())?;
        keys.retain(|key, _| self.model_type == ModelType::Qwen3Moe || !is_moe_key(key));
        // A missing key would mean the default of 4096.
        keys.entry("sliding_window").or_insert(Value::Null);
        Ok(keys)
    }

    /// The same model with every default filled in and every setting under one key.
    ///
    /// # Errors
    /// For a configuration that [`validate`](Self::validate) rejects.
    pub fn resolved(&self) -> Result<Qwen3Config> {
        self.validate()?;
        let rope = self.rope()?;
        let is_dense = self.model_type == ModelType::Qwen3;
        let layer_types = || -> Vec<LayerType> {
            (0..self.num_hidden_layers).map(|layer| self.layer_type(layer)).collect()
        };

        Ok(Qwen3Config {
            num_key_value_heads: Some(self.num_kv_heads()),
            head_dim: Some(self.head_dim()),
            sliding_window: self.sliding_window.filter(|_| self.use_sliding_window),
            max_window_layers: is_dense.then(|| self.first_window_layer()),
            layer_types: is_dense.then(layer_types),
            rope_theta: Some(rope.theta),
            rope_scaling: rope.scaling_keys(),
            rope_parameters: None,
            ..self.clone()
        })
    }
}

/// The defaults of transformers' `Qwen3Config` and `Qwen3MoeConfig` that differ from this crate's.
fn hugging_face_defaults(model_type: ModelType) -> Value {
    match model_type {
        ModelType::Qwen3 => json!({
            "model_type": "qwen3",
            "vocab_size": 151936,
            "hidden_size": 4096,
            "intermediate_size": 22016,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "head_dim": 128,
            "sliding_window": 4096,
        }),
        ModelType::Qwen3Moe => json!({
            "model_type": "qwen3_moe",
            "vocab_size": 151936,
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "num_hidden_layers": 24,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "sliding_window": 4096,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 768,
        }),
    }
}

fn is_moe_key(key: &str) -> bool {
    const MOE_KEYS: &[&str] = &[
        "num_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
        "norm_topk_prob",
        "decoder_sparse_step",
        "mlp_only_layers",
        "router_aux_loss_coef",
        "output_router_logits",
    ];
    MOE_KEYS.contains(&key)
}
