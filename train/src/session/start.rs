//! Where a run starts: the checkpoint it resumes from, if any.

use std::path::{Path, PathBuf};

use meshgrad_ckpt::Committed;
use meshgrad_models::Model;
use meshgrad_runtime::Device;

use super::resume::Resume;
use crate::Result;
use crate::checkpoint::{self, Change, ReadOptions};
use crate::config::Config;
use crate::data::Data;
use crate::intact::{Candidates, damage, damage_in};
use crate::ranks::{RunRanks, on_rank};
use crate::report::with_loading_bar;
use crate::run_folder::RunFolder;
use crate::tokenizer::Tokenizer;
use crate::trainer::Trainer;

/// The start of a run.
pub(super) struct Start<'a> {
    config: &'a Config,
    /// The newest checkpoint that seems to be intact.
    resume: Option<Committed>,
    /// The other checkpoints, on rank 0.
    candidates: Option<Candidates>,
    /// The settings that differ from those in the checkpoint.
    changes: Vec<Change>,
    /// Whether the checkpoint is in the folder of another run.
    is_of_other_run: bool,
}

impl<'a> Start<'a> {
    /// Chooses the checkpoint, and checks that its configuration fits this run.
    pub(super) fn choose(
        resume: &Resume,
        folder: &RunFolder,
        config: &'a Config,
    ) -> Result<Start<'a>> {
        let verify = config.checkpoint.verify;
        let mut candidates = match resume {
            Resume::Auto => Some(Candidates::of_run(folder.path(), verify)?),
            Resume::Never => None,
            Resume::From(path) => Some(Candidates::at(path, verify)?),
        };
        let chosen = candidates.as_mut().map(Candidates::choose).transpose()?;
        let chosen = chosen.flatten();
        let (changes, is_of_other_run) = match &chosen {
            Some(checkpoint) => (
                checkpoint::check_config(checkpoint, config)?,
                !is_in(checkpoint.path(), folder.path()),
            ),
            None => (Vec::new(), false),
        };
        Ok(Start { config, resume: chosen, candidates, changes, is_of_other_run })
    }

    /// The start that rank 0 has chosen.
    pub(super) fn of_other_rank(resume: Option<Committed>, config: &'a Config) -> Start<'a> {
        Start { config, resume, candidates: None, changes: Vec::new(), is_of_other_run: false }
    }

    /// Whether the checkpoint is in the folder of another run. That folder then has the metrics of
    /// the earlier steps.
    pub(super) fn is_of_other_run(&self) -> bool {
        self.is_of_other_run
    }

    /// The checkpoint.
    pub(super) fn checkpoint(&self) -> Option<&Committed> {
        self.resume.as_ref()
    }

    /// Checks that the digest of the text and the tokenizer are those of the checkpoint's run.
    pub(super) fn check_data(&self, text: u128, tokenizer: &Tokenizer) -> Result<()> {
        match self.checkpoint() {
            Some(checkpoint) => checkpoint::check_data(checkpoint, text, tokenizer),
            None => Ok(()),
        }
    }

    /// Restores the state of `trainer`, from an earlier checkpoint if this one is damaged on any
    /// rank. `packing` is the digest of how the rows are packed. Returns the number of steps done, and
    /// adds messages to `notes`.
    pub(super) fn restore<M: Model>(
        mut self,
        data: &Data,
        packing: Option<&str>,
        trainer: &Trainer<M>,
        ranks: &RunRanks<'_>,
        device: &Device,
        notes: &mut Vec<String>,
    ) -> Result<u64> {
        let Some(chosen) = self.resume.take() else {
            return Ok(0);
        };
        let mut path = chosen.path().to_owned();
        loop {
            // A checkpoint need not have buffers.
            checkpoint::init_buffers(&trainer.model, device, self.config.train.seed)?;
            let read = self.read(&path, packing, trainer, ranks.is_first());
            match ranks.agree_on_damage(read)? {
                Ok(step) => {
                    self.explain(notes);
                    return Ok(step);
                }
                Err(problem) => path = ranks.broadcast(|| self.skip(problem, data))?,
            }
        }
    }

    /// The step of the checkpoint at `path`, whose state `trainer` then has; the problem if this rank
    /// sees damage.
    fn read<M: Model>(
        &self,
        path: &Path,
        packing: Option<&str>,
        trainer: &Trainer<M>,
        is_first: bool,
    ) -> Result<Result<u64, String>> {
        let verify = self.config.checkpoint.verify;
        let checkpoint = match Committed::open(path) {
            Ok(checkpoint) => checkpoint,
            Err(error) => return Ok(Err(damage(error)?)),
        };
        let read = |progress: &(dyn Fn(u64, u64) + Sync)| {
            let part = trainer.is_part();
            let options = ReadOptions { verify, progress, part, ..ReadOptions::default() };
            checkpoint::restore(&checkpoint, &trainer.model, &trainer.optimizer, options)
        };
        let restored = match is_first {
            true => with_loading_bar(read),
            false => read(&|_, _| {}),
        };
        match restored {
            Ok(state) => {
                checkpoint::check_packing(&checkpoint, &state, packing)?;
                Ok(Ok(state.step))
            }
            Err(error) => Ok(Err(damage_in(&checkpoint, error, verify)?)),
        }
    }

    /// On rank 0, the path of the checkpoint to try after the chosen one, which has the damage
    /// `problem`.
    fn skip(&mut self, problem: String, data: &Data) -> Result<PathBuf> {
        let next = self.choose_next(problem)?;
        checkpoint::check_data(&next, data.texts.digest, &data.tokenizer)?;
        Ok(next.path().to_owned())
    }

    fn choose_next(&mut self, problem: String) -> Result<Committed> {
        let candidates = self.candidates.as_mut();
        // Only rank 0 has candidates, and only it chooses.
        let candidates = candidates.ok_or_else(|| on_rank(0, &problem))?;
        let next = candidates.skip_damaged(problem)?;
        self.changes = checkpoint::check_config(&next, self.config)?;
        Ok(next)
    }

    /// Chooses another checkpoint in place of the one that a rank sees to be damaged.
    pub(super) fn choose_again(&mut self, problem: String) -> Result<()> {
        self.resume = Some(self.choose_next(problem)?);
        Ok(())
    }

    /// Adds what happened to checkpoints, and which settings have changed.
    fn explain(&self, notes: &mut Vec<String>) {
        let skipped = self.candidates.iter().flat_map(Candidates::skipped);
        notes.extend(skipped.map(|why| format!("skipped: {why}")));
        notes.extend(self.changes.iter().map(|change| format!("changed: {change}")));
    }
}

/// Whether `folder` is the folder that has `checkpoint`.
fn is_in(checkpoint: &Path, folder: &Path) -> bool {
    let canonical = |path: &Path| path.canonicalize().ok();
    let Some(folder) = canonical(folder) else {
        return false;
    };
    let parent = match checkpoint.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Some(Path::new(".")),
        parent => parent,
    };
    // Both the folder and the checkpoint may be links.
    let target = canonical(checkpoint);
    parent.and_then(canonical).is_some_and(|parent| parent == folder)
        || target.as_deref().and_then(Path::parent) == Some(&folder)
}
