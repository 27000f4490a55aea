//! Update rules for any module's parameters: AdamW, SGD, Lion and Muon, and averages of weights.
//! [`Optimizer`](crate::optimizer::Optimizer) combines them with gradients, their norm, and
//! clipping.
//!
//! A rule updates [`OptimizerPart`]s: whole parameters on one rank, ranges of their rows on
//! several. It knows nothing of ranks, files or models, and reads nothing from the device: the
//! learning rate, the step number and the factor of the gradients are one-element tensors
//! ([`StepScalars`]). If the factor is not finite, a step changes nothing.
//!
//! A rule of your own updates its tensors with [`assign`], from a formula that runs on any
//! device; [`Number::if_finite`](meshgrad_runtime::Number::if_finite) keeps the old values if a
//! gradient is not finite.
//!
//! [`Groups`] give parameters of some names another learning rate or weight decay. [`Ema`] averages
//! the weights. [`schedule`](crate::schedule) gives the learning rate of each step.
//!
//! ```
//! use meshgrad_autograd::{Init, Param};
//! use meshgrad_runtime::ops::StepScalars;
//! use meshgrad_runtime::{Device, Tensor};
//! use meshgrad_train::optim::{Groups, Sgd, SgdConfig, UpdateRule, parts};
//!
//! # fn main() -> meshgrad_train::Result<()> {
//! let device = Device::cpu();
//! let weight = Param::new("weight", [2, 2], Init::Ones);
//! weight.materialize(&device, 0)?;
//!
//! let mut sgd = Sgd::new(&parts(&weight), SgdConfig::default(), &Groups::default())?;
//! let gradient = Tensor::from_slice(&device, &[2, 2], &[1.0f32, 2.0, 3.0, 4.0])?;
//! let scalar = |value: f32| Tensor::scalar(&device, value);
//! let scalars = StepScalars {
//!     learning_rate: &scalar(0.5)?,
//!     step: &scalar(1.0)?,
//!     scale: &scalar(1.0)?,
//! };
//! sgd.step(&[gradient], scalars)?;
//! assert_eq!(weight.value()?.to_vec::<f32>()?, [0.5, 0.0, -0.5, -1.0]);
//! # Ok(())
//! # }
//! ```

mod adamw;
mod assign;
mod constants;
mod ema;
pub(crate) mod groups;
mod lion;
mod muon;
mod optimizer_part;
mod ranges;
mod sgd;
mod skip;
mod slots;

use meshgrad_runtime::Tensor;
use meshgrad_runtime::ops::StepScalars;

pub use adamw::AdamW;
pub use assign::assign;
pub use constants::{
    AdamWConfig, AdjustLearningRate, Group, LionConfig, MuonConfig, Rounding, SgdConfig,
};
pub use ema::{Ema, Originals};
pub use groups::{Groups, Settings};
pub use lion::Lion;
pub(crate) use muon::Matrices;
pub use muon::Muon;
pub use optimizer_part::{OptimizerPart, parts};
pub(crate) use ranges::Ranges;
pub use sgd::Sgd;
pub(crate) use skip::{count_skipped, unless};

use crate::Result;

/// A rule that updates parameters from their gradients, with the state that it needs.
///
/// The state exists from construction on and is a function of the steps done, so saving the tensors
/// of [`UpdateRule::state`] and writing them back continues with the same bits.
pub trait UpdateRule: Send {
    /// Its name in checkpoints. A run resumes only with the rule that it started with.
    fn name(&self) -> &str;

    /// How parameters may be split into parts.
    fn granularity(&self) -> Granularity;

    /// The state, by name. Writing to the tensors restores a saved state.
    fn state(&self) -> Vec<OptimizerState>;

    /// Applies one step in place to the parts that it was constructed with.
    ///
    /// `gradients` has one gradient per part, which the step multiplies by `scalars.scale`. If the
    /// scale is not finite, nothing changes. Does not wait for the device.
    ///
    /// # Shapes
    /// Each gradient has the shape of its part's value and its accumulator dtype (f32; f64 for
    /// f64).
    ///
    /// # Errors
    /// For another number of gradients, or one of another shape; errors of the ops.
    fn step(&mut self, gradients: &[Tensor], scalars: StepScalars<'_>) -> Result<()>;
}

/// What an update of one element depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Granularity {
    /// This element only: a part may be any range of rows, and its update has the same bits as in
    /// the whole parameter.
    Element,
    /// The whole matrix: a part must be whole matrices.
    Matrix,
}

/// State tensors of one name.
#[derive(Clone, Debug)]
pub struct OptimizerState {
    /// The name, such as `exp_avg`, of letters, digits, `_` and `-`; not `ema`, `buffers` or
    /// `skipped`. It is the same in all versions.
    pub name: &'static str,
    /// The tensors under the names of their parameters, in the order of the parts.
    pub tensors: Vec<(String, Tensor)>,
}
