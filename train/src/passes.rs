//! The forward and backward passes of a step: what interprets the actions of a program.

use std::collections::BTreeMap;

use meshgrad_autograd::{Grads, Tape};
use meshgrad_error::bail;
use meshgrad_models::{Compute, Loss, Model};
use meshgrad_pipeline::{Action, Op};
use meshgrad_runtime::ops;

use crate::Result;
use crate::sums::{StepSums, no_batch};

/// The passes of a stage that is the whole model.
pub(crate) struct Passes<'t, M, B> {
    pub(crate) model: &'t M,
    pub(crate) grads: &'t mut Grads,
    pub(crate) compute: Compute,
    /// The microbatches, in the order of their forward passes.
    pub(crate) batches: B,
    /// The backward passes that follow before the gradients are read.
    pub(crate) left: usize,
    /// Forward passes whose backward pass follows.
    pub(crate) recorded: BTreeMap<usize, (Loss, Tape)>,
}

impl<M: Model, B: Iterator<Item = Result<M::Batch>>> Passes<'_, M, B> {
    /// Runs an action. A backward pass adds to the gradients, and returns the sums of its
    /// microbatch.
    pub(crate) fn apply(&mut self, action: Action) -> Result<Option<StepSums>> {
        let Action::Compute(pass) = action else {
            bail!(Unsupported, "action {action}: this rank has one stage, which sends nothing");
        };
        match pass.op {
            Op::Forward => {
                let batch = self.batches.next().ok_or_else(no_batch)??;
                let recorded = Tape::record(|| self.model.loss(&batch, self.compute))?;
                self.recorded.insert(pass.microbatch, recorded);
                Ok(None)
            }
            Op::Backward => {
                let (loss, tape) = self.recorded.remove(&pass.microbatch).ok_or_else(no_batch)?;
                self.backward(&loss, tape)?;
                Ok(Some(StepSums::of(loss)))
            }
            Op::BackwardInput | Op::BackwardWeight => {
                bail!(Unsupported, "action {action}: a whole model has no inputs with gradients")
            }
        }
    }

    fn backward(&mut self, loss: &Loss, tape: Tape) -> Result<()> {
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            self.grads.last_pass();
        }
        let total = loss.total.value();
        let one = ops::full(total.device(), total.shape(), total.dtype(), 1.0)?;
        tape.backward(&[(&loss.total, one)], self.grads)
    }
}
