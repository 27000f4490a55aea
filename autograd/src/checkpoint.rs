//! Activation checkpointing: save only the inputs of a block, and recompute the rest in the
//! backward pass.

use std::cell::RefCell;
use std::collections::VecDeque;

use meshgrad_runtime::{RankScope, Tensor};

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
    /// What [`kept_in_recompute`] returned, in order.
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

/// What blocks of checkpoints compute once.
#[derive(Default)]
struct ComputedOnce {
    /// In the first pass of a block: its tensors so far.
    kept: Option<Vec<Tensor>>,
    /// When a block is computed again: its further tensors.
    replayed: Option<VecDeque<Tensor>>,
}

thread_local! {
    static ONCE: RefCell<ComputedOnce> = RefCell::default();
}

/// The tensors that `compute` returns. In a [`checkpoint`], they are kept until the block has been
/// computed again, which does not call `compute`.
///
/// # Errors
/// Those of `compute`.
pub(crate) fn kept_in_recompute<const N: usize>(
    compute: impl FnOnce() -> Result<[Tensor; N]>,
) -> Result<[Tensor; N]> {
    let take =
        |all: &mut VecDeque<Tensor>| -> Vec<Tensor> { all.drain(..N.min(all.len())).collect() };
    let replayed = ONCE.with_borrow_mut(|once| once.replayed.as_mut().map(take));
    let tensors = match replayed.map(TryInto::try_into) {
        Some(Ok(replayed)) => replayed,
        _ => compute()?,
    };
    ONCE.with_borrow_mut(|once| {
        if let Some(kept) = &mut once.kept {
            kept.extend_from_slice(&tensors);
        }
    });
    Ok(tensors)
}

/// Runs `body`, and returns what [`kept_in_recompute`] returned in it.
fn keeping<T>(body: impl FnOnce() -> T) -> (T, Vec<Tensor>) {
    let outer = ONCE.with_borrow_mut(|once| once.kept.replace(Vec::new()));
    let result = body();
    let kept = ONCE.with_borrow_mut(|once| std::mem::replace(&mut once.kept, outer));
    (result, kept.unwrap_or_default())
}

/// Runs `body`, in which [`kept_in_recompute`] returns `tensors`.
fn replaying<T>(tensors: VecDeque<Tensor>, body: impl FnOnce() -> T) -> T {
    let inside = ComputedOnce { kept: None, replayed: Some(tensors) };
    let outer = ONCE.replace(inside);
    let result = body();
    ONCE.set(outer);
    result
}
