//! Activation checkpointing: keep the inputs of a block, and compute the rest again when backward
//! needs it.

use std::sync::{Mutex, PoisonError};

use meshgrad_runtime::{DType, Tensor};

#[cfg(doc)]
use crate::Error;
use crate::sweep::{Phase, Slots, Sweep, Walk};
use crate::tape::{Backward, Dep, in_dtypes, is_recording, output, record_nested, suspended};
use crate::var::{Node, Place};
use crate::{Result, Saved, Tape, Var};

/// Runs `block` on `inputs` and keeps only these for backward, which runs `block` again on a tape
/// of its own.
///
/// `block` must compute the same both times: random ops take their key by value, so they do.
/// Parameters that it captures get their gradients as ever; any other tracked value that it
/// captures is an error: pass it as an input. Checkpoints nest.
///
/// # Errors
/// What `block` returns; [`Error::OtherTape`] for a captured value.
pub fn checkpoint<const N: usize, const M: usize>(
    inputs: [&Var; N],
    block: impl Fn([Var; N]) -> Result<[Var; M]> + Send + 'static,
) -> Result<[Var; M]> {
    if !is_recording() {
        return block(inputs.map(Var::clone));
    }

    let constants = inputs.map(|input| Var::constant(input.value().clone()));
    let (outputs, uses) = suspended(|| block(constants))?;
    let outputs = outputs.map(|output| output.value().clone());

    let nested = Nested {
        kept: inputs.map(Var::save),
        dtypes: outputs.each_ref().map(Tensor::dtype),
        block,
        walked: Mutex::new(None),
    };
    let backward: Backward = Box::new(move |dys, slots, sweep| nested.backward(dys, slots, sweep));
    let first = record_nested(M, &inputs, Dep::Nothing, uses, backward)?;
    let mut at = 0..M;
    Ok(outputs.map(|value| output(value, first, at.next().unwrap_or(0))))
}

/// What a checkpoint's record holds.
struct Nested<F, const N: usize, const M: usize> {
    kept: [Saved; N],
    /// Of its outputs.
    dtypes: [DType; M],
    block: F,
    /// After the inputs' phase: what the weights' phase goes on from.
    walked: Mutex<Option<Walked>>,
}

struct Walked {
    walk: Walk,
    /// Gradients of the inputs.
    gradients: Vec<Option<Tensor>>,
}

impl<F, const N: usize, const M: usize> Nested<F, N, M>
where
    F: Fn([Var; N]) -> Result<[Var; M]>,
{
    fn backward(&self, dys: &[Option<Tensor>], slots: Slots<'_>, sweep: &Sweep<'_>) -> Result<()> {
        let walked = self
            .walked
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let mut walked = match walked {
            Some(mut walked) => {
                sweep.with_grads(|grads| walked.walk.run(Phase::Weights, grads, false))?;
                walked
            }
            None => {
                // A record that depends on weights alone is first met in the weights' phase: all of
                // it is due then.
                let phase = match sweep.phase() {
                    Phase::Inputs => Phase::Inputs,
                    Phase::Full | Phase::Weights => Phase::Full,
                };
                let Some(walked) = self.walk(dys, phase, sweep)? else {
                    return Ok(());
                };
                walked
            }
        };

        for (slot, gradient) in slots.iter().zip(&mut walked.gradients) {
            // In the inputs' phase a gradient that is not due yet stays for the weights' phase.
            if let (true, Some(gradient)) = (slot.due(), gradient.take_if(|_| slot.due())) {
                slot.add(|| Ok(gradient))?;
            }
        }
        if sweep.phase() == Phase::Inputs {
            sweep.wait_for_weights();
            *self.walked.lock().unwrap_or_else(PoisonError::into_inner) = Some(walked);
        }
        Ok(())
    }

    /// Computes the block again, and `phase` of its backward.
    fn walk(
        &self,
        dys: &[Option<Tensor>],
        phase: Phase,
        sweep: &Sweep<'_>,
    ) -> Result<Option<Walked>> {
        let values: Result<Vec<Tensor>> = self.kept.iter().map(Saved::get).collect();
        let values: [Tensor; N] = values?.try_into().unwrap_or_else(|_| unreachable!());
        let ((inputs, outputs), tape) = Tape::record(|| {
            let inputs = values.map(Var::input);
            let outputs = (self.block)(inputs.clone())?;
            Ok((inputs, outputs))
        })?;

        let tracked = |(output, dy): (&'_ Var, &Option<Tensor>)| match output.node() {
            Node::At(_) => dy.clone().map(|dy| (output.clone(), dy)),
            _ => None,
        };
        let dys = in_dtypes(dys, &self.dtypes)?;
        let roots: Vec<(Var, Tensor)> = outputs.iter().zip(&dys).filter_map(tracked).collect();
        if roots.is_empty() {
            return Ok(None);
        }
        let roots: Vec<(&Var, Tensor)> = roots.iter().map(|(var, dy)| (var, dy.clone())).collect();

        let mut walk = Walk::new(tape, &roots)?;
        sweep.with_grads(|grads| walk.run(phase, grads, false))?;
        let gradients = inputs
            .iter()
            .map(|input| place(input).and_then(|place| walk.take(place)));
        let gradients = gradients.collect();
        Ok(Some(Walked { walk, gradients }))
    }
}

fn place(var: &Var) -> Option<Place> {
    match var.node() {
        Node::At(place) => Some(*place),
        _ => None,
    }
}
