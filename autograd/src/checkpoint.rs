//! Activation checkpointing: save only the inputs of a block, and recompute the rest in the
//! backward pass.

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

/// Runs `block` on `inputs` and saves only `inputs`. The backward pass runs `block` again on a
/// nested tape.
///
/// `block` must compute the same both times; random ops do, because they take their key by value.
/// Captured parameters get their gradients as usual. Capturing any other tracked value is an error:
/// pass it as an input. Checkpointed blocks nest.
///
/// # Errors
/// Errors of `block`; [`TapeError::OtherTape`](meshgrad_runtime::TapeError::OtherTape) for a
/// captured value.
pub fn checkpoint<const N: usize, T: Vars>(
    inputs: [&Var; N],
    block: impl Fn([Var; N]) -> Result<T> + Send + 'static,
) -> Result<T> {
    if !is_recording() {
        return block(inputs.map(Var::clone));
    }

    let constants = inputs.map(|input| Var::constant(input.value().clone()));
    let (mut outputs, uses) = without_recording(|| block(constants))?;
    let mut dtypes = Vec::new();
    outputs.each_var(&mut |output| dtypes.push(output.dtype()));

    let count = dtypes.len();
    let nested = Nested {
        saved: inputs.map(Var::save),
        dtypes,
        block,
        recomputed: Mutex::new(None),
    };
    let backward: BackwardFn = Box::new(move |dys, slots| nested.backward(dys, slots));
    let first = record_nested(count, &inputs, Dep::Nothing, uses, backward)?;
    let mut at = 0;
    outputs.each_var(&mut |var| {
        // A parameter that the block returns stays a parameter; its gradient needs no record.
        if !matches!(var.node(), Node::Param(_)) {
            *var = output(var.value().clone(), first, at);
        }
        at += 1;
    });
    Ok(outputs)
}

/// Results of a block: variables, and values of types that hold some.
pub trait Vars {
    /// Calls `f` with each variable, in the same order every time.
    fn each_var(&mut self, f: &mut dyn FnMut(&mut Var));
}

impl Vars for Var {
    fn each_var(&mut self, f: &mut dyn FnMut(&mut Var)) {
        f(self);
    }
}

impl<T: Vars, const N: usize> Vars for [T; N] {
    fn each_var(&mut self, f: &mut dyn FnMut(&mut Var)) {
        self.iter_mut().for_each(|vars| vars.each_var(f));
    }
}

impl<T: Vars> Vars for Vec<T> {
    fn each_var(&mut self, f: &mut dyn FnMut(&mut Var)) {
        self.iter_mut().for_each(|vars| vars.each_var(f));
    }
}

impl<T: Vars> Vars for Option<T> {
    fn each_var(&mut self, f: &mut dyn FnMut(&mut Var)) {
        self.iter_mut().for_each(|vars| vars.each_var(f));
    }
}

impl<A: Vars, B: Vars> Vars for (A, B) {
    fn each_var(&mut self, f: &mut dyn FnMut(&mut Var)) {
        self.0.each_var(f);
        self.1.each_var(f);
    }
}

/// The record of a checkpoint.
struct Nested<F, const N: usize> {
    saved: [Saved; N],
    /// The dtypes of the outputs.
    dtypes: Vec<DType>,
    block: F,
    /// The state between [`Phase::Inputs`] and [`Phase::Weights`].
    recomputed: Mutex<Option<Recomputed>>,
}

struct Recomputed {
    backward: Backward,
    /// Gradients of the inputs.
    gradients: Vec<Option<Tensor>>,
}

impl<F, T, const N: usize> Nested<F, N>
where
    F: Fn([Var; N]) -> Result<T>,
    T: Vars,
{
    fn backward(&self, dys: &[Option<Tensor>], slots: Slots<'_>) -> Result<()> {
        let pass = slots.pass;
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
                // In [`Phase::Weights`], this record depends only on weights, so [`Phase::Inputs`]
                // skipped it: compute everything now.
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
            // Gradients that are not needed in [`Phase::Inputs`] are kept for [`Phase::Weights`].
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

    /// Recomputes the block and runs `phase` of its backward. `None` if no output has a gradient.
    fn recompute(
        &self,
        dys: &[Option<Tensor>],
        phase: Phase,
        pass: &Pass<'_>,
    ) -> Result<Option<Recomputed>> {
        let values: Result<Vec<Tensor>> = self.saved.iter().map(Saved::get).collect();
        let values: [Tensor; N] = values?.try_into().unwrap_or_else(|_| unreachable!());
        let ((inputs, outputs), tape) = Tape::record(|| {
            let inputs = values.map(Var::input);
            let mut outputs = Vec::new();
            let mut results = (self.block)(inputs.clone())?;
            results.each_var(&mut |output| outputs.push(output.clone()));
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
            .map(|input| id_of(input).and_then(|id| backward.take(id)));
        let gradients = gradients.collect();
        Ok(Some(Recomputed {
            backward,
            gradients,
        }))
    }
}

fn id_of(var: &Var) -> Option<ValueId> {
    match var.node() {
        Node::Value(id) => Some(*id),
        _ => None,
    }
}
