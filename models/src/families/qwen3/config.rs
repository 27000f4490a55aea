//! The configuration of a Qwen3 model, with the names of Hugging Face's config.json.
//!
//! [`Qwen3Config`] is read from and written to config.json ([`Qwen3Config::from_json`],
//! [`Qwen3Config::to_json`]). Through serde it is also the strict `[model]` table of a TOML
//! configuration. Keys have the meaning that transformers 5.23 gives them. This module does not
//! depend on tensors, files or devices.
//!
//! Fields hold the values as written. Where Hugging Face has several spellings, or a default that
//! depends on other keys, use the method: [`head_dim`](Qwen3Config::head_dim),
//! [`num_kv_heads`](Qwen3Config::num_kv_heads), [`rope`](Qwen3Config::rope),
//! [`window`](Qwen3Config::window), [`is_moe_layer`](Qwen3Config::is_moe_layer).

mod hf;
#[cfg(test)]
mod tests;
mod validate;

use meshgrad_autograd::Init;
use meshgrad_error::{Error, Kind, Result};
use serde::{Deserialize, Deserializer, Serialize};

use crate::config::{
    Activation, LayerType, Problems, Rope, RopeKeys, RopeSettings, TokenIds, padding_row, rope,
};

/// Which of the two Qwen3 architectures a configuration describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelType {
    /// Every layer has one gated MLP.
    Qwen3,
    /// Layers have routed experts, except those that `mlp_only_layers` and `decoder_sparse_step`
    /// leave dense.
    Qwen3Moe,
}

impl ModelType {
    /// The name in config.json.
    pub fn name(self) -> &'static str {
        match self {
            ModelType::Qwen3 => "qwen3",
            ModelType::Qwen3Moe => "qwen3_moe",
        }
    }

    /// The class that transformers instantiates.
    pub fn architecture(self) -> &'static str {
        match self {
            ModelType::Qwen3 => "Qwen3ForCausalLM",
            ModelType::Qwen3Moe => "Qwen3MoeForCausalLM",
        }
    }
}

/// A Qwen3 or Qwen3-MoE model for causal language modeling.
///
/// In TOML, `model_type`, `vocab_size`, `hidden_size`, `num_hidden_layers` and
/// `num_attention_heads` are required; the other keys have the defaults stated here. In config.json
/// every key has Hugging Face's default.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Qwen3Config {
    /// `qwen3` or `qwen3_moe`.
    pub model_type: ModelType,

    /// Size of the vocabulary: rows of the embedding and of the output projection.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Number of layers.
    pub num_hidden_layers: usize,
    /// Inner width of the MLP of a dense layer. Default 0, valid if every layer has experts.
    #[serde(default)]
    pub intermediate_size: usize,
    /// Context length that the model was trained for. It is not enforced; YaRN uses it as the
    /// original length. Default 32768.
    #[serde(default = "default_max_position_embeddings")]
    pub max_position_embeddings: usize,
    /// Whether the output projection shares the embedding. Default false.
    #[serde(default)]
    pub tie_word_embeddings: bool,
    /// Activation of the gate. Default silu.
    #[serde(default)]
    pub hidden_act: Activation,
    /// Added to the mean square in every norm. Default 1e-6.
    #[serde(default = "default_rms_norm_eps")]
    pub rms_norm_eps: f64,
    /// Standard deviation of the initial weights. Default 0.02.
    #[serde(default = "default_initializer_range")]
    pub initializer_range: f64,

    /// Query heads.
    pub num_attention_heads: usize,
    /// Key-value heads, a divisor of the query heads. Default: the number of query heads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub num_key_value_heads: Option<usize>,
    /// Features per head, independent of `hidden_size`. Default `hidden_size /
    /// num_attention_heads`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head_dim: Option<usize>,
    /// Whether the projections of attention (q, k, v and o) have a bias. Default false.
    #[serde(default)]
    pub attention_bias: bool,
    /// Dropout on attention weights; only 0 is supported. Default 0.
    #[serde(default)]
    pub attention_dropout: f64,

    /// Whether sliding windows are used. Default false.
    #[serde(default)]
    pub use_sliding_window: bool,
    /// Window length of a sliding layer, including the token itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sliding_window: Option<usize>,
    /// In a `qwen3` model without `layer_types`: the first sliding layer. Default 28. transformers
    /// 5 ignores it in a `qwen3_moe` model, where all layers slide or none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_window_layers: Option<usize>,
    /// In a `qwen3` model: the attention of each layer. Default: from `max_window_layers`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer_types: Option<Vec<LayerType>>,

    /// Experts per sparse layer. Default 0.
    #[serde(default, alias = "num_local_experts")]
    pub num_experts: usize,
    /// Experts per token. Default 0.
    #[serde(default)]
    pub num_experts_per_tok: usize,
    /// Inner width of an expert. Default 0.
    #[serde(default)]
    pub moe_intermediate_size: usize,
    /// Whether the weights of a token's experts are normalized to sum to one. Default false.
    #[serde(default)]
    pub norm_topk_prob: bool,
    /// Layer `i` may be sparse if `i + 1` is a multiple of this. Default 1.
    #[serde(default = "default_decoder_sparse_step")]
    pub decoder_sparse_step: usize,
    /// Layers that are dense regardless of `decoder_sparse_step`. Indices past the last layer are
    /// ignored.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub mlp_only_layers: Vec<usize>,
    /// Weight of the load-balancing loss if `output_router_logits` is set. Default 0.001.
    #[serde(default = "default_router_aux_loss_coef")]
    pub router_aux_loss_coef: f64,
    /// Whether the load-balancing loss is part of the loss. Default false.
    #[serde(default)]
    pub output_router_logits: bool,

    /// Token that starts a text. The model itself does not use it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bos_token_id: Option<i64>,
    /// Token or tokens that end a text. The model itself does not use them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eos_token_id: Option<TokenIds>,
    /// Padding token. The lookup of its embedding has no gradient, as in torch; a negative id
    /// counts from the end of the vocabulary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pad_token_id: Option<i64>,

    /// Base of the rotary frequencies, under the old key. Default 10000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rope_theta: Option<f64>,
    /// Scaling of the rotary frequencies, under the old key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rope_scaling: Option<RopeKeys>,
    /// Base and scaling of the rotary frequencies, under the key of transformers 5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rope_parameters: Option<RopeKeys>,
}

impl Qwen3Config {
    /// Every key of the table, in the order in which they are written.
    pub const KEYS: &[&str] = &[
        "model_type",
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "intermediate_size",
        "max_position_embeddings",
        "tie_word_embeddings",
        "hidden_act",
        "rms_norm_eps",
        "initializer_range",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "attention_bias",
        "attention_dropout",
        "use_sliding_window",
        "sliding_window",
        "max_window_layers",
        "layer_types",
        "num_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
        "norm_topk_prob",
        "decoder_sparse_step",
        "mlp_only_layers",
        "router_aux_loss_coef",
        "output_router_logits",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "rope_theta",
        "rope_scaling",
        "rope_parameters",
    ];

    /// The initial value of projections, embeddings and experts.
    pub(crate) fn init(&self) -> Init {
        Init::Normal { std: self.initializer_range }
    }

    /// The row of the embedding whose lookup has no gradient.
    pub(crate) fn padding(&self) -> Option<usize> {
        padding_row(self.pad_token_id, self.vocab_size)
    }

    /// Features per attention head; 0 without heads, which [`validate`](Self::validate) reports.
    pub fn head_dim(&self) -> usize {
        self.heads().head_dim()
    }

    /// Number of key-value heads.
    pub fn num_kv_heads(&self) -> usize {
        self.num_key_value_heads.unwrap_or(self.num_attention_heads)
    }

    /// Whether layer `layer` (from 0) has experts instead of one MLP.
    pub fn is_moe_layer(&self, layer: usize) -> bool {
        self.model_type == ModelType::Qwen3Moe
            && self.num_experts > 0
            && self.decoder_sparse_step > 0
            && (layer + 1).is_multiple_of(self.decoder_sparse_step)
            && !self.mlp_only_layers.contains(&layer)
    }

    /// The window of layer `layer` (from 0), including the token itself; `None` for full attention.
    ///
    /// Query `i` attends to key `j` if `i - window < j <= i`.
    pub fn window(&self, layer: usize) -> Option<usize> {
        match self.layer_type(layer) {
            LayerType::SlidingAttention => self.sliding_window,
            LayerType::FullAttention => None,
        }
    }

    /// The attention of layer `layer` (from 0).
    pub fn layer_type(&self, layer: usize) -> LayerType {
        let slides = match (self.model_type, &self.layer_types) {
            _ if !self.use_sliding_window || self.sliding_window.is_none() => false,
            (ModelType::Qwen3Moe, _) => true,
            (ModelType::Qwen3, Some(types)) => {
                types.get(layer) == Some(&LayerType::SlidingAttention)
            }
            (ModelType::Qwen3, None) => layer >= self.first_window_layer(),
        };
        if slides { LayerType::SlidingAttention } else { LayerType::FullAttention }
    }

    /// Base and scaling of the rotary frequencies, from whichever key has them.
    ///
    /// # Errors
    /// With [`Problems`] when two keys disagree or a scaling lacks a number.
    pub fn rope(&self) -> Result<Rope> {
        let rope = rope::resolve(&self.rope_settings());
        rope.map_err(|problems| Error::with_details(Kind::Invalid, Problems(problems)))
    }

    fn rope_settings(&self) -> RopeSettings<'_> {
        RopeSettings {
            theta: self.rope_theta,
            scaling: self.rope_scaling.as_ref(),
            parameters: self.rope_parameters.as_ref(),
            max_position_embeddings: self.max_position_embeddings,
        }
    }

    fn first_window_layer(&self) -> usize {
        const HUGGING_FACE_DEFAULT: usize = 28;
        self.max_window_layers.unwrap_or(HUGGING_FACE_DEFAULT)
    }
}

fn default_max_position_embeddings() -> usize {
    32768
}

fn default_rms_norm_eps() -> f64 {
    1e-6
}

fn default_initializer_range() -> f64 {
    0.02
}

fn default_decoder_sparse_step() -> usize {
    1
}

fn default_router_aux_loss_coef() -> f64 {
    0.001
}

/// transformers writes an empty list as `null`.
fn null_is_empty<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<usize>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
