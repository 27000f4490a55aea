//! Constants of optimizers that configurations write as they are.

use serde::{Deserialize, Serialize};

/// The constants of [`Sgd`](super::Sgd).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SgdConfig {
    /// Decay of the momentum buffer per step, in [0, 1). With 0 there is no buffer.
    pub momentum: f64,
    /// The gradient enters the buffer with factor 1 - `dampening`, except at step 1.
    pub dampening: f64,
    /// Whether to look ahead (Nesterov): the update is the gradient plus `momentum` times the
    /// buffer. Needs momentum and no dampening.
    pub nesterov: bool,
    /// Weight decay, added to the gradient as an L2 penalty.
    pub weight_decay: f64,
}

impl Default for SgdConfig {
    /// No momentum and no decay, as in torch.
    fn default() -> SgdConfig {
        SgdConfig {
            momentum: 0.0,
            dampening: 0.0,
            nesterov: false,
            weight_decay: 0.0,
        }
    }
}

/// The constants of [`Lion`](super::Lion).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LionConfig {
    /// Weight of the momentum in the update, in [0, 1).
    pub beta1: f64,
    /// Decay of the momentum per step, in [0, 1).
    pub beta2: f64,
    /// Decoupled weight decay, relative to the learning rate.
    pub weight_decay: f64,
}

impl Default for LionConfig {
    /// The constants of the paper, without decay.
    fn default() -> LionConfig {
        LionConfig {
            beta1: 0.9,
            beta2: 0.99,
            weight_decay: 0.0,
        }
    }
}

/// The factor of the learning rate for a matrix, which compensates for its shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdjustLearningRate {
    /// max(1, rows / columns)^0.5, of Keller Jordan's implementation.
    Original,
    /// 0.2 max(rows, columns)^0.5: updates have the root-mean-square of AdamW's, whose learning
    /// rate and decay can be used (Liu et al. 2025).
    #[serde(rename = "match_rms_adamw")]
    MatchRmsAdamW,
}

impl AdjustLearningRate {
    /// The factor for a matrix of `rows` and `columns`.
    pub fn factor(self, rows: usize, columns: usize) -> f64 {
        let (rows, columns) = (rows as f64, columns as f64);
        match self {
            AdjustLearningRate::Original => (rows / columns).max(1.0).sqrt(),
            AdjustLearningRate::MatchRmsAdamW => 0.2 * rows.max(columns).sqrt(),
        }
    }
}

/// Settings of the parameters whose names match a pattern.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// A pattern over whole names: `*` is any text, `?` one character, `[ab]` one of several.
    pub pattern: String,
    /// Factor of the learning rate; 0 freezes the parameters.
    #[serde(default = "unscaled")]
    pub learning_rate_factor: f64,
    /// The weight decay in place of the optimizer's, also for parameters with fewer than two dims.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight_decay: Option<f64>,
}

fn unscaled() -> f64 {
    1.0
}
