//! `[optimizer]`: the optimizer, its constants, parameter groups and averages.

use serde::{Deserialize, Serialize};

use crate::optim::{AdamWConfig, AdjustLearningRate, Group, LionConfig, MuonConfig, SgdConfig};

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
    /// Decay per step of the averages of the weights; 0 keeps no averages. Validation and samples
    /// use the averages.
    pub ema_decay: f64,
    /// Whether a step whose gradient is not finite is skipped: it changes nothing, and the run goes
    /// on. Otherwise it ends the run.
    pub skip_nonfinite: bool,
    /// Learning rates and weight decays by parameter name.
    pub groups: Vec<Group>,
}

/// `optimizer.name`, with the keys that only this optimizer has.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "lowercase")]
pub enum Algorithm {
    /// [`AdamW`](crate::optim::AdamW).
    AdamW(AdamWConfig),
    /// [`Sgd`](crate::optim::Sgd).
    Sgd(SgdConfig),
    /// [`Lion`](crate::optim::Lion).
    Lion(LionConfig),
    /// [`Muon`](crate::optim::Muon).
    Muon(MuonConfig),
}

impl Default for OptimizerConfig {
    fn default() -> Self {
        Self::new(Algorithm::AdamW(adamw()), 1e-3)
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
            skip_nonfinite: false,
            groups: Vec::new(),
        }
    }

    /// The default table of the optimizer `name`.
    pub fn named(name: &str) -> Option<OptimizerConfig> {
        let sgd = SgdConfig { momentum: 0.9, ..SgdConfig::default() };
        let lion = LionConfig { weight_decay: 1.0, ..LionConfig::default() };
        // With these factors one learning rate suits Muon and its AdamW.
        let muon = MuonConfig {
            adjust_learning_rate: AdjustLearningRate::MatchRmsAdamW,
            adamw: adamw(),
            ..MuonConfig::default()
        };
        match name {
            "adamw" => Some(Self::default()),
            "sgd" => Some(Self::new(Algorithm::Sgd(sgd), 0.1)),
            "lion" => Some(Self::new(Algorithm::Lion(lion), 1e-4)),
            "muon" => Some(Self::new(Algorithm::Muon(muon), 1e-3)),
            _ => None,
        }
    }
}

/// AdamW with the constants that are usual for language models.
fn adamw() -> AdamWConfig {
    AdamWConfig { weight_decay: 0.1, beta2: 0.95, ..AdamWConfig::default() }
}
