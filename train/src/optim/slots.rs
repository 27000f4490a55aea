//! The parts of an optimizer, with their settings and their state.

use meshgrad_error::ensure;
use meshgrad_runtime::ops::StepScalars;
use meshgrad_runtime::{DType, Kind, Tensor};

use super::assign::scaled;
use super::part::PartSpec;
use super::{Groups, Part, Settings, State};
use crate::Result;

/// One slot per part, in the order of the parts.
pub(super) struct Slots<S>(Vec<Slot<S>>);

/// The settings and the state of a part.
pub(super) struct Slot<S> {
    part: PartSpec,
    pub(super) settings: Settings,
    pub(super) state: S,
}

/// What a step of one part reads and writes.
pub(super) struct Update<'a, S> {
    pub(super) part: &'a Part,
    pub(super) param: &'a Tensor,
    pub(super) gradient: &'a Tensor,
    pub(super) state: &'a S,
    pub(super) weight_decay: f64,
    /// The learning rate times the part's factor.
    pub(super) learning_rate: &'a Tensor,
    pub(super) step: &'a Tensor,
    pub(super) scale: &'a Tensor,
}

/// A part in a step, with its gradient.
pub(super) struct Due<'a, S> {
    pub(super) slot: &'a Slot<S>,
    pub(super) part: &'a Part,
    pub(super) gradient: &'a Tensor,
}

impl<S> Slots<S> {
    /// Slots for `parts` with the state that `allocate` returns.
    pub(super) fn new<'a>(
        parts: impl IntoIterator<Item = &'a Part>,
        groups: &Groups,
        weight_decay: f64,
        allocate: impl Fn(&Part) -> Result<S>,
    ) -> Result<Slots<S>> {
        let slot = |part: &'a Part| {
            Ok(Slot {
                part: part.spec().clone(),
                settings: groups.settings(part, weight_decay),
                state: allocate(part)?,
            })
        };
        Ok(Slots(parts.into_iter().map(slot).collect::<Result<_>>()?))
    }

    /// Checks the parts and gradients of a step against the slots and combines them. Values may
    /// take the place of gradients.
    pub(super) fn due<'a>(&'a self, parts: Vec<(&'a Part, &'a Tensor)>) -> Result<Vec<Due<'a, S>>> {
        let pairs = self.0.iter().zip(parts);
        pairs.map(|(slot, (part, gradient))| slot.due(part, gradient)).collect()
    }

    /// Calls `update` for each part, after all are checked.
    pub(super) fn each(
        &self,
        pairs: Vec<(&Part, &Tensor)>,
        scalars: StepScalars<'_>,
        update: impl Fn(Update<'_, S>) -> Result<()>,
    ) -> Result<()> {
        for due in self.due(pairs)? {
            let settings = due.slot.settings;
            update(Update {
                part: due.part,
                param: due.part.value(),
                gradient: due.gradient,
                state: &due.slot.state,
                weight_decay: settings.weight_decay,
                learning_rate: &scaled(scalars.learning_rate, settings.learning_rate_factor)?,
                step: scalars.step,
                scale: scalars.scale,
            })?;
        }
        Ok(())
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Slot<S>> {
        self.0.iter()
    }

    /// The state tensors of the slots that have one, as `name`.
    pub(super) fn state<'a>(
        &'a self,
        name: &'static str,
        of: impl Fn(&'a S) -> Option<&'a Tensor>,
    ) -> State {
        let named = |slot: &'a Slot<S>| Some((slot.part.name.clone(), of(&slot.state)?.clone()));
        State { name, tensors: self.0.iter().filter_map(named).collect() }
    }
}

impl<S> Slot<S> {
    /// Checks the part and the gradient of this slot.
    fn due<'a>(&'a self, part: &'a Part, gradient: &'a Tensor) -> Result<Due<'a, S>> {
        ensure!(
            *part.spec() == self.part,
            Invalid,
            "a part was {} at construction, but is now {}; construct a new optimizer",
            self.part,
            part.spec()
        );
        ensure!(
            gradient.shape() == part.value().shape(),
            Invalid,
            "the gradient of `{}` has shape {}, but the value has shape {}",
            part.name(),
            gradient.shape(),
            part.value().shape()
        );
        Ok(Due { slot: self, part, gradient })
    }
}

/// Pairs `parts` with `gradients`; there must be `expected` of each.
pub(super) fn pairs<'a>(
    expected: usize,
    parts: &'a [Part],
    gradients: &'a [Tensor],
) -> Result<Vec<(&'a Part, &'a Tensor)>> {
    ensure!(
        parts.len() == expected && gradients.len() == expected,
        Invalid,
        "the optimizer was constructed with {expected} part(s), but the step has {} part(s) and {} \
         gradient(s)",
        parts.len(),
        gradients.len()
    );
    Ok(parts.iter().zip(gradients).collect())
}

/// Zeros of the shape of `part`'s value, without a sharding if the value has none.
pub(super) fn zeros(part: &Part, dtype: DType) -> Result<Tensor> {
    let value = part.value();
    let zeros = Tensor::zeros(value.device(), value.shape(), dtype, Kind::OptimizerState)?;
    Ok(match value.sharding() {
        Some(_) => zeros,
        None => zeros.local(),
    })
}
