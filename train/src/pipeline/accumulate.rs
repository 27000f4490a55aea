//! The gradients of a step.

use std::time::Instant;

use meshgrad_autograd::{Grads, Vars};
use meshgrad_models::{Compute, Model};
use meshgrad_pipeline::Action;
use meshgrad_runtime::{Device, Tensor};

use super::learned::Pipeline;
use super::passes::Passes;
use crate::Result;
use crate::sums::{ReducedSums, StepSums, no_batch};

/// What the microbatches of a step add up to, over all ranks and stages.
pub struct StepTotals {
    /// The summed loss, such as the cross-entropy in nats; the mean is `loss / weight`. A scalar, f32.
    pub loss: Tensor,
    /// What the loss and the gradients are divided by. A scalar, f32.
    pub weight: Tensor,
    /// The statistics of this rank's stages, for [`Model::after_step`].
    pub statistics: Vec<Tensor>,
}

impl<S: Vars + Clone> Pipeline<S> {
    /// Adds the gradients of the microbatches of a step to `grads`, in the order of the schedule. This
    /// is the part of a loop of your own that [`Trainer::step`](crate::trainer::Trainer::step) does
    /// before the optimizer runs. `model` has the stages of this rank, and `grads` are those of its
    /// optimizer ([`Optimizer::of_pipeline`](crate::optimizer::Optimizer::of_pipeline)). All ranks make
    /// this call once per step, each with its own part of every microbatch.
    ///
    /// # Errors
    /// Without microbatches, or for a number of them that the schedule does not support; errors of a
    /// microbatch, of the model and of the communication, which name the action.
    pub fn accumulate<M: Model<Stream = S>>(
        &self,
        model: &M,
        compute: Compute,
        microbatches: impl IntoIterator<Item = Result<M::Batch>, IntoIter: ExactSizeIterator>,
        grads: &mut Grads,
        device: &Device,
    ) -> Result<StepTotals> {
        let microbatches = microbatches.into_iter();
        if microbatches.len() == 0 {
            return Err(no_batch());
        }
        let count = microbatches.len();
        let passes = Passes::new(model, self, compute, microbatches);
        let sums = self.run(passes, count, grads, device, |_, _, _| Ok(()))?;
        Ok(StepTotals {
            loss: sums.loss()?,
            weight: sums.weight()?,
            statistics: sums.statistics()?,
        })
    }

    /// Runs the `passes` of a step of `count` microbatches. `finished` hears of each action, and when it
    /// started.
    pub(crate) fn run<M: Model<Stream = S>, B: Iterator<Item = Result<M::Batch>>>(
        &self,
        mut passes: Passes<'_, M, B>,
        count: usize,
        grads: &mut Grads,
        device: &Device,
        mut finished: impl FnMut(&mut Passes<'_, M, B>, Action, Instant) -> Result<()>,
    ) -> Result<ReducedSums> {
        let program = self.program(count)?;
        passes.expect(count);
        let mut sums = StepSums::default();
        for action in &program.ranks()[self.own()] {
            let started = Instant::now();
            if let Some((_, of_batch)) = passes.apply(*action, grads)? {
                sums.add(of_batch)?;
            }
            finished(&mut passes, *action, started)?;
        }
        passes.finish()?;
        self.reduced(&sums, device)
    }
}
