//! Chooses the newest intact checkpoint. Checkpoints that are damaged, or that the disk cannot
//! read, are passed over, and the caller reports them. Other failures, such as missing permissions,
//! are errors, because the checkpoint may be intact.
//!
//! Manifest and file sizes are checked before a checkpoint is read, its contents while it is read.
//! So a checkpoint that was chosen may still turn out to be damaged.

use std::path::{Path, PathBuf};

use meshgrad_ckpt::{Committed, Error as CheckpointError, IntegrityError, is_disk_failure, scan};
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
    /// As [`Candidates::find`]; [`TrainError::NoCheckpoint`]; [`TrainError::Checkpoint`] when there
    /// is nothing at `path`.
    pub fn at(path: &Path, verify: bool) -> Result<Candidates> {
        match Candidates::find(path, verify)? {
            Some(candidates) => Ok(candidates),
            // This fails with an error that names the newest checkpoint beside `path`.
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
    /// there were none from the start.
    ///
    /// # Errors
    /// [`TrainError::NoneIntact`] when all have been passed over; [`TrainError::Unreadable`].
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
                Err(error) if is_damage(&error) => self.passed_over.push(error.to_string()),
                Err(source) => return Err(TrainError::Unreadable { source }),
            }
        }
        match self.passed_over.is_empty() {
            true => Ok(None),
            false => Err(self.none_intact()),
        }
    }

    /// Passes over `checkpoint`, which was chosen but could not be read because of `error`. Returns
    /// the next checkpoint.
    ///
    /// # Errors
    /// `error`, if the checkpoint is not damaged; [`TrainError::NoneIntact`];
    /// [`TrainError::Unreadable`].
    pub fn pass_over(&mut self, checkpoint: &Committed, error: TrainError) -> Result<Committed> {
        let problem = match error {
            error if is_disk_failure(&error) => error.to_string(),
            error if !self.verify => return Err(error),
            TrainError::Folder(error) => damage(folder::or_damage(checkpoint, error))?,
            TrainError::Checkpoint(error) => damage(folder::or_damage(checkpoint, error.into()))?,
            error => return Err(error),
        };
        self.passed_over.push(problem);
        let next = self.choose()?;
        next.ok_or_else(|| self.none_intact())
    }

    /// Reads the newest checkpoint with `read`; if it is damaged, the next one, and so on. `None`
    /// if there is no checkpoint.
    ///
    /// # Errors
    /// Errors of `read` that are not damage; [`TrainError::NoneIntact`].
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

/// The message of `error` if it is damage; otherwise fails with `error`.
fn damage(error: folder::Error) -> Result<String> {
    match is_damage(&error) {
        true => Ok(error.to_string()),
        false => Err(error.into()),
    }
}

/// Whether an older checkpoint may be read instead.
fn is_damage(error: &folder::Error) -> bool {
    let is_damaged = matches!(
        error,
        folder::Error::Damaged { .. }
            | folder::Error::NotFinite { .. }
            | folder::Error::Checkpoint(CheckpointError::Incomplete { .. })
    );
    let is_newer = matches!(
        error,
        folder::Error::Checkpoint(CheckpointError::Incomplete {
            problem: IntegrityError::NewerVersion { .. },
            ..
        })
    );
    (is_damaged && !is_newer) || is_disk_failure(error)
}

/// The step in the name of a checkpoint.
fn step_of(candidate: &std::result::Result<Committed, CheckpointError>) -> Option<u64> {
    let path = match candidate {
        Ok(found) => found.path(),
        // The folder, or a file or folder in it.
        Err(CheckpointError::Incomplete { path, .. } | CheckpointError::Io { path, .. }) => path,
        Err(_) => return None,
    };
    path.ancestors().find_map(|path| {
        let name = path.file_name()?.to_str()?;
        name.strip_prefix("step-")?.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use std::io;

    use meshgrad_ckpt::{Staging, step_name};

    use super::*;

    const EIO: i32 = 5;
    const EACCES: i32 = 13;

    fn save(run: &Path, step: u64) -> Committed {
        let mut staging = Staging::new(run, &step_name(step)).unwrap();
        staging.write("config.json", b"{}").unwrap();
        staging.commit().unwrap()
    }

    /// A failure to read a file of a checkpoint, with the system's error `number`.
    fn unreadable(run: &Path, step: u64, number: i32) -> CheckpointError {
        CheckpointError::Io {
            action: "read",
            path: run.join(step_name(step)).join("trainer/state.json"),
            source: io::Error::from_raw_os_error(number),
        }
    }

    fn with(run: &Path, step: u64, number: i32) -> Candidates {
        let mut candidates = Candidates::of_run(run, true).unwrap();
        candidates.left.push(Err(unreadable(run, step, number)));
        candidates.left.sort_by_key(step_of);
        candidates
    }

    /// The step of the chosen checkpoint, and why newer ones were passed over.
    fn chosen(mut candidates: Candidates) -> Result<(Option<u64>, Vec<String>)> {
        let chosen = candidates.choose()?.and_then(|found| found.step());
        Ok((chosen, candidates.passed_over))
    }

    /// A checkpoint that the disk cannot read is passed over and reported. Missing permissions are
    /// an error that names the file, unless a newer checkpoint can be read.
    #[test]
    fn disks_fail_but_permissions_are_no_damage() {
        let place = tempfile::tempdir().unwrap();
        let run = place.path();
        save(run, 2);
        let (step, passed_over) = chosen(with(run, 4, EIO)).unwrap();
        assert_eq!((step, passed_over.len()), (Some(2), 1));
        assert!(passed_over[0].contains("step-000004/trainer/state.json"));

        let error = chosen(with(run, 4, EACCES)).unwrap_err();
        let message = error.to_string();
        assert!(matches!(error, TrainError::Unreadable { .. }), "{message}");
        assert!(
            message.contains("step-000004/trainer/state.json"),
            "{message}"
        );
        assert_eq!(chosen(with(run, 1, EACCES)).unwrap(), (Some(2), vec![]));
    }

    #[test]
    fn a_checkpoint_of_a_newer_program_is_not_passed_over() {
        let place = tempfile::tempdir().unwrap();
        let run = place.path();
        save(run, 2);
        let mut candidates = Candidates::of_run(run, true).unwrap();
        candidates.left.push(Err(CheckpointError::Incomplete {
            path: run.join("step-000004"),
            problem: IntegrityError::NewerVersion { found: 9 },
        }));
        let error = chosen(candidates).unwrap_err();
        assert!(matches!(error, TrainError::Unreadable { .. }), "{error}");
    }

    /// Failures in the middle of reading are treated alike, with and without comparing digests:
    /// disk failures pass over the checkpoint, missing permissions are errors.
    #[test]
    fn failures_while_reading_are_told_apart() {
        let place = tempfile::tempdir().unwrap();
        let run = place.path();
        let sealed = [2, 4].map(|step| save(run, step));
        for verify in [true, false] {
            for number in [EIO, EACCES] {
                let mut candidates = Candidates::of_run(run, verify).unwrap();
                let read = candidates.read(|found| match found == &sealed[1] {
                    true => Err(unreadable(run, 4, number).into()),
                    false => Ok(found.step()),
                });
                match number {
                    EIO => assert_eq!(read.unwrap().unwrap().1, Some(2)),
                    _ => assert!(read.unwrap_err().to_string().contains("state.json")),
                }
                assert_eq!(candidates.passed_over().len(), usize::from(number == EIO));
            }
        }
    }
}
