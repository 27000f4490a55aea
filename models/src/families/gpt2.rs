//! GPT-2 (Radford et al. 2019).

use std::sync::Arc;

use meshgrad_autograd::{Init, ModulePath};
use meshgrad_ckpt::mapping::Mapping;
use meshgrad_error::{Kind, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{Family, FamilyConfig};
use crate::attention::{Attention, AttentionSizes};
use crate::config::checks::{self, Size};
use crate::config::{Activation, Problems, TokenIds, json};
use crate::hf::map::Experts;
use crate::layer::{FeedForward, Layer};
use crate::mlp::PlainMlp;
use crate::norms::LayerNorm;
use crate::parts::{Ends, Parts};

/// The names on the Hub, with or without the prefix of newer files. Weights are stored [in, out].
const NAMES: &str = "
model.embed_positions.weight = first(transformer.wpe.weight, wpe.weight)
model.norm.{p:weight|bias} = first(transformer.ln_f.{p}, ln_f.{p})

model.layers.{l}.input_layernorm.{p:weight|bias} = first(transformer.h.{l}.ln_1.{p}, h.{l}.ln_1.{p})
concat(
    model.layers.{l}.self_attn.q_proj.weight,
    model.layers.{l}.self_attn.k_proj.weight,
    model.layers.{l}.self_attn.v_proj.weight, shares=1:1:1
) = transpose(first(transformer.h.{l}.attn.c_attn.weight, h.{l}.attn.c_attn.weight), 0, 1)
concat(
    model.layers.{l}.self_attn.q_proj.bias,
    model.layers.{l}.self_attn.k_proj.bias,
    model.layers.{l}.self_attn.v_proj.bias, shares=1:1:1
) = first(transformer.h.{l}.attn.c_attn.bias, h.{l}.attn.c_attn.bias)
model.layers.{l}.self_attn.o_proj.weight = transpose(
    first(transformer.h.{l}.attn.c_proj.weight, h.{l}.attn.c_proj.weight), 0, 1)
model.layers.{l}.self_attn.o_proj.bias = first(transformer.h.{l}.attn.c_proj.bias, h.{l}.attn.c_proj.bias)

model.layers.{l}.post_attention_layernorm.{p:weight|bias} = first(transformer.h.{l}.ln_2.{p}, h.{l}.ln_2.{p})
model.layers.{l}.mlp.up_proj.weight = transpose(
    first(transformer.h.{l}.mlp.c_fc.weight, h.{l}.mlp.c_fc.weight), 0, 1)
model.layers.{l}.mlp.up_proj.bias = first(transformer.h.{l}.mlp.c_fc.bias, h.{l}.mlp.c_fc.bias)
model.layers.{l}.mlp.down_proj.weight = transpose(
    first(transformer.h.{l}.mlp.c_proj.weight, h.{l}.mlp.c_proj.weight), 0, 1)
model.layers.{l}.mlp.down_proj.bias = first(transformer.h.{l}.mlp.c_proj.bias, h.{l}.mlp.c_proj.bias)

{rest:path} = {rest:path}
";

/// The family.
pub(crate) struct Gpt2;

/// The configuration of a GPT-2, with the names of Hugging Face's config.json.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpt2Config {
    /// Names the family.
    pub model_type: String,
    /// Rows of the embedding and of the output projection.
    pub vocab_size: usize,
    /// The number of positions: no sequence is longer.
    pub n_positions: usize,
    /// Width of the residual stream.
    pub n_embd: usize,
    /// Number of layers.
    pub n_layer: usize,
    /// Heads, a divisor of the width.
    pub n_head: usize,
    /// Inner width of the MLP. Default: four times the width.
    #[serde(default)]
    pub n_inner: Option<usize>,
    /// Activation of the MLP. Default gelu_new.
    #[serde(default = "default_activation")]
    pub activation_function: Activation,
    /// Added to the variance in every norm. Default 1e-5.
    #[serde(default = "default_layer_norm_epsilon")]
    pub layer_norm_epsilon: f64,
    /// Standard deviation of the initial weights. Default 0.02.
    #[serde(default = "default_initializer_range")]
    pub initializer_range: f64,
    /// Whether scores are divided by the square root of the features per head. Default true.
    #[serde(default = "yes")]
    pub scale_attn_weights: bool,
    /// Whether scores of layer i, from 0, are also divided by i + 1. Default false.
    #[serde(default)]
    pub scale_attn_by_inverse_layer_idx: bool,
    /// Whether the output projection shares the embedding. Default true.
    #[serde(default = "yes")]
    pub tie_word_embeddings: bool,
    /// Token that starts a text. The model itself does not use it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bos_token_id: Option<TokenIds>,
    /// Token or tokens that end a text. The model itself does not use them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eos_token_id: Option<TokenIds>,
    /// Padding token, which is written to config.json.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pad_token_id: Option<i64>,
}

/// Keys of config.json that no decoder uses: dropout, of which there is none here, how transformers computes scores
/// in half precision, and heads for other tasks.
const UNUSED: [&str; 10] = [
    "attn_pdrop",
    "embd_pdrop",
    "n_ctx",
    "reorder_and_upcast_attn",
    "resid_pdrop",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
];

impl Family for Gpt2 {
    fn model_types(&self) -> &'static [&'static str] {
        &["gpt2"]
    }

    fn read_json(&self, mut keys: Map<String, Value>) -> Result<Arc<dyn FamilyConfig>> {
        keys.retain(|key, _| !UNUSED.contains(&key.as_str()));
        let config: Gpt2Config = json::settings(&Gpt2Config::KEYS, Gpt2Config::defaults(), keys)?;
        config.problems().check(Kind::Malformed)?;
        Ok(Arc::new(config))
    }

    fn read_table(
        &self,
        keys: Map<String, Value>,
    ) -> Result<Arc<dyn FamilyConfig>, serde_json::Error> {
        Ok(Arc::new(serde_json::from_value::<Gpt2Config>(keys.into())?))
    }
}

impl FamilyConfig for Gpt2Config {
    fn model_type(&self) -> &'static str {
        "gpt2"
    }

    fn validate(&self) -> Result<()> {
        self.problems().check(Kind::Invalid)
    }

    fn parts(&self) -> Result<Parts> {
        let at = ModulePath::from("model");
        let ends = Ends {
            vocab_size: self.vocab_size,
            hidden_size: self.n_embd,
            norm: self.norm(at.sub("norm")).into(),
            is_tied: self.tie_word_embeddings,
            padding: None,
            scale: 1.0,
            positions: self.n_positions,
            init: self.init(),
        };
        let layer = |number| self.layer(&at.sub("layers").index(number), number);
        Ok(Parts::new(&at, ends, (0..self.n_layer).map(layer).collect(), Vec::new()))
    }

    fn json(&self) -> Result<Map<String, Value>> {
        FamilyConfig::validate(self)?;
        json::keys_to_write(self, "GPT2LMHeadModel")
    }

    fn table(&self) -> Result<Map<String, Value>> {
        let mut keys = json::table(self)?;
        keys.retain(|_, value| !value.is_null());
        Ok(keys)
    }

    fn mapping(&self, _experts: Experts, twice: bool) -> Result<Mapping> {
        let embedding = match twice && self.tie_word_embeddings {
            true => "tied(transformer.wte.weight, wte.weight, lm_head.weight)",
            false => "first(transformer.wte.weight, wte.weight)",
        };
        Mapping::parse(&format!("model.embed_tokens.weight = {embedding}\n{NAMES}"))
    }

    /// The masks in the first files on the Hub.
    fn without_effect(&self) -> Vec<String> {
        let masks = ["h", "transformer.h"];
        masks.map(|at| format!("{at}.{{l}}.attn.{{mask:bias|masked_bias}}")).to_vec()
    }

    fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    fn zero_sizes(&self) -> Vec<&'static str> {
        checks::zero_sizes(&self.sizes())
    }

    fn shared(&self) -> Arc<dyn FamilyConfig> {
        Arc::new(self.clone())
    }
}

impl Gpt2Config {
    const KEYS: [&str; 16] = [
        "model_type",
        "vocab_size",
        "n_positions",
        "n_embd",
        "n_layer",
        "n_head",
        "n_inner",
        "activation_function",
        "layer_norm_epsilon",
        "initializer_range",
        "scale_attn_weights",
        "scale_attn_by_inverse_layer_idx",
        "tie_word_embeddings",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
    ];

    fn defaults() -> Value {
        json!({
            "model_type": "gpt2",
            "vocab_size": 50257,
            "n_positions": 1024,
            "n_embd": 768,
            "n_layer": 12,
            "n_head": 12,
            "bos_token_id": 50256,
            "eos_token_id": 50256,
        })
    }

    fn problems(&self) -> Problems {
        let mut problems = Vec::new();
        checks::check_sizes(&self.sizes(), &mut problems);
        let numbers = [
            ("layer_norm_epsilon", self.layer_norm_epsilon),
            ("initializer_range", self.initializer_range),
        ];
        checks::check_numbers(&numbers, &mut problems);
        if self.n_head > 0 && !self.n_embd.is_multiple_of(self.n_head) {
            let (width, heads) = (self.n_embd, self.n_head);
            problems.push(format!("n_embd = {width} is not a multiple of n_head = {heads}"));
        }
        Problems(problems)
    }

    fn sizes(&self) -> [Size; 6] {
        [
            ("vocab_size", self.vocab_size, true),
            ("n_positions", self.n_positions, true),
            ("n_embd", self.n_embd, true),
            ("n_layer", self.n_layer, true),
            ("n_head", self.n_head, true),
            ("n_inner", self.inner(), self.n_inner.is_some()),
        ]
    }

    fn layer(&self, at: &ModulePath, number: usize) -> Layer {
        let norm = |name: &str| Some(self.norm(at.sub(name)).into());
        Layer {
            before_attention: norm("input_layernorm"),
            self_attn: self.attention(&at.sub("self_attn"), number),
            after_attention: None,
            before_mlp: norm("post_attention_layernorm"),
            mlp: FeedForward::Plain(self.mlp(&at.sub("mlp"))),
            after_mlp: None,
        }
    }

    fn attention(&self, at: &ModulePath, number: usize) -> Attention {
        let sizes = AttentionSizes {
            inputs: self.n_embd,
            heads: self.n_head,
            kv_heads: self.n_head,
            head_dim: self.n_embd / self.n_head,
        };
        let mut attention = Attention::new(at, sizes, self.init()).biases(true, true);
        attention.rotation = None;
        if !self.scale_attn_weights {
            attention.scale = 1.0;
        }
        if self.scale_attn_by_inverse_layer_idx {
            attention.scale /= (number + 1) as f64;
        }
        attention
    }

    fn mlp(&self, at: &ModulePath) -> PlainMlp {
        PlainMlp::new(at, self.n_embd, self.inner(), self.activation_function, self.init())
    }

    fn norm(&self, at: ModulePath) -> LayerNorm {
        LayerNorm::new(at, self.n_embd, self.layer_norm_epsilon)
    }

    fn inner(&self) -> usize {
        self.n_inner.unwrap_or(4 * self.n_embd)
    }

    fn init(&self) -> Init {
        Init::Normal { std: self.initializer_range }
    }
}

fn default_activation() -> Activation {
    Activation::GeluNew
}

fn default_layer_norm_epsilon() -> f64 {
    1e-5
}

fn default_initializer_range() -> f64 {
    0.02
}

fn yes() -> bool {
    true
}
