//! The text models of Gemma 3 (Gemma Team 2025).

use meshgrad_autograd::ModulePath;
use meshgrad_error::{Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::llama_like::{LlamaKeys, LlamaLike};
use crate::attention::{Attention, Rotary};
use crate::config::checks::check_layer_types;
use crate::config::json::unify;
use crate::config::problems::{range, zero};
use crate::config::{LayerType, Rope, RopeScaling};
use crate::layer::{FeedForward, Layer};
use crate::norms::RmsNorm;
use crate::parts::Ends;

/// The rotations of layers that see all earlier tokens, and of those with a window.
const GLOBAL: usize = 0;
const LOCAL: usize = 1;

/// The configuration of a Gemma 3 without images. `rope_theta` and a scaling are those of global layers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Gemma3Config {
    /// What it has in common with other families.
    #[serde(flatten)]
    pub keys: LlamaKeys,
    /// Scores are divided by its square root. Default 256.
    #[serde(default = "default_query_pre_attn_scalar")]
    pub query_pre_attn_scalar: usize,
    /// The window of local layers, including the token itself. Default 4096.
    #[serde(default = "default_sliding_window")]
    pub sliding_window: Option<usize>,
    /// Without `layer_types`: every so many layers, one is global. Default 6.
    #[serde(default = "default_sliding_window_pattern")]
    pub sliding_window_pattern: usize,
    /// The attention of each layer. Default: from `sliding_window_pattern`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer_types: Option<Vec<LayerType>>,
    /// Base of the rotary frequencies of local layers. Default 10000.
    #[serde(default = "default_rope_local_base_freq")]
    pub rope_local_base_freq: f64,
    /// Whether the projections of attention (q, k, v and o) have a bias. Default false.
    #[serde(default)]
    pub attention_bias: bool,
    /// A bound of logits; only none is supported.
    #[serde(default)]
    pub final_logit_softcapping: Option<f64>,
    /// A bound of scores; only none is supported.
    #[serde(default)]
    pub attn_logit_softcapping: Option<f64>,
    /// Whether tokens see later ones; only false is supported.
    #[serde(default)]
    pub use_bidirectional_attention: Option<bool>,
}

impl LlamaLike for Gemma3Config {
    const MODEL_TYPE: &'static str = "gemma3_text";
    const ARCHITECTURE: &'static str = "Gemma3ForCausalLM";
    const THETA: f64 = 1_000_000.0;
    const KEYS: &'static [&'static str] = &[
        "query_pre_attn_scalar",
        "sliding_window",
        "sliding_window_pattern",
        "layer_types",
        "rope_local_base_freq",
        "attention_bias",
        "final_logit_softcapping",
        "attn_logit_softcapping",
        "use_bidirectional_attention",
    ];

    fn defaults() -> Value {
        json!({
            "model_type": "gemma3_text",
            "vocab_size": 262208,
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "num_hidden_layers": 26,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "max_position_embeddings": 131072,
            "hidden_act": "gelu_pytorch_tanh",
            "tie_word_embeddings": true,
            "pad_token_id": 0,
            "eos_token_id": 1,
            "bos_token_id": 2,
        })
    }

    fn table_defaults() -> Value {
        json!({ "hidden_act": "gelu_pytorch_tanh", "tie_word_embeddings": true })
    }

    fn rename(keys: &mut Map<String, Value>) -> Result<()> {
        unify(keys, "hidden_act", "hidden_activation")?;
        unify(keys, "sliding_window_pattern", "_sliding_window_pattern")?;
        merge_rotations(keys)
    }

    fn rename_back(&self, keys: &mut Map<String, Value>) {
        keys.shift_remove("sliding_window_pattern");
        keys.shift_remove("layer_types");
        if self.use_bidirectional_attention.is_none() {
            keys.shift_remove("use_bidirectional_attention");
        }
        let layers = 0..self.keys.num_hidden_layers;
        let types = layers.map(|number| match self.is_local(number) {
            true => "sliding_attention",
            false => "full_attention",
        });
        keys.insert("layer_types".into(), types.collect::<Vec<_>>().into());
        if let Some(activation) = keys.shift_remove("hidden_act") {
            keys.insert("hidden_activation".into(), activation);
        }
    }

    fn keys(&self) -> &LlamaKeys {
        &self.keys
    }

    fn with_keys(self, keys: LlamaKeys) -> Gemma3Config {
        Gemma3Config { keys, ..self }
    }

    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let base = self.rope_local_base_freq;
        if !(base.is_finite() && base > 0.0) {
            problems.push(range("rope_local_base_freq", base, "a positive number"));
        }
        let (types, layers) = (self.layer_types.as_deref(), self.keys.num_hidden_layers);
        check_layer_types(types, layers, &mut problems);
        match self.sliding_window {
            Some(0) => problems.push(zero("sliding_window")),
            None if types.is_none_or(|it| it.contains(&LayerType::SlidingAttention)) => problems
                .push("sliding_window is missing, but local layers need a window".to_owned()),
            _ => {}
        }
        let capped = [
            ("final_logit_softcapping", self.final_logit_softcapping),
            ("attn_logit_softcapping", self.attn_logit_softcapping),
        ];
        for (key, cap) in capped.iter().filter_map(|(key, cap)| Some((key, (*cap)?))) {
            problems.push(format!("{key} = {cap} must be null: Gemma 3 does not cap"));
        }
        if self.use_bidirectional_attention == Some(true) {
            let problem =
                "use_bidirectional_attention = true must be false: later tokens are not seen";
            problems.push(problem.to_owned());
        }
        problems
    }

    fn sizes(&self) -> Vec<(&'static str, usize)> {
        vec![
            ("query_pre_attn_scalar", self.query_pre_attn_scalar),
            ("sliding_window_pattern", self.sliding_window_pattern),
        ]
    }

    fn attention(&self, at: &ModulePath, number: usize) -> Attention {
        let (is_local, eps) = (self.is_local(number), self.keys.rms_norm_eps);
        let mut attention = self
            .keys
            .attention(at)
            .biases(self.attention_bias, self.attention_bias)
            .head_norms(|name, features| RmsNorm::around_one(at.sub(name), features, eps));
        attention.scale = (self.query_pre_attn_scalar as f64).sqrt().recip();
        attention.rotation = Some(if is_local { LOCAL } else { GLOBAL });
        attention.window(self.sliding_window.filter(|_| is_local))
    }

    /// Norms are before and after the blocks.
    fn layer(&self, at: &ModulePath, number: usize) -> Layer {
        let norm = |name: &str| Some(self.norm(at.sub(name)).into());
        Layer {
            before_attention: norm("input_layernorm"),
            self_attn: self.attention(&at.sub("self_attn"), number),
            after_attention: norm("post_attention_layernorm"),
            before_mlp: norm("pre_feedforward_layernorm"),
            mlp: FeedForward::Dense(self.keys.mlp(&at.sub("mlp"))),
            after_mlp: norm("post_feedforward_layernorm"),
        }
    }

    fn ends(&self, at: &ModulePath) -> Ends {
        Ends {
            norm: self.norm(at.sub("norm")).into(),
            scale: (self.keys.hidden_size as f64).sqrt(),
            ..self.keys.ends(at)
        }
    }

    fn rotations(&self) -> Result<Vec<Rotary>> {
        let local = Rope { theta: self.rope_local_base_freq, scaling: RopeScaling::None };
        let rotations = [self.keys.rope()?, local];
        Ok(rotations.iter().map(|rope| Rotary::new(rope, self.keys.head_dim())).collect())
    }
}

impl Gemma3Config {
    fn is_local(&self, number: usize) -> bool {
        match &self.layer_types {
            Some(types) => types.get(number) == Some(&LayerType::SlidingAttention),
            None => !(number + 1).is_multiple_of(self.sliding_window_pattern),
        }
    }

    fn norm(&self, at: ModulePath) -> RmsNorm {
        RmsNorm::around_one(at, self.keys.hidden_size, self.keys.rms_norm_eps)
    }
}

/// Reads the `rope_parameters` of transformers 5, which has those of each type of layer.
fn merge_rotations(keys: &mut Map<String, Value>) -> Result<()> {
    let by_type = ["full_attention", "sliding_attention"];
    let Some(Value::Object(parameters)) = keys.get_mut("rope_parameters") else {
        return Ok(());
    };
    if !by_type.iter().any(|name| parameters.contains_key(*name)) {
        return Ok(());
    }
    let [global, local] = by_type.map(|name| parameters.shift_remove(name));
    if let Some((other, _)) = parameters.iter().next() {
        bail!(Unsupported, "rope_parameters.{other} in config.json: Gemma 3 has {by_type:?}");
    }
    keys.shift_remove("rope_parameters");
    if let Some(global) = global {
        keys.insert("rope_parameters".into(), global);
    }
    let Some(Value::Object(mut local)) = local else {
        return Ok(());
    };
    if let Some(base) = local.shift_remove("rope_theta") {
        keys.insert("local_base".into(), base);
        unify(keys, "rope_local_base_freq", "local_base")?;
    }
    match local.iter().find(|(key, value)| *key != "rope_type" || *value != "default") {
        None => Ok(()),
        Some((key, value)) => bail!(
            Unsupported,
            "rope_parameters.sliding_attention.{key} = {value} in config.json: the frequencies of local layers are not \
             scaled"
        ),
    }
}

fn default_query_pre_attn_scalar() -> usize {
    256
}

fn default_sliding_window() -> Option<usize> {
    Some(4096)
}

fn default_sliding_window_pattern() -> usize {
    6
}

fn default_rope_local_base_freq() -> f64 {
    10_000.0
}
