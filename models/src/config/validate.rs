//! Validation of sizes and ranges.

use meshgrad_error::{Kind, Result};

use super::problems::{range, zero};
use super::{LayerType, ModelType, Problems, Qwen3Config, rope};

/// The largest supported size. No product of two sizes overflows.
const MAX_SIZE: usize = u32::MAX as usize;

/// The largest supported number of layers, because validation visits each layer.
pub(super) const MAX_LAYERS: usize = 100_000;

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
        let zero = self.sizes().into_iter().filter(|(_, value, needed)| *value == 0 && *needed);
        zero.map(|(key, ..)| key).collect()
    }

    pub(super) fn problems(&self) -> Problems {
        let mut problems = Vec::new();
        self.check_sizes(&mut problems);
        self.check_numbers(&mut problems);
        self.check_heads(&mut problems);
        self.check_windows(&mut problems);
        self.check_experts(&mut problems);
        problems.extend(rope::resolve(self).err().unwrap_or_default());
        Problems(problems)
    }

    /// The key and value of each size, and whether it must be at least 1.
    fn sizes(&self) -> [(&'static str, usize, bool); 12] {
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

    fn check_sizes(&self, problems: &mut Vec<String>) {
        for (key, value, needed) in self.sizes() {
            if value == 0 && needed {
                problems.push(zero(key));
            }
            let most = if key == "num_hidden_layers" { MAX_LAYERS } else { MAX_SIZE };
            if value > most {
                problems.push(format!("{key} = {value} is too large; at most {most} is supported"));
            }
        }
    }

    fn check_numbers(&self, problems: &mut Vec<String>) {
        if let Some(id) = self.pad_token_id
            && self.padding().is_none()
        {
            problems.push(range("pad_token_id", id as f64, "a token of the vocabulary"));
        }
        let numbers = [
            ("rms_norm_eps", self.rms_norm_eps),
            ("initializer_range", self.initializer_range),
            ("router_aux_loss_coef", self.router_aux_loss_coef),
        ];
        for (key, value) in numbers {
            if !(value.is_finite() && value >= 0.0) {
                problems.push(range(key, value, "0 or a positive number"));
            }
        }

        if self.attention_dropout != 0.0 {
            problems.push(range(
                "attention_dropout",
                self.attention_dropout,
                "0: dropout on attention weights is not supported",
            ));
        }
    }

    fn check_heads(&self, problems: &mut Vec<String>) {
        let (heads, kv_heads) = (self.num_attention_heads, self.num_kv_heads());
        if kv_heads > 0 && !heads.is_multiple_of(kv_heads) {
            problems.push(format!(
                "num_attention_heads = {heads} is not a multiple of num_key_value_heads = {kv_heads}; \
                 every key-value head serves the same number of query heads"
            ));
        }

        let (hidden_size, head_dim) = (self.hidden_size, self.head_dim());
        if self.head_dim.is_none() && heads > 0 && !hidden_size.is_multiple_of(heads) {
            problems.push(format!(
                "hidden_size = {hidden_size} is not a multiple of num_attention_heads = {heads}; set \
                 head_dim, which may be any even number"
            ));
        } else if !head_dim.is_multiple_of(2) {
            problems.push(format!(
                "head_dim = {head_dim} is odd; rotary embedding needs an even number of features"
            ));
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
            ModelType::Qwen3Moe if top_k > experts => problems.push(format!(
                "num_experts_per_tok = {top_k} is more than num_experts = {experts}; lower the first \
                 or raise the second"
            )),
            _ => {}
        }
    }
}
