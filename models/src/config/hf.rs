//! Hugging Face's config.json.
//!
//! Its defaults, which differ between the two architectures, are applied here. All spellings of a
//! key are read. Keys in [`IGNORED_KEYS`] do not affect the computation and are skipped. An unknown
//! key is an error, because it may affect the computation.

use meshgrad_error::{Error, Kind, Result, bail, ensure, error};
use serde_json::{Map, Value, json};

use super::{LayerType, ModelType, Qwen3Config, way_out_of};

/// Keys of config.json that do not affect the computation: metadata of the library, defaults that
/// old versions wrote for every architecture, and generation settings that old versions stored
/// here.
const IGNORED_KEYS: &[&str] = &[
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_experts_implementation",
    "_name_or_path",
    "add_cross_attention",
    "architectures",
    "attn_implementation",
    "auto_map",
    "bad_words_ids",
    "begin_suppress_tokens",
    "chunk_size_feed_forward",
    "cross_attention_hidden_size",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "dtype",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "experts_implementation",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "id2label",
    "is_decoder",
    "is_encoder_decoder",
    "label2id",
    "length_penalty",
    "max_length",
    "min_length",
    "name_or_path",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_labels",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "prefix",
    "problem_type",
    "pruned_heads",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict",
    "return_dict_in_generate",
    "sep_token_id",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tie_encoder_decoder",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "typical_p",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
];

/// transformers 5 writes `num_local_experts` and reads both; others use `num_experts`.
const EXPERTS: (&str, &str) = ("num_experts", "num_local_experts");

impl Qwen3Config {
    /// Reads the text of a config.json, with Hugging Face's defaults for missing keys, and
    /// validates it.
    ///
    /// # Errors
    /// Invalid JSON, another architecture, unknown keys (all are named), values of a wrong type,
    /// invalid sizes (all are named).
    pub fn from_json(text: &str) -> Result<Qwen3Config> {
        let mut keys = match serde_json::from_str(text).map_err(not_json)? {
            Value::Object(keys) => keys,
            other => bail!(
                Malformed,
                "config.json holds {}, expected an object with a model's settings",
                kind(&other)
            ),
        };
        let model_type = model_type(&keys)?;
        refuse_quantized(&mut keys)?;
        unify_experts(&mut keys)?;
        keys.retain(|key, _| !IGNORED_KEYS.contains(&key.as_str()));

        let known = |key: &str| Qwen3Config::KEYS.contains(&key);
        let unknown: Vec<_> = keys.keys().filter(|key| !known(key)).cloned().collect();
        ensure!(
            unknown.is_empty(),
            Unsupported,
            "config.json has unknown keys: {}; remove them if they do not affect the computation",
            unknown.join(", ")
        );

        let config = overlay(hugging_face_defaults(model_type), keys)?;
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
        let resolved = self.resolved()?;
        let architecture = self.model_type.architecture();
        let mut keys = Map::from_iter([("architectures".to_owned(), json!([architecture]))]);

        if let Value::Object(own) = serde_json::to_value(&resolved).map_err(not_json)? {
            let belongs = |key: &str| self.model_type == ModelType::Qwen3Moe || !is_moe_key(key);
            keys.extend(own.into_iter().filter(|(key, _)| belongs(key)));
        }
        // A missing key would mean the default of 4096.
        keys.entry("sliding_window").or_insert(Value::Null);

        written(&keys)
    }

    /// As [`to_json`](Self::to_json), with the dtype of a folder whose tensors are f32.
    ///
    /// # Errors
    /// As [`to_json`](Self::to_json).
    pub fn to_json_of_f32(&self) -> Result<String> {
        let mut keys: Map<String, Value> =
            serde_json::from_str(&self.to_json()?).map_err(not_json)?;
        keys.insert("dtype".into(), "float32".into());
        written(&keys)
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

fn written(keys: &Map<String, Value>) -> Result<String> {
    Ok(serde_json::to_string_pretty(keys).map_err(not_json)? + "\n")
}

fn not_json(cause: serde_json::Error) -> Error {
    error!(Malformed, "config.json is not valid JSON: {cause}").caused_by(cause)
}

fn model_type(keys: &Map<String, Value>) -> Result<ModelType> {
    let found = keys.get("model_type");
    let name = found.and_then(Value::as_str);
    let known = [ModelType::Qwen3, ModelType::Qwen3Moe];
    known.into_iter().find(|known| Some(known.name()) == name).ok_or_else(|| {
        let found = match found {
            Some(Value::String(name)) => format!("`{name}`"),
            Some(other) => other.to_string(),
            None => "missing".to_owned(),
        };
        error!(Unsupported, "model_type is {found}; supported are `qwen3` and `qwen3_moe`")
    })
}

/// Removes the keys of quantization if they are null.
fn refuse_quantized(keys: &mut Map<String, Value>) -> Result<()> {
    for key in ["quantization_config", "compression_config"] {
        let quantization = keys.shift_remove(key).filter(|value| !value.is_null());
        if let Some(quantization) = quantization {
            let method = quantization.get("quant_method").and_then(Value::as_str);
            let method = method.unwrap_or("unknown method");
            bail!(
                Unsupported,
                "{key} in config.json says that the weights are quantized ({method}), and they would be \
                 read without their scales; {}",
                way_out_of(method)
            );
        }
    }
    Ok(())
}

fn unify_experts(keys: &mut Map<String, Value>) -> Result<()> {
    let (name, other_name) = EXPERTS;
    let Some(other) = keys.shift_remove(other_name) else {
        return Ok(());
    };

    let value = keys.get(name).unwrap_or(&other);
    ensure!(
        *value == other,
        Malformed,
        "{name} = {value} but {other_name} = {other} in config.json: both are names of the same \
         number; keep one"
    );
    keys.insert(name.to_owned(), other);
    Ok(())
}

/// Applies `keys` to `settings` one at a time, so that an error can name the key.
fn overlay(mut settings: Map<String, Value>, keys: Map<String, Value>) -> Result<Qwen3Config> {
    for (key, value) in keys {
        settings.insert(key.clone(), value.clone());
        parse(&settings)
            .map_err(|reason| error!(Malformed, "{key} = {value} in config.json: {reason}"))?;
    }
    parse(&settings).map_err(not_json)
}

fn parse(settings: &Map<String, Value>) -> Result<Qwen3Config, serde_json::Error> {
    serde_json::from_value(Value::Object(settings.clone()))
}

/// The defaults of transformers' `Qwen3Config` and `Qwen3MoeConfig` that differ from this crate's.
fn hugging_face_defaults(model_type: ModelType) -> Map<String, Value> {
    let defaults = match model_type {
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
    };
    match defaults {
        Value::Object(defaults) => defaults,
        _ => Map::new(),
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

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
