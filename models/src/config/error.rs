//! What can be wrong with a configuration.

use std::fmt::Write;

/// Why a configuration was refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The text is not JSON.
    #[error("config.json is not valid JSON: {0}")]
    Syntax(#[from] serde_json::Error),

    /// The text is JSON, but not `{..}`.
    #[error("config.json holds {found}, expected an object with a model's settings")]
    NotAnObject {
        /// What kind of value it is.
        found: &'static str,
    },

    /// Another architecture, or none named.
    #[error(
        "model_type is {found}; meshgrad has `qwen3` and `qwen3_moe`: \
         load a folder of one of these or write a model for this one"
    )]
    ModelType {
        /// What the file says, or that it says nothing.
        found: String,
    },

    /// Keys whose meaning is unknown, so that ignoring them could give another model.
    #[error(
        "config.json has unknown keys: {}; remove them if they do not change the mathematics",
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

    /// One number under two names that differ.
    #[error(
        "{key} = {value} but {other_key} = {other} in config.json: \
         they are two names of one number, keep one"
    )]
    TwoNames {
        /// The first name.
        key: &'static str,
        /// Its value, as JSON.
        value: String,
        /// The other name.
        other_key: &'static str,
        /// Its value, as JSON.
        other: String,
    },

    /// Numbers that no model can have: all that were found.
    #[error("no model can be built from this configuration:{}", list(.0))]
    Impossible(Vec<Problem>),
}

/// One thing that [`Qwen3Config::validate`](super::Qwen3Config::validate) found.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Problem {
    /// A size that must not be zero.
    #[error("{key} is 0; give it a value of at least 1")]
    Zero {
        /// The key.
        key: &'static str,
    },

    /// A size beyond what any tensor has.
    #[error("{key} = {value} is larger than {most}, the most that is supported")]
    TooLarge {
        /// The key.
        key: &'static str,
        /// Its value.
        value: usize,
        /// The largest that is accepted.
        most: usize,
    },

    /// A number that is not in the range where the formula holds.
    #[error("{key} = {value} must be {expected}")]
    Range {
        /// The key.
        key: &'static str,
        /// Its value.
        value: f64,
        /// The range, in words.
        expected: &'static str,
    },

    /// Query heads that do not divide among key-value heads.
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

    /// No `head_dim`, and the width does not divide among the heads.
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

    /// Rotary embedding turns features in pairs.
    #[error("head_dim = {head_dim} is odd; rotary embedding needs an even number of features")]
    OddHeadDim {
        /// Features of a head.
        head_dim: usize,
    },

    /// More experts asked for than there are.
    #[error(
        "num_experts_per_tok = {top_k} is more than num_experts = {experts}; \
         lower the first or raise the second"
    )]
    TopK {
        /// Experts that a token is sent to.
        top_k: usize,
        /// Experts there are.
        experts: usize,
    },

    /// A dense model with experts.
    #[error("num_experts = {experts} needs model_type = qwen3_moe; set that, or num_experts to 0")]
    ExpertsInDense {
        /// Experts asked for.
        experts: usize,
    },

    /// One entry a layer is missing or too many.
    #[error(
        "layer_types has {entries} entries for num_hidden_layers = {layers}; \
         give one a layer or remove the key"
    )]
    LayerTypes {
        /// Entries in the list.
        entries: usize,
        /// Layers of the model.
        layers: usize,
    },

    /// A layer that should slide over no window.
    #[error(
        "{asked_by} asks for a window but {missing}; \
         set use_sliding_window = true and sliding_window to its length"
    )]
    NoWindow {
        /// The key that wants a window.
        asked_by: &'static str,
        /// The key that should give it, and what it says.
        missing: &'static str,
    },

    /// `layer_types` against what transformers does with a mixture of experts.
    #[error(
        "layer_types[{layer}] contradicts use_sliding_window = {slides}; \
         in a qwen3_moe model all layers slide or none: remove layer_types"
    )]
    MoeLayerTypes {
        /// The first layer that disagrees.
        layer: usize,
        /// Whether the model's layers slide.
        slides: bool,
    },

    /// Rotary settings in two places that disagree.
    #[error("{place} = {value} but {other_place} = {other}; keep one of them")]
    RopeConflict {
        /// The first key.
        place: &'static str,
        /// What it says.
        value: String,
        /// The second key.
        other_place: &'static str,
        /// What that one says.
        other: String,
    },

    /// A rotary scaling without one of its numbers.
    #[error("rope_type = {rope_type} needs {key}; add it beside rope_type")]
    RopeMissing {
        /// The kind of scaling.
        rope_type: &'static str,
        /// The missing key.
        key: &'static str,
    },
}

fn list(problems: &[Problem]) -> String {
    let mut text = String::new();
    for problem in problems {
        // Writing to a String cannot fail.
        let _ = write!(text, "\n  - {problem}");
    }
    text
}
