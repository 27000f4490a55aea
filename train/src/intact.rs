//! Chooses the newest intact checkpoint. Checkpoints that are damaged, or that the disk cannot
//! read, are skipped, and the caller reports them. Other failures, such as missing permissions,
//! are errors, because the checkpoint may be intact.
//!
//! Manifest and file sizes are checked before a checkpoint is read, its contents while it is read.
//! So a checkpoint that was chosen may still turn out to be damaged.

use std::path::{Path, PathBuf};

use meshgrad_ckpt::{Committed, is_disk_failure, path_of, scan};
use meshgrad_error::{bail, error};
use meshgrad_models::folder;

use crate::{Error, Kind, Result};

/// The file that makes a folder a checkpoint.
const MANIFEST: &str = "manifest.json";

/// The checkpoints of a run that may be read, the newest first.
pub struct Candidates {
    at: PathBuf,
    /// By ascending step.
    left: Vec<Result<Committed>>,
    skipped: Vec<String>,
    verify: bool,
    /// Whether a run resumes; otherwise only a model is read.
    resumes: bool,
}

impl Candidates {
    /// The checkpoints in the folder `run`, to resume from. Without `verify`, only manifests and
    /// file sizes are checked.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn of_run(run: &Path, verify: bool) -> Result<Candidates> {
        let found = scan(run)?;
        let mut left: Vec<_> = found.complete.into_iter().map(Ok).collect();
        left.extend(found.incomplete.into_iter().map(Err));
        left.sort_by_key(step_of);
        Ok(Candidates { at: run.to_owned(), left, skipped: Vec::new(), verify, resumes: true })
    }

    /// The checkpoint at `path`, or those of the run at `path`, to read a model from; `None` if
    /// there is neither.
    ///
    /// # Errors
    /// When a folder cannot be read.
    pub fn find(path: &Path, verify: bool) -> Result<Option<Candidates>> {
        if !path.is_dir() {
            return Ok(None);
        }
        let mut candidates = match path.join(MANIFEST).exists() {
            false => Candidates::of_run(path, verify)?,
            true => Candidates::only(path, verify),
        };
        candidates.resumes = false;
        Ok((!candidates.left.is_empty()).then_some(candidates))
    }

    /// The checkpoint at `path`.
    fn only(path: &Path, verify: bool) -> Candidates {
        Candidates {
            at: path.to_owned(),
            left: vec![Committed::open(path)],
            skipped: Vec::new(),
            verify,
            resumes: true,
        }
    }

    /// As [`Candidates::find`], to resume from.
    ///
    /// # Errors
    /// As [`Candidates::find`]; when there is nothing, or no checkpoint, at `path`.
    pub fn at(path: &Path, verify: bool) -> Result<Candidates> {
        match Candidates::find(path, verify)? {
            Some(candidates) => Ok(Candidates { resumes: true, ..candidates }),
            // This fails with an error that names the newest checkpoint beside `path`.
            None if !path.exists() => {
                Committed::open(path)?;
                Ok(Candidates::only(path, verify))
            }
            None => bail!(
                Missing,
                "{} is neither a checkpoint nor a run with checkpoints",
                path.display()
            ),
        }
    }

    /// The newest checkpoint that is left, with intact manifest, sizes and text files; `None` if
    /// there were none from the start.
    ///
    /// # Errors
    /// When all have been skipped; when one may be intact, but cannot be read.
    pub fn choose(&mut self) -> Result<Option<Committed>> {
        while let Some(candidate) = self.left.pop() {
            let checked = candidate.and_then(|found| {
                if self.verify {
                    folder::check_texts(&found)?;
                }
                Ok(found)
            });
            match checked {
                Ok(found) => return Ok(Some(found)),
                Err(error) if is_damage(&error) => self.skipped.push(error.to_string()),
                Err(cause) => {
                    let message = format!(
                        "{cause}; the checkpoint may be intact, so older ones are not tried; make it \
                         readable, or name another checkpoint"
                    );
                    return Err(Error::new(cause.kind(), message).caused_by(cause));
                }
            }
        }
        match self.skipped.is_empty() {
            true => Ok(None),
            false => Err(self.none_intact()),
        }
    }

    /// Skips `checkpoint`, which was chosen but could not be read because of `error`. Returns
    /// the next checkpoint.
    ///
    /// # Errors
    /// `error`, if the checkpoint is not damaged; as [`Candidates::choose`].
    pub fn skip(&mut self, checkpoint: &Committed, error: Error) -> Result<Committed> {
        let problem = damage_in(checkpoint, error, self.verify)?;
        self.skip_damaged(problem)
    }

    /// Skips the checkpoint that was chosen, because of the damage `problem`. Returns the next.
    ///
    /// # Errors
    /// As [`Candidates::choose`].
    pub(crate) fn skip_damaged(&mut self, problem: String) -> Result<Committed> {
        self.skipped.push(problem);
        let next = self.choose()?;
        next.ok_or_else(|| self.none_intact())
    }

    /// Reads the newest checkpoint with `read`; if it is damaged, the next one, and so on. `None`
    /// if there is no checkpoint.
    ///
    /// # Errors
    /// Errors of `read` that are not damage; as [`Candidates::choose`].
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
                Err(error) => chosen = self.skip(&chosen, error)?,
            }
        }
    }

    /// Why newer checkpoints were skipped, the newest first.
    pub fn skipped(&self) -> &[String] {
        &self.skipped
    }

    fn none_intact(&self) -> Error {
        let other = match self.resumes {
            true => "train from scratch with --resume never",
            false => "name another model",
        };
        let unverified = match (self.verify, self.resumes) {
            (false, _) => "",
            (true, true) => {
                "; with checkpoint.verify = false damaged contents are read as they are"
            }
            (true, false) => {
                "; with --no-verify (train: --set checkpoint.verify=false) damaged contents are \
                 read as they are"
            }
        };
        error!(
            Damaged,
            "no checkpoint of {} is intact:\n  {}\nrestore one from a copy, or {other}{unverified}",
            self.at.display(),
            self.skipped.join("\n  ")
        )
    }
}

/// The message of `error`, with which `checkpoint` could not be read, if the checkpoint is damaged;
/// otherwise fails with `error`. Without `verify`, only a disk that fails counts.
pub(crate) fn damage_in(checkpoint: &Committed, error: Error, verify: bool) -> Result<String> {
    match error {
        error if is_disk_failure(&error) => Ok(error.to_string()),
        error if !verify => Err(error),
        error => damage(folder::or_damage(checkpoint, error)),
    }
}

/// The message of `error` if it is damage; otherwise fails with `error`.
pub(crate) fn damage(error: Error) -> Result<String> {
    match is_damage(&error) {
        true => Ok(error.to_string()),
        false => Err(error),
    }
}

/// Whether an older checkpoint may be read instead.
fn is_damage(error: &Error) -> bool {
    // If a newer program wrote it, the kind is `Unsupported`.
    matches!(error.kind(), Kind::Damaged | Kind::NotFinite) || is_disk_failure(error)
}

/// The step in the name of a checkpoint.
fn step_of(candidate: &Result<Committed>) -> Option<u64> {
    let path = match candidate {
        Ok(found) => found.path(),
        // The folder, or a file or folder in it.
        Err(error) => path_of(error)?,
    };
    path.ancestors().find_map(|path| {
        let name = path.file_name()?.to_str()?;
        name.strip_prefix("step-")?.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use std::io;

    use meshgrad_ckpt::{IntegrityError, Staging, io_error, step_name};

    use super::*;

    const EIO: i32 = 5;
    const EACCES: i32 = 13;

    fn save(run: &Path, step: u64) -> Committed {
        let mut staging = Staging::new(run, &step_name(step)).unwrap();
        staging.write("config.json", b"{}").unwrap();
        staging.commit().unwrap()
    }

    /// A failure to read a file of a checkpoint, with the system's error `number`.
    fn unreadable(run: &Path, step: u64, number: i32) -> Error {
        let path = run.join(step_name(step)).join("trainer/state.json");
        io_error("read", &path, io::Error::from_raw_os_error(number))
    }

    fn with(run: &Path, step: u64, number: i32) -> Candidates {
        let mut candidates = Candidates::of_run(run, true).unwrap();
        candidates.left.push(Err(unreadable(run, step, number)));
        candidates.left.sort_by_key(step_of);
        candidates
    }

    /// The step of the chosen checkpoint, and why newer ones were skipped.
    fn chosen(mut candidates: Candidates) -> Result<(Option<u64>, Vec<String>)> {
        let chosen = candidates.choose()?.and_then(|found| found.step());
        Ok((chosen, candidates.skipped))
    }

    /// A checkpoint that the disk cannot read is skipped and reported. Missing permissions are
    /// an error that names the file, unless a newer checkpoint can be read.
    #[test]
    fn disks_fail_but_permissions_are_no_damage() {
        let place = tempfile::tempdir().unwrap();
        let run = place.path();
        save(run, 2);
        let (step, skipped) = chosen(with(run, 4, EIO)).unwrap();
        assert_eq!((step, skipped.len()), (Some(2), 1));
        assert!(skipped[0].contains("step-000004/trainer/state.json"));

        let error = chosen(with(run, 4, EACCES)).unwrap_err();
        let message = error.to_string();
        assert!(message.contains("; the checkpoint may be intact, so older ones"), "{message}");
        assert!(message.contains("step-000004/trainer/state.json"), "{message}");
        assert_eq!(chosen(with(run, 1, EACCES)).unwrap(), (Some(2), vec![]));
    }

    #[test]
    fn a_checkpoint_of_a_newer_program_is_not_skipped() {
        let place = tempfile::tempdir().unwrap();
        let run = place.path();
        save(run, 2);
        let mut candidates = Candidates::of_run(run, true).unwrap();
        let newer = IntegrityError::NewerVersion { found: 9 };
        candidates.left.push(Err(newer.of(&run.join("step-000004"))));
        let error = chosen(candidates).unwrap_err();
        assert_eq!(error.kind(), Kind::Unsupported);
        assert!(error.to_string().contains("; the checkpoint may be intact"), "{error}");
    }

    /// Failures in the middle of reading are treated alike, with and without comparing digests:
    /// disk failures skip the checkpoint, missing permissions are errors.
    #[test]
    fn failures_while_reading_are_told_apart() {
        let place = tempfile::tempdir().unwrap();
        let run = place.path();
        let sealed = [2, 4].map(|step| save(run, step));
        for verify in [true, false] {
            for number in [EIO, EACCES] {
                let mut candidates = Candidates::of_run(run, verify).unwrap();
                let read = candidates.read(|found| match found == &sealed[1] {
                    true => Err(unreadable(run, 4, number)),
                    false => Ok(found.step()),
                });
                match number {
                    EIO => assert_eq!(read.unwrap().unwrap().1, Some(2)),
                    _ => assert!(read.unwrap_err().to_string().contains("state.json")),
                }
                assert_eq!(candidates.skipped().len(), usize::from(number == EIO));
            }
        }
    }
}
