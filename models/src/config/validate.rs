//! Validation of sizes and ranges.

use super::{ConfigError, LayerType, ModelType, Problem, Qwen3Config, rope};

/// The largest supported size. No product of two sizes overflows.
const MAX_SIZE: usize = u32::MAX as usize;

/// The largest supported number of layers, because validation visits each layer.
pub(super) const MAX_LAYERS: usize = 100_000;

impl Qwen3Config {
    /// Checks that a model can be built, and reports all problems together.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] with every [`Problem`] found.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let mut problems = Vec::new();
        self.check_sizes(&mut problems);
        self.check_numbers(&mut problems);
        self.check_heads(&mut problems);
        self.check_windows(&mut problems);
        self.check_experts(&mut problems);
        problems.extend(rope::resolve(self).err().unwrap_or_default());

        if problems.is_empty() { Ok(()) } else { Err(ConfigError::Invalid(problems)) }
    }

    fn check_sizes(&self, problems: &mut Vec<Problem>) {
        let layers = || 0..self.num_hidden_layers.min(MAX_LAYERS);
        let some_sparse = layers().any(|layer| self.is_moe_layer(layer));
        let some_dense = layers().any(|layer| !self.is_moe_layer(layer));

        let sizes = [
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
        ];
        for (key, value, needed) in sizes {
            if value == 0 && needed {
                problems.push(Problem::Zero { key });
            }
            let most = if key == "num_hidden_layers" { MAX_LAYERS } else { MAX_SIZE };
            if value > most {
                problems.push(Problem::TooLarge { key, value, most });
            }
        }
    }

    fn check_numbers(&self, problems: &mut Vec<Problem>) {
        if let Some(id) = self.pad_token_id
            && self.padding().is_none()
        {
            let (key, value) = ("pad_token_id", id as f64);
            problems.push(Problem::Range { key, value, expected: "a token of the vocabulary" });
        }
        let numbers = [
            ("rms_norm_eps", self.rms_norm_eps),
            ("initializer_range", self.initializer_range),
            ("router_aux_loss_coef", self.router_aux_loss_coef),
        ];
        for (key, value) in numbers {
            if !(value.is_finite() && value >= 0.0) {
                problems.push(Problem::Range { key, value, expected: "0 or a positive number" });
            }
        }

        if self.attention_dropout != 0.0 {
            problems.push(Problem::Range {
                key: "attention_dropout",
                value: self.attention_dropout,
                expected: "0: dropout on attention weights is not supported",
            });
        }
    }

    fn check_heads(&self, problems: &mut Vec<Problem>) {
        let (heads, kv_heads) = (self.num_attention_heads, self.num_kv_heads());
        if kv_heads > 0 && !heads.is_multiple_of(kv_heads) {
            problems.push(Problem::Heads { heads, kv_heads });
        }

        if self.head_dim.is_none() && heads > 0 && !self.hidden_size.is_multiple_of(heads) {
            problems.push(Problem::UnevenHeads { hidden_size: self.hidden_size, heads });
        } else if !self.head_dim().is_multiple_of(2) {
            problems.push(Problem::OddHeadDim { head_dim: self.head_dim() });
        }
    }

    fn check_windows(&self, problems: &mut Vec<Problem>) {
        if self.use_sliding_window {
            let asked_by = "use_sliding_window";
            match self.sliding_window {
                None => problems
                    .push(Problem::NoWindow { asked_by, missing: "sliding_window is missing" }),
                Some(0) => problems.push(Problem::Zero { key: "sliding_window" }),
                Some(_) => {}
            }
        }

        let Some(types) = &self.layer_types else {
            return;
        };
        if types.len() != self.num_hidden_layers {
            let (entries, layers) = (types.len(), self.num_hidden_layers);
            problems.push(Problem::LayerTypes { entries, layers });
        }

        let slides = self.use_sliding_window;
        let is_sliding = |layer: &LayerType| *layer == LayerType::SlidingAttention;
        match self.model_type {
            ModelType::Qwen3 if !slides && types.iter().any(is_sliding) => {
                problems.push(Problem::NoWindow {
                    asked_by: "layer_types",
                    missing: "use_sliding_window is false",
                });
            }
            ModelType::Qwen3 => {}
            ModelType::Qwen3Moe => {
                let contradicts = |layer| is_sliding(layer) != slides;
                if let Some(layer) = types.iter().position(contradicts) {
                    problems.push(Problem::MoeLayerTypes { layer, slides });
                }
            }
        }
    }

    fn check_experts(&self, problems: &mut Vec<Problem>) {
        let (experts, top_k) = (self.num_experts, self.num_experts_per_tok);
        match self.model_type {
            ModelType::Qwen3 if experts > 0 => problems.push(Problem::ExpertsInDense { experts }),
            ModelType::Qwen3Moe if top_k > experts => {
                problems.push(Problem::TopK { top_k, experts });
            }
            _ => {}
        }
    }
}
