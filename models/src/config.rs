//! What the configurations of all families have in common. None of it depends on tensors, files or devices.

pub(crate) mod checks;
pub(crate) mod json;
pub(crate) mod problems;
pub(crate) mod rope;

use serde::{Deserialize, Serialize};

pub use problems::Problems;
pub(crate) use problems::way_out_of;
pub(crate) use rope::RopeSettings;
pub use rope::{Llama3, Rope, RopeKeys, RopeScaling, RopeType, Yarn};

/// The activation of an MLP, or of its gate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// `x * sigmoid(x)`.
    #[default]
    Silu,
    /// x Phi(x), Phi being the cumulative normal distribution (Hendrycks and Gimpel 2016).
    Gelu,
    /// `Gelu` with an approximation of Phi by a tanh.
    GeluPytorchTanh,
    /// The same, under its name in GPT-2.
    GeluNew,
}

/// One token id or several, as `eos_token_id` may be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum TokenIds {
    /// A single id.
    One(i64),
    /// Several ids.
    Many(Vec<i64>),
}

/// Which tokens a token of a layer attends to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerType {
    /// All earlier tokens and itself.
    FullAttention,
    /// The last `sliding_window` tokens, including itself.
    SlidingAttention,
}

/// The row of an embedding of `vocab_size` rows whose lookup has no gradient, for `pad_token_id`; a negative id
/// counts from the end.
pub(crate) fn padding_row(pad_token_id: Option<i64>, vocab_size: usize) -> Option<usize> {
    let id = pad_token_id?;
    let rows = vocab_size as i64;
    let row = if id < 0 { id.checked_add(rows)? } else { id };
    usize::try_from(row).ok().filter(|row| *row < vocab_size)
}
