//! Constants of optimizers, as configurations write them.

use meshgrad_autograd::Param;
use meshgrad_error::ensure;
use meshgrad_runtime::DType;
use serde::{Deserialize, Serialize};

use super::ranges::Ranges;
use crate::Result;

/// The constants of [`AdamW`](super::AdamW).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdamWConfig {
    /// Decay of `exp_avg` per step, in [0, 1).
    pub beta1: f64,
    /// Decay of `exp_avg_sq` per step, in [0, 1).
    pub beta2: f64,
    /// Added to the denominator, above 0.
    pub eps: f64,
    /// Decoupled weight decay, relative to the learning rate.
    pub weight_decay: f64,
    /// The dtype of the state: f32 (f64 for f64 parameters), or bf16 to halve its memory.
    #[serde(with = "float")]
    pub state_dtype: DType,
    /// How bf16 parameters are rounded.
    pub rounding: Rounding,
    /// The seed of stochastic rounding. In a configuration it is the seed of the run.
    #[serde(skip)]
    pub seed: u64,
}

/// How a bf16 parameter is rounded after a step. Parameters in other dtypes are not rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rounding {
    /// To nearest, which drops changes below 2^-9 of the value.
    Nearest,
    /// Up or down at random, so that the expected value is exact. The random numbers follow from
    /// the seed, the parameter's name, the step and the global element only.
    Stochastic,
}

impl Default for AdamWConfig {
    /// The constants of torch, f32 state.
    fn default() -> AdamWConfig {
        AdamWConfig {
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
            weight_decay: 0.01,
            state_dtype: DType::F32,
            rounding: Rounding::Nearest,
            seed: 0,
        }
    }
}

impl AdamWConfig {
    /// Checks that stochastic rounding, if it is chosen, has an effect on one of `params`. These
    /// are all parameters of the model that AdamW updates, even if this rank has none of their
    /// rows. [`Optimizer::new`](crate::optimizer::Optimizer::new) calls it.
    ///
    /// # Errors
    /// When it has none.
    pub fn check_rounding<'a>(&self, params: impl IntoIterator<Item = &'a Param>) -> Result<()> {
        let mut params = params.into_iter().peekable();
        let first = match (self.rounding, params.peek()) {
            (Rounding::Stochastic, Some(first)) => *first,
            _ => return Ok(()),
        };
        ensure!(
            params.any(|param| param.spec().dtype == DType::BF16),
            Invalid,
            "stochastic rounding has no effect, because AdamW updates no bf16 parameter: `{}` is {}; use \
             rounding nearest, or parameters in bf16",
            first.name(),
            first.spec().dtype
        );
        Ok(())
    }

    pub(crate) fn ranges(&self) -> Ranges {
        Ranges::default()
            .decay("beta1", self.beta1)
            .decay("beta2", self.beta2)
            .positive("eps", self.eps)
            .not_negative("weight_decay", self.weight_decay)
    }
}

/// The constants of [`Sgd`](super::Sgd).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SgdConfig {
    /// Decay of the momentum buffer per step, in [0, 1). With 0 there is no buffer.
    pub momentum: f64,
    /// The gradient enters the buffer with factor 1 - `dampening`, except at step 1.
    pub dampening: f64,
    /// Nesterov momentum: the update is the gradient plus `momentum` times the buffer. Needs
    /// momentum and no dampening.
    pub nesterov: bool,
    /// Weight decay, added to the gradient as an L2 penalty.
    pub weight_decay: f64,
}

impl Default for SgdConfig {
    /// No momentum and no decay, as in torch.
    fn default() -> SgdConfig {
        SgdConfig { momentum: 0.0, dampening: 0.0, nesterov: false, weight_decay: 0.0 }
    }
}

impl SgdConfig {
    pub(crate) fn ranges(&self) -> Ranges {
        let (momentum, dampening) = (self.momentum, self.dampening);
        let ranges = Ranges::default()
            .decay("momentum", momentum)
            .decay("dampening", dampening)
            .not_negative("weight_decay", self.weight_decay);
        match self.nesterov {
            false => ranges,
            true => ranges
                .require("momentum", momentum, "above 0 with nesterov", momentum > 0.0)
                .require("dampening", dampening, "0 with nesterov", dampening == 0.0),
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
        LionConfig { beta1: 0.9, beta2: 0.99, weight_decay: 0.0 }
    }
}

impl LionConfig {
    pub(crate) fn ranges(&self) -> Ranges {
        Ranges::default()
            .decay("beta1", self.beta1)
            .decay("beta2", self.beta2)
            .not_negative("weight_decay", self.weight_decay)
    }
}

/// The constants of [`Muon`](super::Muon).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MuonConfig {
    /// Decay of the momentum buffer per step, in [0, 1).
    pub momentum: f64,
    /// Nesterov momentum: the direction is the gradient interpolated with the buffer. Otherwise it
    /// is the buffer.
    pub nesterov: bool,
    /// Decoupled weight decay, relative to the learning rate.
    pub weight_decay: f64,
    /// Newton-Schulz iterations.
    pub iterations: u32,
    /// Coefficients of the iteration.
    pub coefficients: [f64; 3],
    /// The smallest norm of a direction that updates its matrix, above 0.
    pub eps: f64,
    /// The dtype of the operands of the iteration's products, bf16 or f32. Sums are f32.
    #[serde(with = "float")]
    pub product_dtype: DType,
    /// The factor of the learning rate for a matrix.
    pub adjust_learning_rate: AdjustLearningRate,
    /// Name patterns of matrices that AdamW updates: embeddings and output heads. A pattern may
    /// match nothing, because not every rank has them.
    pub adamw_names: Vec<String>,
    /// AdamW for these and for parameters with fewer than two dims.
    pub adamw: AdamWConfig,
}

impl Default for MuonConfig {
    /// The constants of torch, and AdamW for names with `embed` or `lm_head`.
    fn default() -> MuonConfig {
        MuonConfig {
            momentum: 0.95,
            nesterov: true,
            weight_decay: 0.1,
            iterations: 5,
            coefficients: [3.4445, -4.7750, 2.0315],
            eps: 1e-7,
            product_dtype: DType::BF16,
            adjust_learning_rate: AdjustLearningRate::Original,
            adamw_names: vec!["*embed*".into(), "*lm_head*".into()],
            adamw: AdamWConfig::default(),
        }
    }
}

impl MuonConfig {
    /// The ranges of Muon's own constants, without those of its AdamW.
    pub(crate) fn ranges(&self) -> Ranges {
        let ranges = Ranges::default()
            .decay("momentum", self.momentum)
            .not_negative("weight_decay", self.weight_decay)
            .positive("eps", self.eps);
        let coefficients = self.coefficients.into_iter();
        coefficients.fold(ranges, |ranges, value| ranges.finite("coefficients", value))
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
    /// The weight decay in place of the optimizer's, even for parameters with fewer than two dims.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight_decay: Option<f64>,
}

fn unscaled() -> f64 {
    1.0
}

/// Serializes f32 and bf16 by name.
mod float {
    use meshgrad_runtime::DType;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    const NAMES: &[&str] = &["f32", "bf16"];

    pub(super) fn serialize<S: Serializer>(dtype: &DType, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(dtype)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<DType, D::Error> {
        match String::deserialize(from)?.as_str() {
            "f32" => Ok(DType::F32),
            "bf16" => Ok(DType::BF16),
            other => Err(D::Error::unknown_variant(other, NAMES)),
        }
    }
}
