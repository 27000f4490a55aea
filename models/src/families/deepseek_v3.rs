//! DeepSeek-V3 (DeepSeek-AI 2024), without its layers that predict further tokens.

use meshgrad_autograd::ModulePath;
use meshgrad_error::{Result, bail};
use meshgrad_runtime::ops::RopeStyle;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::llama_like::{LlamaKeys, LlamaLike};
use crate::attention::{Attention, LatentSizes, Projections};
use crate::config::checks::{check_experts, check_numbers};
use crate::config::json::unify;
use crate::config::rope::magnitude;
use crate::config::{RopeKeys, RopeType};
use crate::layer::FeedForward;
use crate::moe::{Moe, MoeSizes};

/// The configuration of a DeepSeek-V3. `intermediate_size` is that of dense layers, `head_dim` is `qk_rope_head_dim`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeepseekV3Config {
    /// What it has in common with other families.
    #[serde(flatten)]
    pub keys: LlamaKeys,
    /// Features of the latent of queries; `None` for queries without one.
    #[serde(default)]
    pub q_lora_rank: Option<usize>,
    /// Features of the latent of keys and values.
    pub kv_lora_rank: usize,
    /// Features per head of queries and keys that are not rotated.
    pub qk_nope_head_dim: usize,
    /// Features per head of queries and keys that are rotated.
    pub qk_rope_head_dim: usize,
    /// Features per head of values.
    pub v_head_dim: usize,
    /// Whether rotated features are pairs of neighbors. Default true.
    #[serde(default = "yes")]
    pub rope_interleave: bool,
    /// Whether the projections to latents and of the result of attention have a bias. Default false.
    #[serde(default)]
    pub attention_bias: bool,
    /// Inner width of an expert.
    pub moe_intermediate_size: usize,
    /// Experts of a sparse layer.
    pub n_routed_experts: usize,
    /// Experts that each token has besides. Default 1.
    #[serde(default = "one")]
    pub n_shared_experts: usize,
    /// Experts per token.
    pub num_experts_per_tok: usize,
    /// Groups of experts. Default 8.
    #[serde(default = "default_n_group")]
    pub n_group: usize,
    /// A token's experts are of so many groups. Default 4.
    #[serde(default = "default_topk_group")]
    pub topk_group: usize,
    /// The first layers, which are dense. Default 3.
    #[serde(default = "default_first_k_dense_replace")]
    pub first_k_dense_replace: usize,
    /// Whether the weights of a token's experts are divided by their sum. Default true.
    #[serde(default = "yes")]
    pub norm_topk_prob: bool,
    /// The factor of these weights. Default 2.5.
    #[serde(default = "default_routed_scaling_factor")]
    pub routed_scaling_factor: f64,
    /// Layers that predict further tokens; they are not loaded. Default 1.
    #[serde(default = "one")]
    pub num_nextn_predict_layers: usize,
    /// How transformers divides its products; the model does not depend on it. Default 1.
    #[serde(default = "one")]
    pub pretraining_tp: usize,
    /// Written to config.json for transformers.
    #[serde(default)]
    pub output_router_logits: bool,
}

/// Keys of training, and of how ranks divide the model.
const UNUSED: [&str; 3] = ["aux_loss_alpha", "ep_size", "seq_aux"];

impl LlamaLike for DeepseekV3Config {
    const MODEL_TYPE: &'static str = "deepseek_v3";
    const ARCHITECTURE: &'static str = "DeepseekV3ForCausalLM";
    const KEYS: &'static [&'static str] = &[
        "q_lora_rank",
        "kv_lora_rank",
        "qk_nope_head_dim",
        "qk_rope_head_dim",
        "v_head_dim",
        "rope_interleave",
        "attention_bias",
        "moe_intermediate_size",
        "n_routed_experts",
        "n_shared_experts",
        "num_experts_per_tok",
        "n_group",
        "topk_group",
        "first_k_dense_replace",
        "norm_topk_prob",
        "routed_scaling_factor",
        "num_nextn_predict_layers",
        "pretraining_tp",
        "output_router_logits",
    ];

    fn defaults() -> Value {
        json!({
            "model_type": "deepseek_v3",
            "vocab_size": 129280,
            "hidden_size": 7168,
            "intermediate_size": 18432,
            "num_hidden_layers": 61,
            "num_attention_heads": 128,
            "max_position_embeddings": 4096,
            "bos_token_id": 0,
            "eos_token_id": 1,
            "q_lora_rank": 1536,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "moe_intermediate_size": 2048,
            "n_routed_experts": 256,
            "num_experts_per_tok": 8,
        })
    }

    fn rename(keys: &mut Map<String, Value>) -> Result<()> {
        // Keys of the files on the Hub, with the only values that the model can have.
        let fixed = [
            ("scoring_func", json!("sigmoid")),
            ("topk_method", json!("noaux_tc")),
            ("moe_layer_freq", json!(1)),
        ];
        for (key, needed) in fixed {
            if let Some(value) = keys.shift_remove(key).filter(|it| *it != needed) {
                bail!(Unsupported, "{key} = {value} in config.json: DeepSeek-V3 has {needed}");
            }
        }
        keys.retain(|key, _| !UNUSED.contains(&key.as_str()));
        keys.shift_remove("qk_head_dim"); // The sum of two others.
        unify(keys, "n_routed_experts", "num_local_experts")?;
        unify(keys, "num_nextn_predict_layers", "num_mtp_layers")
    }

    /// Keeps what transformers takes the scale of scores from.
    fn rename_back(&self, keys: &mut Map<String, Value>) {
        let scaling = keys.get_mut("rope_scaling").and_then(Value::as_object_mut);
        let mscale = self.scaling().and_then(|it| it.mscale_all_dim);
        if let (Some(scaling), Some(mscale)) = (scaling, mscale) {
            scaling.insert("mscale_all_dim".into(), mscale.into());
        }
    }

    fn completed(self) -> DeepseekV3Config {
        let keys = LlamaKeys { head_dim: Some(self.qk_rope_head_dim), ..self.keys };
        DeepseekV3Config { keys, ..self }
    }

    fn keys(&self) -> &LlamaKeys {
        &self.keys
    }

    fn with_keys(self, keys: LlamaKeys) -> DeepseekV3Config {
        DeepseekV3Config { keys, ..self }
    }

    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let (experts, top_k) = (self.n_routed_experts, self.num_experts_per_tok);
        let activation = self.keys.hidden_act;
        check_experts(("n_routed_experts", experts), top_k, activation, &mut problems);
        check_numbers(&[("routed_scaling_factor", self.routed_scaling_factor)], &mut problems);

        let (groups, best) = (self.n_group, self.topk_group);
        let size = experts.checked_div(groups).unwrap_or_default();
        if size * groups != experts || size < 2 {
            problems.push(format!(
                "n_routed_experts = {experts} cannot be divided into n_group = {groups} groups of at least two experts"
            ));
        } else if best > groups || top_k > best * size {
            problems.push(format!(
                "num_experts_per_tok = {top_k} experts cannot be chosen in topk_group = {best} of n_group = {groups} \
                 groups of {size} experts"
            ));
        }
        let (heads, keys) = (self.keys.num_attention_heads, self.keys.num_kv_heads());
        if heads != keys {
            problems.push(format!(
                "num_key_value_heads = {keys} must be num_attention_heads = {heads}: each head has keys of its own"
            ));
        }
        let (values, of_keys) = (self.v_head_dim, self.qk_nope_head_dim + self.qk_rope_head_dim);
        if values > of_keys {
            problems.push(format!(
                "v_head_dim = {values} must be at most qk_nope_head_dim + qk_rope_head_dim = {of_keys}"
            ));
        }
        problems
    }

    fn sizes(&self) -> Vec<(&'static str, usize)> {
        let of_latents = [
            ("kv_lora_rank", self.kv_lora_rank),
            ("qk_nope_head_dim", self.qk_nope_head_dim),
            ("qk_rope_head_dim", self.qk_rope_head_dim),
            ("v_head_dim", self.v_head_dim),
        ];
        let of_experts = [
            ("moe_intermediate_size", self.moe_intermediate_size),
            ("n_routed_experts", self.n_routed_experts),
            ("n_shared_experts", self.n_shared_experts),
            ("num_experts_per_tok", self.num_experts_per_tok),
            ("n_group", self.n_group),
            ("topk_group", self.topk_group),
        ];
        let of_queries = self.q_lora_rank.map(|rank| ("q_lora_rank", rank));
        of_queries.into_iter().chain(of_latents).chain(of_experts).collect()
    }

    fn attention(&self, at: &ModulePath, _number: usize) -> Attention {
        let sizes = LatentSizes {
            inputs: self.keys.hidden_size,
            heads: self.keys.num_attention_heads,
            query_latent: self.q_lora_rank,
            latent: self.kv_lora_rank,
            plain: self.qk_nope_head_dim,
            rotated: self.qk_rope_head_dim,
            values: self.v_head_dim,
        };
        // transformers gives norms of latents no eps of the configuration.
        let attention = Attention::latent(at, sizes, 1e-6, self.keys.init());
        let mut attention = attention.biases(self.attention_bias, self.attention_bias);
        if let Projections::Latent(latent) = &mut attention.projections {
            latent.style = match self.rope_interleave {
                true => RopeStyle::Interleaved,
                false => RopeStyle::Half,
            };
        }
        attention.scale *= self.score_factor();
        attention
    }

    /// The layers that predict further tokens follow the others.
    fn unused(&self) -> Vec<String> {
        let further = (0..self.num_nextn_predict_layers).map(|at| at + self.keys.num_hidden_layers);
        further.map(|number| format!("model.layers.{number}.{{rest:path}}")).collect()
    }

    fn feed_forward(&self, at: &ModulePath, number: usize) -> FeedForward {
        match number < self.first_k_dense_replace {
            true => FeedForward::Dense(self.keys.mlp(at)),
            false => FeedForward::Sparse(self.moe(at)),
        }
    }
}

impl DeepseekV3Config {
    fn moe(&self, at: &ModulePath) -> Moe {
        let sizes = MoeSizes {
            inputs: self.keys.hidden_size,
            features: self.moe_intermediate_size,
            experts: self.n_routed_experts,
            top_k: self.num_experts_per_tok,
        };
        let mut moe = Moe::new(at, sizes, self.keys.init()).shared_experts(self.n_shared_experts);
        moe.add_router_bias();
        moe.router.sigmoid = true;
        moe.router.normalize = self.norm_topk_prob;
        moe.router.scale = self.routed_scaling_factor;
        (moe.router.groups, moe.router.top_groups) = (self.n_group, self.topk_group);
        moe
    }

    /// What scaled positions multiply scores by.
    fn score_factor(&self) -> f64 {
        let scaling = self
            .scaling()
            .filter(|it| it.rope_type.or(it.old_type).unwrap_or_default() != RopeType::Default);
        match scaling.and_then(|it| Some((it.factor?, it.mscale_all_dim?))) {
            Some((factor, mscale)) => magnitude(factor, mscale).powi(2),
            None => 1.0,
        }
    }

    fn scaling(&self) -> Option<&RopeKeys> {
        self.keys.rope_scaling.as_ref().or(self.keys.rope_parameters.as_ref())
    }
}

fn yes() -> bool {
    true
}

fn one() -> usize {
    1
}

fn default_n_group() -> usize {
    8
}

fn default_topk_group() -> usize {
    4
}

fn default_first_k_dense_replace() -> usize {
    3
}

fn default_routed_scaling_factor() -> f64 {
    2.5
}
