//! The parts of an update rule, with their settings and their state.

use meshgrad_error::ensure;
use meshgrad_runtime::ops::StepScalars;
use meshgrad_runtime::{DType, Kind, Tensor};

use super::assign::scaled;
use super::{Groups, OptimizerPart, OptimizerState, Settings};
use crate::Result;

/// One slot per part, in the order of the parts.
pub(super) struct Slots<S>(Vec<Slot<S>>);

/// A part with its settings and its state.
pub(super) struct Slot<S> {
    pub(super) part: OptimizerPart,
    pub(super) settings: Settings,
    pub(super) state: S,
}

impl<S> Slots<S> {
    /// Slots for `parts` with the state that `allocate` returns for a part and its value.
    pub(super) fn new<'a>(
        parts: impl IntoIterator<Item = &'a OptimizerPart>,
        groups: &Groups,
        weight_decay: f64,
        allocate: impl Fn(&OptimizerPart, &Tensor) -> Result<S>,
    ) -> Result<Slots<S>> {
        let slot = |part: &'a OptimizerPart| {
            Ok(Slot {
                part: part.clone(),
                settings: groups.settings(part, weight_decay),
                state: allocate(part, &part.value()?)?,
            })
        };
        Ok(Slots(parts.into_iter().map(slot).collect::<Result<_>>()?))
    }

    /// The values of the parts, after a check of their `gradients`.
    pub(super) fn values(&self, gradients: &[Tensor]) -> Result<Vec<Tensor>> {
        check_count(self.0.len(), gradients)?;
        let value = |(slot, gradient): (&Slot<S>, &Tensor)| {
            let value = slot.part.value()?;
            ensure!(
                gradient.shape() == value.shape(),
                Invalid,
                "the gradient of `{}` has shape {}, but the value has shape {}",
                slot.part.name(),
                gradient.shape(),
                value.shape()
            );
            Ok(value)
        };
        self.0.iter().zip(gradients).map(value).collect()
    }

    /// Calls `update` for each slot, with the value and the gradient of its part, after all are
    /// checked. Its scalars have the part's learning rate.
    pub(super) fn each(
        &self,
        gradients: &[Tensor],
        scalars: StepScalars<'_>,
        update: impl Fn(&Slot<S>, [&Tensor; 2], StepScalars<'_>) -> Result<()>,
    ) -> Result<()> {
        let values = self.values(gradients)?;
        for (slot, (value, gradient)) in self.0.iter().zip(values.iter().zip(gradients)) {
            let factor = slot.settings.learning_rate_factor;
            let learning_rate = &scaled(scalars.learning_rate, factor)?;
            update(slot, [value, gradient], StepScalars { learning_rate, ..scalars })?;
        }
        Ok(())
    }

    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = &Slot<S>> {
        self.0.iter()
    }

    /// The state tensors of the slots that have one, as `name`.
    pub(super) fn state<'a>(
        &'a self,
        name: &'static str,
        of: impl Fn(&'a S) -> Option<&'a Tensor>,
    ) -> OptimizerState {
        let named =
            |slot: &'a Slot<S>| Some((slot.part.name().to_owned(), of(&slot.state)?.clone()));
        OptimizerState { name, tensors: self.0.iter().filter_map(named).collect() }
    }
}

/// Checks that there is a gradient for each of `parts` parts.
pub(super) fn check_count(parts: usize, gradients: &[Tensor]) -> Result<()> {
    ensure!(
        gradients.len() == parts,
        Invalid,
        "the optimizer has {parts} part(s), but the step has {} gradient(s)",
        gradients.len()
    );
    Ok(())
}

/// Zeros of the shape of `value`.
pub(super) fn zeros(value: &Tensor, dtype: DType) -> Result<Tensor> {
    Tensor::zeros(value.device(), value.shape(), dtype, Kind::OptimizerState)
}
