//! Where a run starts: the checkpoint it resumes from, if any.

use std::path::Path;

use meshgrad_ckpt::Committed;
use meshgrad_models::Model;
use meshgrad_runtime::Device;

use super::Resume;
use crate::Result;
use crate::checkpoint::{self, Change, ReadOptions};
use crate::config::Config;
use crate::data::Data;
use crate::intact::Candidates;
use crate::report::with_loading_bar;
use crate::run_folder::RunFolder;
use crate::tokenizer::Tokenizer;
use crate::trainer::Trainer;

/// The start of a run.
pub(super) struct Start<'a> {
    config: &'a Config,
    /// The newest checkpoint that seems to be intact, and the others.
    resume: Option<(Committed, Candidates)>,
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
        let candidates = match resume {
            Resume::Auto => Some(Candidates::of_run(folder.path(), verify)?),
            Resume::Never => None,
            Resume::From(path) => Some(Candidates::at(path, verify)?),
        };
        let chosen = match candidates {
            None => None,
            Some(mut candidates) => candidates.choose()?.map(|chosen| (chosen, candidates)),
        };
        let (changes, is_of_other_run) = match &chosen {
            Some((checkpoint, _)) => (
                checkpoint::check_config(checkpoint, config)?,
                !is_in(checkpoint.path(), folder.path()),
            ),
            None => (Vec::new(), false),
        };
        Ok(Start {
            config,
            resume: chosen,
            changes,
            is_of_other_run,
        })
    }

    /// Whether the checkpoint is in the folder of another run. That folder then has the metrics of
    /// the earlier steps.
    pub(super) fn is_of_other_run(&self) -> bool {
        self.is_of_other_run
    }

    /// The checkpoint.
    pub(super) fn checkpoint(&self) -> Option<&Committed> {
        self.resume.as_ref().map(|(checkpoint, _)| checkpoint)
    }

    /// Checks that the digest of the text and the tokenizer are those of the checkpoint's run.
    pub(super) fn check_data(&self, text: u128, tokenizer: &Tokenizer) -> Result<()> {
        match self.checkpoint() {
            Some(checkpoint) => checkpoint::check_data(checkpoint, text, tokenizer),
            None => Ok(()),
        }
    }

    /// Restores the state of `trainer`, from an earlier checkpoint if this one is damaged. Returns
    /// the number of steps done, and adds messages to `notes`.
    pub(super) fn restore<M: Model>(
        self,
        data: &Data,
        trainer: &Trainer<M>,
        device: &Device,
        notes: &mut Vec<String>,
    ) -> Result<u64> {
        let Some((mut chosen, mut candidates)) = self.resume else {
            return Ok(0);
        };
        let (verify, mut changes) = (self.config.checkpoint.verify, self.changes);
        let (model, updater) = (&trainer.model, &trainer.updater);
        loop {
            // A checkpoint need not have buffers.
            checkpoint::init_buffers(model, device, self.config.train.seed)?;
            let restored = with_loading_bar(|progress| {
                let options = ReadOptions { verify, progress };
                checkpoint::restore(&chosen, model, updater, options)
            });
            let error = match restored {
                Ok(state) => {
                    let skipped = candidates.skipped().iter();
                    notes.extend(skipped.map(|why| format!("skipped: {why}")));
                    notes.extend(changes.iter().map(|change| format!("changed: {change}")));
                    return Ok(state.step);
                }
                Err(error) => error,
            };
            chosen = candidates.skip(&chosen, error)?;
            changes = checkpoint::check_config(&chosen, self.config)?;
            checkpoint::check_data(&chosen, data.digest, &data.tokenizer)?;
        }
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
    parent
        .and_then(canonical)
        .is_some_and(|parent| parent == folder)
        || target.as_deref().and_then(Path::parent) == Some(&folder)
}
