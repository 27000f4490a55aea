//! Validation of sizes and ranges.

use meshgrad_error::{Kind, Result};

use super::{ModelType, Qwen3Config};
use crate::config::checks::{self, Heads, MAX_LAYERS, Size};
use crate::config::problems::zero;
use crate::config::{LayerType, Problems, rope};

impl Qwen3Config {
    /// Checks that a model can be built, and reports all problems together.
    ///
    /// # Errors
    /// With [`Problems`].
    pub fn validate(&self) -> Result<()> {
        self.problems().check(Kind::Invalid)
    }

    /// The keys of sizes that are 0, but must be at least 1.
    pub fn zero_sizes(&self) -> Vec<&'static str> {
        checks::zero_sizes(&self.sizes())
    }

    pub(super) fn problems(&self) -> Problems {
        let mut problems = Vec::new();
        checks::check_sizes(&self.sizes(), &mut problems);
        checks::check_padding(self.pad_token_id, self.padding(), &mut problems);
        let numbers = [
            ("rms_norm_eps", self.rms_norm_eps),
            ("initializer_range", self.initializer_range),
            ("router_aux_loss_coef", self.router_aux_loss_coef),
        ];
        checks::check_numbers(&numbers, &mut problems);
        checks::check_dropout(self.attention_dropout, &mut problems);
        self.heads().check(&mut problems);
        self.check_windows(&mut problems);
        self.check_experts(&mut problems);
        problems.extend(rope::resolve(&self.rope_settings()).err().unwrap_or_default());
        Problems(problems)
    }

    fn sizes(&self) -> [Size; 12] {
        let layers = || 0..self.num_hidden_layers.min(MAX_LAYERS);
        let some_sparse = layers().any(|layer| self.is_moe_layer(layer));
        let some_dense = layers().any(|layer| !self.is_moe_layer(layer));

        [
            ("vocab_size", self.vocab_size, true),
            ("hidden_size", self.hidden_size, true),
            ("num_hidden_layers", self.num_hidden_layers, true),
            ("num_attention_heads", self.num_attention_heads, true),
            ("num_key_value_heads", self.num_kv_heads(), self.num_key_value_heads.is_some()),
            ("head_dim", self.head_dim(), self.num_attention_heads > 0),
            ("max_position_embeddings", self.max_position_embeddings, true),
            ("intermediate_size", self.intermediate_size, some_dense),
            ("num_experts", self.num_experts, self.model_type == ModelType::Qwen3Moe),
            ("num_experts_per_tok", self.num_experts_per_tok, some_sparse),
            ("moe_intermediate_size", self.moe_intermediate_size, some_sparse),
            ("decoder_sparse_step", self.decoder_sparse_step, true),
        ]
    }

    pub(super) fn heads(&self) -> Heads {
        Heads {
            hidden_size: self.hidden_size,
            heads: self.num_attention_heads,
            kv_heads: self.num_kv_heads(),
            head_dim: self.head_dim,
        }
    }

    fn check_windows(&self, problems: &mut Vec<String>) {
        let no_window = |asked_by, missing| {
            format!(
                "{asked_by} requires a sliding window but {missing}; set use_sliding_window = true and \
                 sliding_window to its length"
            )
        };
        match self.sliding_window {
            _ if !self.use_sliding_window => {}
            None => problems.push(no_window("use_sliding_window", "sliding_window is missing")),
            Some(0) => problems.push(zero("sliding_window")),
            Some(_) => {}
        }

        let Some(types) = &self.layer_types else {
            return;
        };
        if types.len() != self.num_hidden_layers {
            problems.push(format!(
                "layer_types has {} entries for num_hidden_layers = {}; give one per layer or remove \
                 the key",
                types.len(),
                self.num_hidden_layers
            ));
        }

        let slides = self.use_sliding_window;
        let is_sliding = |layer: &LayerType| *layer == LayerType::SlidingAttention;
        match self.model_type {
            ModelType::Qwen3 if !slides && types.iter().any(is_sliding) => {
                problems.push(no_window("layer_types", "use_sliding_window is false"));
            }
            ModelType::Qwen3 => {}
            ModelType::Qwen3Moe => {
                let contradicts = |layer| is_sliding(layer) != slides;
                if let Some(layer) = types.iter().position(contradicts) {
                    problems.push(format!(
                        "layer_types[{layer}] contradicts use_sliding_window = {slides}; a qwen3_moe \
                         model uses sliding windows in all layers or in none; remove layer_types"
                    ));
                }
            }
        }
    }

    fn check_experts(&self, problems: &mut Vec<String>) {
        let (experts, top_k) = (self.num_experts, self.num_experts_per_tok);
        match self.model_type {
            ModelType::Qwen3 if experts > 0 => problems.push(format!(
                "num_experts = {experts} needs model_type = qwen3_moe; set that, or num_experts to 0"
            )),
            ModelType::Qwen3 => {}
            ModelType::Qwen3Moe => {
                checks::check_experts(("num_experts", experts), top_k, self.hidden_act, problems);
            }
        }
    }
}
