//! Checks of sizes and ranges. Each adds the problems that it finds.

use super::problems::{range, zero};
use super::{Activation, LayerType};

/// The largest supported size. No product of two sizes overflows.
const MAX_SIZE: usize = u32::MAX as usize;

/// The largest supported number of layers, because validation visits each layer.
pub(crate) const MAX_LAYERS: usize = 100_000;

/// The key and value of a size, and whether it must be at least 1.
pub(crate) type Size = (&'static str, usize, bool);

pub(crate) fn check_sizes(sizes: &[Size], problems: &mut Vec<String>) {
    for &(key, value, needed) in sizes {
        if value == 0 && needed {
            problems.push(zero(key));
        }
        let most = if key == "num_hidden_layers" { MAX_LAYERS } else { MAX_SIZE };
        if value > most {
            problems.push(format!("{key} = {value} is too large; at most {most} is supported"));
        }
    }
}

/// The keys of sizes that are 0, but must be at least 1.
pub(crate) fn zero_sizes(sizes: &[Size]) -> Vec<&'static str> {
    let zero = sizes.iter().filter(|(_, value, needed)| *value == 0 && *needed);
    zero.map(|(key, ..)| *key).collect()
}

/// Numbers that must be 0 or positive.
pub(crate) fn check_numbers(numbers: &[(&str, f64)], problems: &mut Vec<String>) {
    for (key, value) in numbers {
        if !(value.is_finite() && *value >= 0.0) {
            problems.push(range(key, *value, "0 or a positive number"));
        }
    }
}

pub(crate) fn check_dropout(attention_dropout: f64, problems: &mut Vec<String>) {
    if attention_dropout != 0.0 {
        problems.push(range(
            "attention_dropout",
            attention_dropout,
            "0: dropout on attention weights is not supported",
        ));
    }
}

/// `layer_types`, of which each layer has one.
pub(crate) fn check_layer_types(
    types: Option<&[LayerType]>,
    layers: usize,
    problems: &mut Vec<String>,
) {
    if let Some(types) = types.filter(|types| types.len() != layers) {
        problems.push(format!(
            "layer_types has {} entries for num_hidden_layers = {layers}; give one per layer or remove the key",
            types.len()
        ));
    }
}

/// What all mixtures of experts need. `key` is that of the number of experts.
pub(crate) fn check_experts(
    (key, experts): (&str, usize),
    top_k: usize,
    activation: Activation,
    problems: &mut Vec<String>,
) {
    if top_k > experts {
        problems.push(format!(
            "num_experts_per_tok = {top_k} is more than {key} = {experts}; lower the first or raise the second"
        ));
    }
    if activation != Activation::Silu {
        problems.push("hidden_act must be silu: experts have no other activation".to_owned());
    }
}

pub(crate) fn check_padding(id: Option<i64>, row: Option<usize>, problems: &mut Vec<String>) {
    if let (Some(id), None) = (id, row) {
        problems.push(range("pad_token_id", id as f64, "a token of the vocabulary"));
    }
}

/// The sizes of attention. `head_dim` is that of the configuration, if it has one.
pub(crate) struct Heads {
    pub(crate) hidden_size: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: Option<usize>,
}

impl Heads {
    /// Features per head; 0 without heads.
    pub(crate) fn head_dim(&self) -> usize {
        self.head_dim.unwrap_or(self.hidden_size.checked_div(self.heads).unwrap_or(0))
    }

    pub(crate) fn check(&self, problems: &mut Vec<String>) {
        let Heads { hidden_size, heads, kv_heads, .. } = *self;
        if kv_heads > 0 && !heads.is_multiple_of(kv_heads) {
            problems.push(format!(
                "num_attention_heads = {heads} is not a multiple of num_key_value_heads = {kv_heads}; \
                 every key-value head serves the same number of query heads"
            ));
        }

        let head_dim = self.head_dim();
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
}
