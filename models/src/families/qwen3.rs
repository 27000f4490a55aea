//! Qwen3, dense and mixture-of-experts, for causal language modeling (Yang et al. 2025).

pub mod config;

use std::sync::Arc;

use meshgrad_autograd::{ModulePath, Result};
use meshgrad_ckpt::mapping::Mapping;
use serde_json::{Map, Value};

pub use self::config::{ModelType, Qwen3Config};
use super::{Family, FamilyConfig};
use crate::attention::{Attention, AttentionSizes, Rotary};
use crate::config::json;
use crate::hf::map::{Experts, mapping};
use crate::layer::{FeedForward, Layer};
use crate::mlp::Mlp;
use crate::moe::{Moe, MoeSizes};
use crate::norms::RmsNorm;
use crate::parts::{Ends, Parts};

/// The family.
pub(crate) struct Qwen3;

impl Family for Qwen3 {
    fn model_types(&self) -> &'static [&'static str] {
        &["qwen3", "qwen3_moe"]
    }

    fn read_json(&self, keys: Map<String, Value>) -> Result<Arc<dyn FamilyConfig>> {
        Ok(Arc::new(Qwen3Config::from_keys(keys)?))
    }

    fn read_table(
        &self,
        keys: Map<String, Value>,
    ) -> Result<Arc<dyn FamilyConfig>, serde_json::Error> {
        Ok(Arc::new(serde_json::from_value::<Qwen3Config>(keys.into())?))
    }
}

impl FamilyConfig for Qwen3Config {
    fn model_type(&self) -> &'static str {
        self.model_type.name()
    }

    fn validate(&self) -> Result<()> {
        Qwen3Config::validate(self)
    }

    fn parts(&self) -> Result<Parts> {
        let at = ModulePath::from("model");
        let ends = Ends {
            vocab_size: self.vocab_size,
            hidden_size: self.hidden_size,
            norm: RmsNorm::new(at.sub("norm"), self.hidden_size, self.rms_norm_eps).into(),
            is_tied: self.tie_word_embeddings,
            padding: self.padding(),
            scale: 1.0,
            positions: 0,
            init: self.init(),
        };
        let layers = (0..self.num_hidden_layers).map(|number| self.layer(&at, number)).collect();
        Ok(Parts::new(&at, ends, layers, vec![Rotary::new(&self.rope()?, self.head_dim())]))
    }

    fn json(&self) -> Result<Map<String, Value>> {
        self.written_keys()
    }

    fn table(&self) -> Result<Map<String, Value>> {
        json::table(self)
    }

    fn mapping(&self, experts: Experts, twice: bool) -> Result<Mapping> {
        mapping(experts, twice && self.tie_word_embeddings)
    }

    fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    fn zero_sizes(&self) -> Vec<&'static str> {
        Qwen3Config::zero_sizes(self)
    }

    fn auxiliary_loss(&self) -> (f64, bool) {
        (self.router_aux_loss_coef, self.output_router_logits)
    }

    fn shared(&self) -> Arc<dyn FamilyConfig> {
        Arc::new(self.clone())
    }
}

impl Qwen3Config {
    fn layer(&self, at: &ModulePath, number: usize) -> Layer {
        let at = at.sub("layers").index(number);
        let norm = |name: &str| {
            Some(RmsNorm::new(at.sub(name), self.hidden_size, self.rms_norm_eps).into())
        };
        let (mlp, d) = (at.sub("mlp"), self.hidden_size);
        Layer {
            before_attention: norm("input_layernorm"),
            self_attn: self.attention(&at.sub("self_attn"), number),
            after_attention: None,
            before_mlp: norm("post_attention_layernorm"),
            mlp: match self.is_moe_layer(number) {
                true => FeedForward::Sparse(self.moe(&mlp)),
                false => FeedForward::Dense(
                    Mlp::new(&mlp, d, self.intermediate_size, self.init())
                        .activation(self.hidden_act),
                ),
            },
            after_mlp: None,
        }
    }

    fn attention(&self, at: &ModulePath, number: usize) -> Attention {
        let sizes = AttentionSizes {
            inputs: self.hidden_size,
            heads: self.num_attention_heads,
            kv_heads: self.num_kv_heads(),
            head_dim: self.head_dim(),
        };
        Attention::new(at, sizes, self.init())
            .biases(self.attention_bias, self.attention_bias)
            .head_norms(|name, features| RmsNorm::new(at.sub(name), features, self.rms_norm_eps))
            .window(self.window(number))
    }

    /// The feed-forward block of a sparse layer, at the path `at`.
    pub fn moe(&self, at: &ModulePath) -> Moe {
        let sizes = MoeSizes {
            inputs: self.hidden_size,
            features: self.moe_intermediate_size,
            experts: self.num_experts,
            top_k: self.num_experts_per_tok,
        };
        let mut moe = Moe::new(at, sizes, self.init());
        moe.router.normalize = self.norm_topk_prob;
        moe
    }
}
