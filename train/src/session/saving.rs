//! Checkpoints in the background, and what ranks ask each other before a step.

use std::num::NonZeroUsize;
use std::sync::atomic::Ordering;
use std::time::Instant;

use meshgrad_ckpt::ranks::ShardedSnapshot;
use meshgrad_ckpt::{Committed, Task, keep_last, step_name};
use meshgrad_models::{Generate, Model, TokenBatch};
use meshgrad_runtime::Pending;

use super::run::Run;
use crate::events::Event;
use crate::ranks::on_rank;
use crate::{Error, Result, checkpoint};

/// What ranks ask each other before a step.
pub(super) struct Signals {
    /// Whether to stop, and whether a checkpoint could not be saved.
    any: Pending<[bool; 2]>,
    /// Why this rank could not save.
    failure: Option<Error>,
}

impl<M: Model<Batch = TokenBatch> + Generate> Run<'_, M> {
    /// Reports a checkpoint that is complete, and starts to ask the other ranks whether to go on.
    /// Their answer arrives during the step.
    pub(super) fn signals(&mut self) -> Result<Signals> {
        let saved = self.saver.poll();
        let failure = self.saved(saved).err();
        let any = self.ranks.any([self.is_asked_to_stop(), failure.is_some()])?;
        Ok(Signals { any, failure })
    }

    fn is_asked_to_stop(&self) -> bool {
        self.stop.is_some_and(|stop| stop.load(Ordering::Relaxed))
    }

    /// Whether all ranks stop after this step.
    ///
    /// # Errors
    /// When a rank could not save a checkpoint.
    pub(super) fn stopping(&mut self, signals: Signals) -> Result<bool> {
        let Signals { any, failure } = signals;
        let [stops, has_failed] = any.wait()?;
        if has_failed {
            let saved = match failure {
                Some(error) => Err(error),
                None => {
                    let saved = self.saver.wait();
                    self.saved(saved)
                }
            };
            self.ranks.agree(saved)?;
        }
        // A single rank need not agree, so it stops after this step.
        Ok(stops || self.ranks.count() == 1 && self.is_asked_to_stop())
    }

    /// `result` of a validation or a sample after `step`, if no rank has failed. If one has, the state
    /// is saved first, so that no step is lost. All ranks make this call.
    pub(super) fn or_save(&mut self, step: u64, result: Result<()>) -> Result<()> {
        let agreed = self.ranks.first_failure(&result);
        let Ok(Some((rank, message))) = agreed else {
            return result.and(agreed.map(drop));
        };
        if self.saved_step != Some(step) {
            self.save(step)?;
        }
        let saved = self.saver.wait();
        self.saved(saved)?;
        match rank == self.ranks.rank() {
            true => result,
            false => Err(on_rank(rank, &message)),
        }
    }

    /// Copies the state and starts to write it in the background.
    pub(super) fn save(&mut self, step: u64) -> Result<()> {
        let started = Instant::now();
        // The next task may remove the previous checkpoint, so the previous one is reported first.
        let previous = self.saver.wait();
        self.saved(previous)?;
        self.trainer.events.report(Event::CheckpointStarted { step })?;
        let state = checkpoint::RunState {
            step,
            seed: self.config.train.seed,
            data_digest: format!("{:032x}", self.data.texts.digest),
            packing_digest: self.packing_digest.clone(),
        };
        let saved = checkpoint::SavedRun {
            config: self.config,
            model: &self.trainer.model,
            optimizer: &self.trainer.optimizer,
            tokenizer: &self.data.tokenizer,
            state: &state,
            has_buffers: self.trainer.has_buffers(),
        };
        let run = self.folder.path().to_owned();
        let keep = NonZeroUsize::new(self.config.checkpoint.keep);
        let keep = keep.filter(|_| self.ranks.is_first());
        let snapshot = checkpoint::snapshot(&run, &saved);
        let mut ranks = self.ranks.of_checkpoint()?;
        let task = Task::new(run.join(step_name(step)), move || {
            let committed = ShardedSnapshot::save(snapshot, &mut ranks)?.committed;
            if let Some(keep) = keep {
                keep_last(run, keep)?;
            }
            Ok(committed)
        });
        // No save is running, so this one starts.
        let _ = self.saver.submit(task);
        self.saved_step = Some(step);
        self.save_stall = Some(started.elapsed());
        Ok(())
    }

    /// Reports a checkpoint that is complete, or returns the error of one that failed.
    pub(super) fn saved(&mut self, result: Option<meshgrad_ckpt::Result<Committed>>) -> Result<()> {
        match result.transpose()? {
            Some(committed) => {
                self.trainer.events.report(Event::CheckpointFinished { path: committed.path() })
            }
            None => Ok(()),
        }
    }
}
