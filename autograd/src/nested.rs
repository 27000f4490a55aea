//! A tape inside of a record of another tape.

use std::sync::{Mutex, PoisonError};

use meshgrad_runtime::{DType, Device, Tensor};

use crate::backward::Backward;
use crate::slot::{Pass, Phase, Slots};
use crate::track::in_dtypes;
use crate::var::{Node, ValueId};
use crate::{Result, Tape, Var};

/// A finished recording whose inputs and outputs are those of a record.
///
/// It has no values: those that no op saved are freed.
pub(crate) struct NestedTape {
    tape: Tape,
    /// One per input of the record; `None` for constants.
    inputs: Vec<Option<ValueId>>,
    /// One per output of the record; `None` for constants and parameters.
    outputs: Vec<Option<ValueId>>,
}

impl NestedTape {
    /// # Errors
    /// When a value belongs to another tape.
    pub(crate) fn new(tape: Tape, inputs: &[Var], outputs: &[Var]) -> Result<NestedTape> {
        let id_of = |var: &Var| match var.node() {
            Node::Value(_) => tape.id_of(var).map(Some),
            _ => Ok(None),
        };
        let (inputs, outputs): (Result<_>, Result<_>) =
            (inputs.iter().map(id_of).collect(), outputs.iter().map(id_of).collect());
        let (inputs, outputs) = (inputs?, outputs?);
        Ok(NestedTape { tape, inputs, outputs })
    }
}

/// The backward pass of a record over its nested tape. A split backward runs it twice.
pub(crate) struct NestedBackward {
    /// The dtypes of the outputs.
    dtypes: Vec<DType>,
    /// The state between [`Phase::Inputs`] and [`Phase::Weights`], and where a phase has stopped.
    started: Mutex<Option<Started>>,
}

struct Started {
    /// `None` if no tracked output has a gradient and no op communicates.
    backward: Option<Backward>,
    /// The phase that has stopped in the middle.
    unfinished: Option<Phase>,
    inputs: Vec<Option<ValueId>>,
}

impl Started {
    /// Runs a phase, or goes on with the one that has stopped.
    fn run(&mut self, phase: Phase, pass: &Pass<'_>) -> Result<()> {
        let Some(backward) = &mut self.backward else {
            return Ok(());
        };
        if self.unfinished.is_none() {
            backward.restart();
        }
        pass.with_grads(|grads| backward.advance(phase, grads, false, pass.yields))?;
        let is_finished = !pass.yields || backward.is_finished(&self.inputs);
        self.unfinished = (!is_finished).then_some(phase);
        Ok(())
    }

    fn take(&mut self, input: usize) -> Result<Option<Tensor>> {
        match (self.inputs[input], &mut self.backward) {
            (Some(id), Some(backward)) => backward.take(id),
            _ => Ok(None),
        }
    }
}

impl NestedBackward {
    /// `dtypes` are those of the outputs.
    pub(crate) fn new(dtypes: Vec<DType>) -> NestedBackward {
        NestedBackward { dtypes, started: Mutex::new(None) }
    }

    /// Computes the gradients of the inputs that are due. `tape` returns the nested tape; it is
    /// called once. `finish` gets the position of each input and its gradient, if it has one.
    pub(crate) fn run(
        &self,
        dys: &[Option<Tensor>],
        slots: Slots<'_>,
        tape: impl FnOnce() -> Result<NestedTape>,
        finish: impl Fn(usize, Option<Tensor>) -> Result<Option<Tensor>>,
    ) -> Result<()> {
        let pass = slots.pass;
        let (mut started, phase) = match self.take() {
            Some(started) => {
                let phase = started.unfinished.unwrap_or(Phase::Weights);
                (started, phase)
            }
            None => {
                // In [`Phase::Weights`], this record depends only on weights, so [`Phase::Inputs`]
                // skipped it: compute everything now.
                let phase = match pass.phase() {
                    Phase::Inputs => Phase::Inputs,
                    Phase::Full | Phase::Weights => Phase::Full,
                };
                (self.start(tape()?, dys, pass.device)?, phase)
            }
        };
        started.run(phase, pass)?;
        if started.unfinished.is_some() {
            pass.stop_in_record();
            self.keep(started);
            return Ok(());
        }

        for (at, slot) in slots.iter().enumerate() {
            // Other gradients are computed, or kept, until [`Phase::Weights`].
            if slot.due()
                && let Some(gradient) = finish(at, started.take(at)?)?
            {
                slot.add(|| Ok(gradient))?;
            }
        }
        if pass.phase() == Phase::Inputs {
            pass.defer_weights();
            self.keep(started);
        }
        Ok(())
    }

    fn keep(&self, started: Started) {
        *self.started.lock().unwrap_or_else(PoisonError::into_inner) = Some(started);
    }

    fn take(&self) -> Option<Started> {
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        started.take()
    }

    fn start(
        &self,
        nested: NestedTape,
        dys: &[Option<Tensor>],
        device: &Device,
    ) -> Result<Started> {
        let NestedTape { tape, inputs, outputs } = nested;
        let dys = in_dtypes(dys, &self.dtypes)?;
        let roots = outputs.iter().zip(dys).filter_map(|(id, dy)| id.zip(dy));
        let roots: Vec<(ValueId, Tensor)> = roots.collect();
        let backward = match roots.is_empty() && !tape.communicates {
            true => None,
            false => Some(Backward::from_ids(tape, roots, device)?),
        };
        Ok(Started { backward, unfinished: None, inputs })
    }
}
