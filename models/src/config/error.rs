//! Errors of configurations.

use std::fmt::Write;

use meshgrad_error::error;

/// An error of a configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The text is not JSON.
    #[error("config.json is not valid JSON: {0}")]
    Syntax(#[from] serde_json::Error),

    /// The text is JSON, but not an object.
    #[error("config.json holds {found}, expected an object with a model's settings")]
    NotAnObject {
        /// The kind of value found.
        found: &'static str,
    },

    /// `model_type` is missing or not supported.
    #[error("model_type is {found}; supported are `qwen3` and `qwen3_moe`")]
    ModelType {
        /// The value in the file, or `missing`.
        found: String,
    },

    /// Quantized weights.
    #[error(
        "{key} in config.json says that the weights are quantized ({method}), and they \
         would be read without their scales; {}",
        way_out_of(method)
    )]
    Quantized {
        /// The key.
        key: &'static str,
        /// `quant_method`, or `unknown method`.
        method: String,
    },

    /// Unknown keys. Ignoring them could change the computation.
    #[error(
        "config.json has unknown keys: {}; remove them if they do not affect the computation",
        .keys.join(", ")
    )]
    UnknownKeys {
        /// Their names, in the order of the file.
        keys: Vec<String>,
    },

    /// A value of the wrong type, or one that is not supported.
    #[error("{key} = {value} in config.json: {reason}")]
    Value {
        /// The key.
        key: String,
        /// Its value, as JSON.
        value: String,
        /// What was expected.
        reason: String,
    },

    /// Two keys for one number, with different values.
    #[error(
        "{key} = {value} but {other_key} = {other} in config.json: \
         both are names of the same number; keep one"
    )]
    TwoNames {
        /// The first key.
        key: &'static str,
        /// Its value, as JSON.
        value: String,
        /// The other key.
        other_key: &'static str,
        /// Its value, as JSON.
        other: String,
    },

    /// Invalid values: all that were found.
    #[error("invalid model configuration:{}", list(.0))]
    Invalid(Vec<Problem>),
}

/// A problem that [`Qwen3Config::validate`](super::Qwen3Config::validate) found.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Problem {
    /// A size that must not be zero.
    #[error("{key} is 0, but must be at least 1")]
    Zero {
        /// The key.
        key: &'static str,
    },

    /// A size that is too large.
    #[error("{key} = {value} is too large; at most {most} is supported")]
    TooLarge {
        /// The key.
        key: &'static str,
        /// Its value.
        value: usize,
        /// The largest supported value.
        most: usize,
    },

    /// A number out of range.
    #[error("{key} = {value} must be {expected}")]
    Range {
        /// The key.
        key: &'static str,
        /// Its value.
        value: f64,
        /// The valid range, in words.
        expected: &'static str,
    },

    /// Query heads that are not a multiple of the key-value heads.
    #[error(
        "num_attention_heads = {heads} is not a multiple of num_key_value_heads = {kv_heads}; \
         every key-value head serves the same number of query heads"
    )]
    Heads {
        /// Query heads.
        heads: usize,
        /// Key and value heads.
        kv_heads: usize,
    },

    /// No `head_dim`, and `hidden_size` is not a multiple of the heads.
    #[error(
        "hidden_size = {hidden_size} is not a multiple of num_attention_heads = {heads}; \
         set head_dim, which may be any even number"
    )]
    UnevenHeads {
        /// Width of the residual stream.
        hidden_size: usize,
        /// Query heads.
        heads: usize,
    },

    /// Rotary embedding rotates pairs of features.
    #[error("head_dim = {head_dim} is odd; rotary embedding needs an even number of features")]
    OddHeadDim {
        /// Features per head.
        head_dim: usize,
    },

    /// More experts per token than experts.
    #[error(
        "num_experts_per_tok = {top_k} is more than num_experts = {experts}; \
         lower the first or raise the second"
    )]
    TopK {
        /// Experts per token.
        top_k: usize,
        /// Experts per layer.
        experts: usize,
    },

    /// A dense model with experts.
    #[error("num_experts = {experts} needs model_type = qwen3_moe; set that, or num_experts to 0")]
    ExpertsInDense {
        /// Experts per layer.
        experts: usize,
    },

    /// A number of entries other than the number of layers.
    #[error(
        "layer_types has {entries} entries for num_hidden_layers = {layers}; \
         give one per layer or remove the key"
    )]
    LayerTypes {
        /// Entries in the list.
        entries: usize,
        /// Layers of the model.
        layers: usize,
    },

    /// A sliding layer without a window.
    #[error(
        "{asked_by} requires a sliding window but {missing}; \
         set use_sliding_window = true and sliding_window to its length"
    )]
    NoWindow {
        /// The key that requires a window.
        asked_by: &'static str,
        /// What is missing.
        missing: &'static str,
    },

    /// `layer_types` that contradict transformers' treatment of mixture-of-experts models.
    #[error(
        "layer_types[{layer}] contradicts use_sliding_window = {slides}; \
         a qwen3_moe model uses sliding windows in all layers or in none; remove layer_types"
    )]
    MoeLayerTypes {
        /// The first layer that disagrees.
        layer: usize,
        /// Whether the model's layers slide.
        slides: bool,
    },

    /// Two rotary settings that disagree.
    #[error("{place} = {value} but {other_place} = {other}; keep one of them")]
    RopeConflict {
        /// The first key.
        place: &'static str,
        /// Its value.
        value: String,
        /// The second key.
        other_place: &'static str,
        /// Its value.
        other: String,
    },

    /// A rotary scaling without one of its numbers.
    #[error("rope_type = {rope_type} needs {key}; add it next to rope_type")]
    RopeMissing {
        /// The kind of scaling.
        rope_type: &'static str,
        /// The missing key.
        key: &'static str,
    },
}

/// How to dequantize weights of this method.
pub(crate) fn way_out_of(method: &str) -> &'static str {
    match method {
        "fp8" => {
            "run `meshgrad ckpt convert DIR NEW --map qwen3-fp8.map` (docs/checkpoint-tool.md, \
             \"convert\") and load NEW"
        }
        _ => {
            "load it with the library that quantized it (in transformers: `model.dequantize()`), save \
             it with `save_pretrained`, and load that folder"
        }
    }
}

fn list(problems: &[Problem]) -> String {
    let mut text = String::new();
    for problem in problems {
        // Writing to a String cannot fail.
        let _ = write!(text, "\n  - {problem}");
    }
    text
}

impl From<ConfigError> for meshgrad_runtime::Error {
    fn from(error: ConfigError) -> meshgrad_runtime::Error {
        error!(Invalid, "{error}").caused_by(error)
    }
}
