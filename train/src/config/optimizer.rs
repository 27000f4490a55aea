//! `[optimizer]`: the optimizer, its constants, parameter groups and averages.

use serde::{Deserialize, Serialize};

use super::dtype::ComputeDType;
use crate::optim::{AdjustLearningRate, Group, LionConfig, SgdConfig};

/// `[optimizer]`. Which keys it has depends on `name`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OptimizerConfig {
    /// The optimizer and its constants.
    #[serde(flatten)]
    pub algorithm: Algorithm,
    /// The peak learning rate; `[schedule]` scales it.
    pub learning_rate: f64,
    /// Gradients are clipped to this global norm; 0 disables clipping.
    pub max_grad_norm: f64,
    /// Decay per step of averages of the weights, which validation and samples use; 0 for none.
    pub ema_decay: f64,
    /// Learning rates and weight decays by parameter name.
    pub groups: Vec<Group>,
}

/// `optimizer.name`, with the keys that only this optimizer has.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "lowercase")]
pub enum Algorithm {
    /// [`AdamW`](crate::optim::AdamW).
    AdamW(AdamWKeys),
    /// [`Sgd`](crate::optim::Sgd).
    Sgd(SgdConfig),
    /// [`Lion`](crate::optim::Lion).
    Lion(LionConfig),
    /// [`Muon`](crate::optim::Muon).
    Muon(MuonKeys),
}

/// The keys of AdamW.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdamWKeys {
    /// Weight decay per step, multiplied by the learning rate. Norms and biases do not decay.
    pub weight_decay: f64,
    /// Decay rate of the first moment.
    pub beta1: f64,
    /// Decay rate of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// The dtype of the moments.
    pub state_dtype: ComputeDType,
    /// How bf16 parameters are rounded.
    pub rounding: RoundingName,
}

/// `rounding`: how bf16 parameters are rounded after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RoundingName {
    /// To nearest.
    Nearest,
    /// Up or down at random, so that the expected value is exact.
    Stochastic,
}

/// The keys of Muon. Their meaning is that of [`MuonConfig`](crate::optim::MuonConfig).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MuonKeys {
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// Decay of the momentum buffer.
    pub momentum: f64,
    /// Whether to look ahead.
    pub nesterov: bool,
    /// Newton-Schulz iterations.
    pub iterations: u32,
    /// Coefficients of the iteration.
    pub coefficients: [f64; 3],
    /// The smallest norm that a direction is divided by.
    pub eps: f64,
    /// The dtype of the operands of the iteration's products.
    pub product_dtype: ComputeDType,
    /// The factor of the learning rate for a matrix.
    pub adjust_learning_rate: AdjustLearningRate,
    /// Name patterns of matrices that AdamW updates.
    pub adamw_names: Vec<String>,
    /// AdamW for these and for parameters with fewer than two dims.
    pub adamw: AdamWKeys,
}

impl Default for AdamWKeys {
    fn default() -> Self {
        Self {
            weight_decay: 0.1,
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-8,
            state_dtype: ComputeDType::F32,
            rounding: RoundingName::Nearest,
        }
    }
}

impl Default for MuonKeys {
    /// Torch's constants, and factors with which one learning rate suits Muon and its AdamW.
    fn default() -> Self {
        Self {
            weight_decay: 0.1,
            momentum: 0.95,
            nesterov: true,
            iterations: 5,
            coefficients: [3.4445, -4.7750, 2.0315],
            eps: 1e-7,
            product_dtype: ComputeDType::Bf16,
            adjust_learning_rate: AdjustLearningRate::MatchRmsAdamW,
            adamw_names: vec!["*embed*".to_owned(), "*lm_head*".to_owned()],
            adamw: AdamWKeys::default(),
        }
    }
}

impl Default for OptimizerConfig {
    fn default() -> Self {
        Self::new(Algorithm::AdamW(AdamWKeys::default()), 1e-3)
    }
}

impl OptimizerConfig {
    /// The values of `optimizer.name`.
    pub const NAMES: &[&str] = &["adamw", "sgd", "lion", "muon"];

    /// `algorithm` with a peak learning rate, clipping to norm 1, no groups and no averages.
    pub fn new(algorithm: Algorithm, learning_rate: f64) -> OptimizerConfig {
        OptimizerConfig {
            algorithm,
            learning_rate,
            max_grad_norm: 1.0,
            ema_decay: 0.0,
            groups: Vec::new(),
        }
    }

    /// The default table of the optimizer `name`.
    pub fn named(name: &str) -> Option<OptimizerConfig> {
        let sgd = SgdConfig {
            momentum: 0.9,
            ..SgdConfig::default()
        };
        let lion = LionConfig {
            weight_decay: 1.0,
            ..LionConfig::default()
        };
        match name {
            "adamw" => Some(Self::default()),
            "sgd" => Some(Self::new(Algorithm::Sgd(sgd), 0.1)),
            "lion" => Some(Self::new(Algorithm::Lion(lion), 1e-4)),
            "muon" => Some(Self::new(Algorithm::Muon(MuonKeys::default()), 1e-3)),
            _ => None,
        }
    }
}
