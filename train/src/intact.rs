//! Chooses the checkpoint to read: the newest one that is intact. Those that are damaged are passed
//! over, and the caller reports them.
//!
//! Manifest and file sizes are checked before a checkpoint is read, its contents while it is read.
//! So a checkpoint that was chosen may still turn out to be damaged.

use std::path::{Path, PathBuf};

use meshgrad_ckpt::{Committed, Error as CheckpointError, scan};
use meshgrad_models::folder;

use crate::{Result, TrainError};

/// The file that makes a folder a checkpoint.
const MANIFEST: &str = "manifest.json";

/// The checkpoints of a run that may be read, the newest first.
pub struct Candidates {
    at: PathBuf,
    /// By ascending step.
    left: Vec<std::result::Result<Committed, CheckpointError>>,
    passed_over: Vec<String>,
    verify: bool,
}

impl Candidates {
    /// The checkpoints in the folder `run`. Without `verify`, only manifests and file sizes are
    /// checked.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn of_run(run: &Path, verify: bool) -> Result<Candidates> {
        let found = scan(run)?;
        let mut left: Vec<_> = found.complete.into_iter().map(Ok).collect();
        left.extend(found.incomplete.into_iter().map(Err));
        left.sort_by_key(step_of);
        Ok(Candidates {
            at: run.to_owned(),
            left,
            passed_over: Vec::new(),
            verify,
        })
    }

    /// The checkpoint at `path`, or those of the run at `path`; `None` if there is neither.
    ///
    /// # Errors
    /// When a folder cannot be read.
    pub fn find(path: &Path, verify: bool) -> Result<Option<Candidates>> {
        if !path.is_dir() {
            return Ok(None);
        }
        let candidates = match path.join(MANIFEST).exists() {
            false => Candidates::of_run(path, verify)?,
            true => Candidates::only(path, verify),
        };
        Ok((!candidates.left.is_empty()).then_some(candidates))
    }

    /// The checkpoint at `path`.
    fn only(path: &Path, verify: bool) -> Candidates {
        Candidates {
            at: path.to_owned(),
            left: vec![Committed::open(path)],
            passed_over: Vec::new(),
            verify,
        }
    }

    /// As [`Candidates::find`].
    ///
    /// # Errors
    /// As [`Candidates::find`]; [`TrainError::NoCheckpoint`]; [`TrainError::Checkpoint`] when there is
    /// nothing at `path`.
    pub fn at(path: &Path, verify: bool) -> Result<Candidates> {
        match Candidates::find(path, verify)? {
            Some(candidates) => Ok(candidates),
            // The error names the newest checkpoint beside it.
            None if !path.exists() => {
                Committed::open(path)?;
                Ok(Candidates::only(path, verify))
            }
            None => Err(TrainError::NoCheckpoint {
                at: path.to_owned(),
            }),
        }
    }

    /// The newest checkpoint that is left, with intact manifest, sizes and text files; `None` if
    /// there never was any.
    ///
    /// # Errors
    /// [`TrainError::NoneIntact`] when all have been passed over.
    pub fn choose(&mut self) -> Result<Option<Committed>> {
        while let Some(candidate) = self.left.pop() {
            let checked = candidate.map_err(folder::Error::from).and_then(|found| {
                if self.verify {
                    folder::check_texts(&found)?;
                }
                Ok(found)
            });
            match checked {
                Ok(found) => return Ok(Some(found)),
                Err(error) => self.passed_over.push(error.to_string()),
            }
        }
        match self.passed_over.is_empty() {
            true => Ok(None),
            false => Err(self.none_intact()),
        }
    }

    /// Passes over `checkpoint`, which [`Candidates::choose`] returned and in which reading failed
    /// with `error`. Returns the next one.
    ///
    /// # Errors
    /// `error`, if the checkpoint is not damaged; [`TrainError::NoneIntact`].
    pub fn pass_over(&mut self, checkpoint: &Committed, error: TrainError) -> Result<Committed> {
        let error = match error {
            error if !self.verify => return Err(error),
            TrainError::Folder(error) => folder::or_damage(checkpoint, error),
            TrainError::Checkpoint(error) => folder::or_damage(checkpoint, error.into()),
            error => return Err(error),
        };
        let is_damage = matches!(
            error,
            folder::Error::Damaged { .. } | folder::Error::NotFinite { .. }
        );
        if !is_damage {
            return Err(error.into());
        }
        self.passed_over.push(error.to_string());
        let next = self.choose()?;
        next.ok_or_else(|| self.none_intact())
    }

    /// Chooses a checkpoint and reads it with `read`, until that succeeds. `None` if there is no
    /// checkpoint.
    ///
    /// # Errors
    /// Those of `read` that are no damage; [`TrainError::NoneIntact`].
    pub fn read<T>(
        &mut self,
        mut read: impl FnMut(&Committed) -> Result<T>,
    ) -> Result<Option<(Committed, T)>> {
        let Some(mut chosen) = self.choose()? else {
            return Ok(None);
        };
        loop {
            match read(&chosen) {
                Ok(value) => return Ok(Some((chosen, value))),
                Err(error) => chosen = self.pass_over(&chosen, error)?,
            }
        }
    }

    /// Why newer checkpoints were passed over, the newest first.
    pub fn passed_over(&self) -> &[String] {
        &self.passed_over
    }

    fn none_intact(&self) -> TrainError {
        TrainError::NoneIntact {
            at: self.at.clone(),
            problems: self.passed_over.clone(),
        }
    }
}

/// The step in the name of a checkpoint.
fn step_of(candidate: &std::result::Result<Committed, CheckpointError>) -> Option<u64> {
    let path = match candidate {
        Ok(found) => found.path(),
        Err(CheckpointError::Incomplete { path, .. }) => path,
        // The file is in the folder.
        Err(CheckpointError::Io { path, .. }) => path.parent()?,
        Err(_) => return None,
    };
    path.file_name()?
        .to_str()?
        .strip_prefix("step-")?
        .parse()
        .ok()
}
