//! Exponential moving averages of weights.

use meshgrad_runtime::{Function, Number, Signature, Tensor, ops};

use super::assign::{assign, averaged};
use super::ranges::Ranges;
use super::slots::{Slot, Slots, zeros};
use super::{Groups, OptimizerPart, OptimizerState};
use crate::Result;

static AVERAGE: Signature =
    Signature::new("ema", "average: F[~], param: F[~], scale: F[~] -> average: F[~]", 3);

/// Averages of the weights over the steps (Polyak & Juditsky 1992), as
/// `torch.optim.swa_utils.get_ema_multi_avg_fn` computes them:
///
/// ```text
/// average = decay * average + (1 - decay) * param
/// ```
///
/// They start at the values at construction. The state is `ema`, f32 (f64 for f64), even for bf16
/// parameters. Parts may be any range of rows.
pub struct Ema {
    decay: f64,
    slots: Slots<Tensor>,
}

impl Ema {
    /// Averages of `parts` with `decay` in [0, 1].
    ///
    /// # Errors
    /// For another decay; when memory runs out.
    pub fn new(parts: &[OptimizerPart], decay: f64) -> Result<Ema> {
        let holds = (0.0..=1.0).contains(&decay);
        let ranges = Ranges::default().require("decay", decay, "in [0, 1]", holds);
        ranges.check("ema")?;
        let slots = Slots::new(parts, &Groups::default(), 0.0, |_, value| {
            let average = zeros(value, value.dtype().accumulator())?;
            copy(value, &average)?;
            Ok(average)
        })?;
        Ok(Ema { decay, slots })
    }

    /// Updates the averages with the current values, unless `scale`, the factor of the step's
    /// gradients (f32 \[\]), is not finite. Does not wait for the device.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn update(&self, scale: &Tensor) -> Result<()> {
        let average = Average { decay: self.decay };
        self.slots.iter().try_for_each(|Slot { part, state: mean, .. }| {
            assign(&AVERAGE, &average, [mean, &part.value()?, scale], mean)
        })
    }

    /// The averages as `ema`. Writing to the tensors restores saved averages.
    pub fn state(&self) -> OptimizerState {
        self.slots.state("ema", Some)
    }

    /// Sets the parameters to the averages, rounded to their dtypes, and returns the values before,
    /// to restore after an evaluation.
    ///
    /// # Errors
    /// When memory runs out. The values may then be partly replaced.
    pub fn apply(&self) -> Result<Originals> {
        let values = self.slots.iter().map(|slot| slot.part.value());
        let values: Vec<Tensor> = values.collect::<Result<_>>()?;
        let saved = |value: Tensor| Ok((ops::copy(&value)?, value));
        let originals = Originals(values.into_iter().map(saved).collect::<Result<_>>()?);
        for (slot, (_, value)) in self.slots.iter().zip(&originals.0) {
            copy(&slot.state, value)?;
        }
        Ok(originals)
    }
}

/// The values that [`Ema::apply`] replaced, and the tensors to write them back to.
#[must_use = "without `restore`, training continues from the averages"]
pub struct Originals(Vec<(Tensor, Tensor)>);

impl Originals {
    /// Writes the values back, bit for bit.
    ///
    /// # Errors
    /// When the device fails.
    pub fn restore(self) -> Result<()> {
        self.0.iter().try_for_each(|(original, value)| copy(original, value))
    }
}

/// into = x, in the dtype of `into`.
fn copy(x: &Tensor, into: &Tensor) -> Result<()> {
    ops::copy_into(&ops::cast(x, into.dtype())?, into)
}

struct Average {
    decay: f64,
}

impl Function<3> for Average {
    #[inline(always)]
    fn value<W: Number>(&self, [average, param, scale]: [W; 3]) -> W {
        scale.if_finite(averaged(self.decay, average, param), average)
    }
}
