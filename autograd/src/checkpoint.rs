//! Activation checkpointing: keep the inputs of a block, and compute the rest again when backward
//! needs it.

use std::sync::{Mutex, PoisonError};

use meshgrad_runtime::{DType, Tensor};

#[cfg(doc)]
use crate::Error;
use crate::backward::Backward;
use crate::slot::{Dep, Pass, Phase, Slots};
use crate::tape::{BackwardFn, is_recording, record_nested, without_recording};
use crate::track::{in_dtypes, output};
use crate::var::{Node, ValueId};
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
    let (outputs, uses) = without_recording(|| block(constants))?;
    let outputs = outputs.map(|output| output.value().clone());

    let nested = Nested {
        kept: inputs.map(Var::save),
        dtypes: outputs.each_ref().map(Tensor::dtype),
        block,
        recomputed: Mutex::new(None),
    };
    let backward: BackwardFn = Box::new(move |dys, slots, pass| nested.backward(dys, slots, pass));
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
    recomputed: Mutex<Option<Recomputed>>,
}

struct Recomputed {
    backward: Backward,
    /// Gradients of the inputs.
    gradients: Vec<Option<Tensor>>,
}

impl<F, const N: usize, const M: usize> Nested<F, N, M>
where
    F: Fn([Var; N]) -> Result<[Var; M]>,
{
    fn backward(&self, dys: &[Option<Tensor>], slots: Slots<'_>, pass: &Pass<'_>) -> Result<()> {
        let recomputed = self
            .recomputed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let mut recomputed = match recomputed {
            Some(mut recomputed) => {
                pass.with_grads(|grads| recomputed.backward.run(Phase::Weights, grads, false))?;
                recomputed
            }
            None => {
                // A record that depends on weights alone is first met in the weights' phase: all of
                // it is due then.
                let phase = match pass.phase() {
                    Phase::Inputs => Phase::Inputs,
                    Phase::Full | Phase::Weights => Phase::Full,
                };
                let Some(recomputed) = self.recompute(dys, phase, pass)? else {
                    return Ok(());
                };
                recomputed
            }
        };

        for (slot, gradient) in slots.iter().zip(&mut recomputed.gradients) {
            // In the inputs' phase a gradient that is not due yet stays for the weights' phase.
            if let (true, Some(gradient)) = (slot.due(), gradient.take_if(|_| slot.due())) {
                slot.add(|| Ok(gradient))?;
            }
        }
        if pass.phase() == Phase::Inputs {
            pass.defer_weights();
            *self
                .recomputed
                .lock()
                .unwrap_or_else(PoisonError::into_inner) = Some(recomputed);
        }
        Ok(())
    }

    /// Computes the block again, and `phase` of its backward.
    fn recompute(
        &self,
        dys: &[Option<Tensor>],
        phase: Phase,
        pass: &Pass<'_>,
    ) -> Result<Option<Recomputed>> {
        let values: Result<Vec<Tensor>> = self.kept.iter().map(Saved::get).collect();
        let values: [Tensor; N] = values?.try_into().unwrap_or_else(|_| unreachable!());
        let ((inputs, outputs), tape) = Tape::record(|| {
            let inputs = values.map(Var::input);
            let outputs = (self.block)(inputs.clone())?;
            Ok((inputs, outputs))
        })?;

        let tracked = |(output, dy): (&'_ Var, &Option<Tensor>)| match output.node() {
            Node::Value(_) => dy.clone().map(|dy| (output.clone(), dy)),
            _ => None,
        };
        let dys = in_dtypes(dys, &self.dtypes)?;
        let roots: Vec<(Var, Tensor)> = outputs.iter().zip(&dys).filter_map(tracked).collect();
        if roots.is_empty() {
            return Ok(None);
        }
        let roots: Vec<(&Var, Tensor)> = roots.iter().map(|(var, dy)| (var, dy.clone())).collect();

        let mut backward = Backward::new(tape, &roots)?;
        pass.with_grads(|grads| backward.run(phase, grads, false))?;
        let gradients = inputs
            .iter()
            .map(|input| place(input).and_then(|place| backward.take(place)));
        let gradients = gradients.collect();
        Ok(Some(Recomputed {
            backward,
            gradients,
        }))
    }
}

fn place(var: &Var) -> Option<ValueId> {
    match var.node() {
        Node::Value(place) => Some(*place),
        _ => None,
    }
}
