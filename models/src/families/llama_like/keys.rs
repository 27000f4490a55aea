//! The keys that these families have in common.

use meshgrad_autograd::{Init, ModulePath};
use meshgrad_error::{Error, Kind, Result};
use serde::{Deserialize, Serialize};

use crate::attention::{Attention, AttentionSizes};
use crate::config::checks::{self, Heads, Size};
use crate::config::{
    Activation, Problems, Rope, RopeKeys, RopeSettings, TokenIds, padding_row, rope,
};
use crate::layer::{FeedForward, Layer};
use crate::mlp::Mlp;
use crate::moe::{Moe, MoeSizes};
use crate::norms::RmsNorm;
use crate::parts::Ends;

/// The keys that these families have in common, with the names of Hugging Face's config.json. Fields hold the values as
/// written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LlamaKeys {
    /// Names the family.
    pub model_type: String,
    /// Rows of the embedding and of the output projection.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Number of layers.
    pub num_hidden_layers: usize,
    /// Inner width of the MLP, or of an expert.
    pub intermediate_size: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key-value heads, a divisor of the query heads. Default: the number of query heads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub num_key_value_heads: Option<usize>,
    /// Features per head. Default `hidden_size / num_attention_heads`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head_dim: Option<usize>,
    /// Context length that the model was trained for. It is not enforced; scaled positions start from it.
    /// Default 32768.
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
    /// Dropout on attention weights; only 0 is supported. Default 0.
    #[serde(default)]
    pub attention_dropout: f64,
    /// Token that starts a text. The model itself does not use it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bos_token_id: Option<TokenIds>,
    /// Token or tokens that end a text. The model itself does not use them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eos_token_id: Option<TokenIds>,
    /// Padding token. The lookup of its embedding has no gradient, as in torch; a negative id counts from the end.
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

impl LlamaKeys {
    /// Every key, in the order in which they are written.
    pub const KEYS: [&str; 20] = [
        "model_type",
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "max_position_embeddings",
        "tie_word_embeddings",
        "hidden_act",
        "rms_norm_eps",
        "initializer_range",
        "attention_dropout",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "rope_theta",
        "rope_scaling",
        "rope_parameters",
    ];

    /// The number of key-value heads.
    pub fn num_kv_heads(&self) -> usize {
        self.num_key_value_heads.unwrap_or(self.num_attention_heads)
    }

    /// Features per head; 0 without heads.
    pub fn head_dim(&self) -> usize {
        self.heads().head_dim()
    }

    /// Base and scaling of the rotary frequencies, from whichever key has them.
    ///
    /// # Errors
    /// With [`Problems`] when two keys disagree or a scaling lacks a number.
    pub fn rope(&self) -> Result<Rope> {
        let rope = rope::resolve(&self.rope_settings());
        rope.map_err(|problems| Error::with_details(Kind::Invalid, Problems(problems)))
    }

    /// The same with every default filled in, and the rotary settings under the old keys, which all versions of
    /// transformers read.
    ///
    /// # Errors
    /// As [`LlamaKeys::rope`].
    pub(crate) fn resolved(&self) -> Result<LlamaKeys> {
        let rope = self.rope()?;
        Ok(LlamaKeys {
            num_key_value_heads: Some(self.num_kv_heads()),
            head_dim: Some(self.head_dim()),
            rope_theta: Some(rope.theta),
            rope_scaling: rope.scaling_keys(),
            rope_parameters: None,
            ..self.clone()
        })
    }

    pub(crate) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        checks::check_padding(self.pad_token_id, self.padding(), &mut problems);
        let numbers =
            [("rms_norm_eps", self.rms_norm_eps), ("initializer_range", self.initializer_range)];
        checks::check_numbers(&numbers, &mut problems);
        checks::check_dropout(self.attention_dropout, &mut problems);
        self.heads().check(&mut problems);
        problems.extend(rope::resolve(&self.rope_settings()).err().unwrap_or_default());
        problems
    }

    pub(crate) fn sizes(&self) -> [Size; 8] {
        [
            ("vocab_size", self.vocab_size, true),
            ("hidden_size", self.hidden_size, true),
            ("num_hidden_layers", self.num_hidden_layers, true),
            ("num_attention_heads", self.num_attention_heads, true),
            ("num_key_value_heads", self.num_kv_heads(), self.num_key_value_heads.is_some()),
            ("head_dim", self.head_dim(), self.num_attention_heads > 0),
            ("max_position_embeddings", self.max_position_embeddings, true),
            ("intermediate_size", self.intermediate_size, true),
        ]
    }

    /// The sizes of the ends at the path `at`, with a norm after the last layer.
    pub fn ends(&self, at: &ModulePath) -> Ends {
        Ends {
            vocab_size: self.vocab_size,
            hidden_size: self.hidden_size,
            norm: self.norm(at.sub("norm")).into(),
            is_tied: self.tie_word_embeddings,
            padding: self.padding(),
            scale: 1.0,
            positions: 0,
            init: self.init(),
        }
    }

    /// A layer at the path `at` with norms before its blocks.
    pub fn layer(&self, at: &ModulePath, self_attn: Attention, mlp: FeedForward) -> Layer {
        let norm = |name: &str| Some(self.norm(at.sub(name)).into());
        Layer {
            before_attention: norm("input_layernorm"),
            self_attn,
            after_attention: None,
            before_mlp: norm("post_attention_layernorm"),
            mlp,
            after_mlp: None,
        }
    }

    /// A norm of the residual stream, or of what is added to it.
    pub fn norm(&self, at: ModulePath) -> RmsNorm {
        RmsNorm::new(at, self.hidden_size, self.rms_norm_eps)
    }

    /// A plain attention block of these sizes.
    pub fn attention(&self, at: &ModulePath) -> Attention {
        let sizes = AttentionSizes {
            inputs: self.hidden_size,
            heads: self.num_attention_heads,
            kv_heads: self.num_kv_heads(),
            head_dim: self.head_dim(),
        };
        Attention::new(at, sizes, self.init())
    }

    /// A gated MLP of these sizes.
    pub fn mlp(&self, at: &ModulePath) -> Mlp {
        Mlp::new(at, self.hidden_size, self.intermediate_size, self.init())
            .activation(self.hidden_act)
    }

    /// A mixture of experts of these sizes.
    pub fn moe(&self, at: &ModulePath, experts: usize, top_k: usize) -> Moe {
        let sizes =
            MoeSizes { inputs: self.hidden_size, features: self.intermediate_size, experts, top_k };
        Moe::new(at, sizes, self.init())
    }

    /// The initial value of projections and embeddings.
    pub fn init(&self) -> Init {
        Init::Normal { std: self.initializer_range }
    }

    fn padding(&self) -> Option<usize> {
        padding_row(self.pad_token_id, self.vocab_size)
    }

    fn heads(&self) -> Heads {
        Heads {
            hidden_size: self.hidden_size,
            heads: self.num_attention_heads,
            kv_heads: self.num_kv_heads(),
            head_dim: self.head_dim,
        }
    }

    fn rope_settings(&self) -> RopeSettings<'_> {
        RopeSettings {
            theta: self.rope_theta,
            scaling: self.rope_scaling.as_ref(),
            parameters: self.rope_parameters.as_ref(),
            max_position_embeddings: self.max_position_embeddings,
        }
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
