//! Activation checkpointing: save only the inputs of a block, and recompute the rest in the
//! backward pass.

use std::collections::VecDeque;

use meshgrad_runtime::{RankScope, Tensor};

use crate::computed_once::{keeping, replaying};
use crate::nested::{NestedBackward, NestedTape};
use crate::slot::{Dep, Slots};
use crate::tape::{BackwardFn, is_recording, record_with, without_recording};
use crate::track::output;
use crate::var::Node;
use crate::{Result, Save, Saved, Tape, Var};

/// Runs `block` on `inputs` and saves only `inputs`. The backward pass runs `block` again on a
/// nested tape, in the [`RankScope`] of the original call.
///
/// `block` must compute the same both times; random ops do, because they take their key by value.
/// Captured parameters get their gradients as usual. Capturing any other tracked value is an error:
/// pass it as an input. Checkpointed blocks nest.
///
/// # Errors
/// Errors of `block`; when it uses a captured value.
pub fn checkpoint<const N: usize, T: Vars>(
    inputs: [&Var; N],
    block: impl Fn([Var; N]) -> Result<T> + Send + 'static,
) -> Result<T> {
    if !is_recording() {
        return block(inputs.map(Var::clone));
    }

    let constants = inputs.map(|input| Var::constant(input.value().clone()));
    let (ran, kept) = keeping(|| without_recording(|| block(constants)));
    let (mut outputs, effects) = ran?;
    let mut dtypes = Vec::new();
    outputs.each_var(&mut |output| dtypes.push(output.dtype()));

    let count = dtypes.len();
    let recompute = Recompute {
        saved: inputs.map(Var::save),
        kept: kept.iter().map(Save::save).collect(),
        block,
        scope: RankScope::current(),
        nested: NestedBackward::new(dtypes),
    };
    let backward: BackwardFn = Box::new(move |dys, slots| recompute.backward(dys, slots));
    let first = record_with(count, &inputs, Dep::Nothing, effects, backward)?;
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

impl Vars for () {
    fn each_var(&mut self, _: &mut dyn FnMut(&mut Var)) {}
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
struct Recompute<F, const N: usize> {
    saved: [Saved; N],
    /// What the block computes once, in order.
    kept: Vec<Saved>,
    block: F,
    scope: RankScope,
    nested: NestedBackward,
}

impl<F, T, const N: usize> Recompute<F, N>
where
    F: Fn([Var; N]) -> Result<T>,
    T: Vars,
{
    fn backward(&self, dys: &[Option<Tensor>], slots: Slots<'_>) -> Result<()> {
        self.nested.run(dys, slots, || self.recompute(), |_, gradient| Ok(gradient))
    }

    fn recompute(&self) -> Result<NestedTape> {
        let values: Result<Vec<Tensor>> = self.saved.iter().map(Saved::get).collect();
        let values: [Tensor; N] = values?.try_into().unwrap_or_else(|_| unreachable!());
        let record = || {
            let inputs = values.map(Var::input);
            let results = (self.block)(inputs.clone())?;
            Ok((inputs, results))
        };
        let kept: Result<VecDeque<Tensor>> = self.kept.iter().map(Saved::get).collect();
        let record = replaying(kept?, || self.scope.clone().run(|| Tape::record(record)));
        let ((inputs, mut results), tape) = record?;
        let mut outputs = Vec::new();
        results.each_var(&mut |output| outputs.push(output.clone()));
        NestedTape::new(tape, &inputs, &outputs)
    }
}
