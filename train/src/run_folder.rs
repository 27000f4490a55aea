//! The layout of a run folder, and its lock.
//!
//! ```text
//! runs/NAME/
//!   config.toml        the whole resolved configuration
//!   tokenizer.json     text to ids
//!   tokens.bin         the token cache
//!   metrics.jsonl      one object per step
//!   events.out.tfevents.meshgrad
//!                      the same for TensorBoard
//!   loss.svg           the plot of the loss
//!   trace-rank-N.json  the trace of a step, one per rank
//!   step-000600/       a checkpoint
//!   lock               held while a trainer runs
//! ```

mod default_path;
mod rollback;

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use meshgrad_ckpt::io_error;
use meshgrad_ckpt::vfs::Lock;
use meshgrad_error::{Error, Result, bail, error};

pub(crate) use rollback::Rollback;

const CONFIG: &str = "config.toml";
const TOKENIZER: &str = "tokenizer.json";
const TOKENS: &str = "tokens.bin";
const METRICS: &str = "metrics.jsonl";
const TENSORBOARD: &str = "events.out.tfevents.meshgrad";
const PLOT: &str = "loss.svg";
const LOCK: &str = "lock";

/// The files that a run replaces, each by renaming a [`partial`] file.
const REPLACED: [&str; 6] = [CONFIG, TOKENIZER, TOKENS, METRICS, TENSORBOARD, PLOT];

/// The files that show what a run did.
const RESULTS: [&str; 3] = [METRICS, TENSORBOARD, PLOT];

/// A run folder, locked by rank 0 until the value is dropped or the process ends.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    /// The outermost folder that was created, if the folder was missing.
    created: Option<PathBuf>,
    /// `None` on ranks other than 0.
    lock: Option<Arc<Lock>>,
}

impl RunFolder {
    /// Creates the folder if it is missing, and locks it.
    ///
    /// # Errors
    /// When it cannot be written, or another process has locked it.
    pub fn open(path: &Path) -> Result<Self> {
        let folder = path.display();
        let unwritable = |cause| {
            error!(
                System,
                "cannot write to the run folder {folder}: {cause}; choose another with --run-dir"
            )
            .caused_by(cause)
        };

        let missing = path.ancestors().take_while(|folder| {
            let is_empty = folder.as_os_str().is_empty();
            !is_empty && !folder.exists()
        });
        let created = missing.last().map(Path::to_owned);
        fs::create_dir_all(path).map_err(unwritable)?;
        let lock = File::create(path.join(LOCK)).map_err(unwritable)?;
        match Lock::of_file(lock) {
            Ok(lock) => Ok(Self { path: path.to_owned(), created, lock: Some(Arc::new(lock)) }),
            Err(TryLockError::WouldBlock) => bail!(
                Busy,
                "the run folder {folder} is in use by another process; wait for it, or choose another \
                 with --run-dir"
            ),
            Err(TryLockError::Error(cause)) => Err(unwritable(cause)),
        }
    }

    /// The folder that another rank has opened, to read from.
    pub(crate) fn of_other_rank(path: &Path) -> RunFolder {
        RunFolder { path: path.to_owned(), created: None, lock: None }
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `config.toml`.
    pub fn config(&self) -> PathBuf {
        self.path.join(CONFIG)
    }

    /// `tokenizer.json`.
    pub fn tokenizer(&self) -> PathBuf {
        self.path.join(TOKENIZER)
    }

    /// `tokens.bin`.
    pub fn tokens(&self) -> PathBuf {
        self.path.join(TOKENS)
    }

    /// `metrics.jsonl`.
    pub fn metrics(&self) -> PathBuf {
        self.path.join(METRICS)
    }

    /// `events.out.tfevents.meshgrad`. TensorBoard recognizes files by the middle of this name.
    pub fn tensorboard(&self) -> PathBuf {
        self.path.join(TENSORBOARD)
    }

    /// `trace-rank-N.json` of rank N.
    pub fn trace(&self, rank: usize) -> PathBuf {
        self.path.join(format!("trace-rank-{rank}.json"))
    }

    /// `loss.svg`.
    pub fn plot(&self) -> PathBuf {
        self.path.join(PLOT)
    }

    /// Replaces a text file of this folder atomically: the text is written to a temporary file,
    /// which is synced and renamed.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, path: &Path, text: &str) -> Result<()> {
        replace(path, text.as_bytes())
    }

    /// Moves checkpoints after `step`, and copies of the metrics and the plot, to a new folder
    /// `set-aside-N`, so that a run can resume from `step`. For step 0, as
    /// [`RunFolder::set_aside_run`]. Returns the folder, if there was anything to move.
    ///
    /// # Errors
    /// When the folder cannot be read or written.
    pub fn set_aside_after(&self, step: u64) -> Result<Option<PathBuf>> {
        if step == 0 {
            return self.set_aside_run();
        }
        let later = self.steps()?.into_iter().filter(|(at, _)| *at > step);
        let later: Vec<PathBuf> = later.map(|(_, path)| path).collect();
        let copy = |from: &Path, to: &Path| fs::copy(from, to).map(drop);
        match later.is_empty() {
            true => Ok(None),
            false => self.set_aside(later, copy).map(Some),
        }
    }

    /// Moves all checkpoints, metrics and the plot to a new folder `set-aside-N`, so that another
    /// run can use this folder. Returns the folder, if there was anything to move.
    ///
    /// # Errors
    /// As [`RunFolder::set_aside_after`].
    pub fn set_aside_run(&self) -> Result<Option<PathBuf>> {
        let all: Vec<PathBuf> = self.steps()?.into_iter().map(|(_, path)| path).collect();
        let has_metrics = fs::metadata(self.metrics()).is_ok_and(|file| file.len() > 0);
        match all.is_empty() && !has_metrics {
            true => Ok(None),
            false => self.set_aside(all, |from, to| fs::rename(from, to)).map(Some),
        }
    }

    /// Moves `checkpoints` to a new folder, and applies `transfer` to the other results.
    fn set_aside(
        &self,
        checkpoints: Vec<PathBuf>,
        transfer: impl Fn(&Path, &Path) -> io::Result<()>,
    ) -> Result<PathBuf> {
        let aside = next_aside(&self.path);
        fs::create_dir(&aside).map_err(|cause| io_error("write", &aside, cause))?;
        for name in RESULTS {
            let (from, to) = (self.path.join(name), aside.join(name));
            if from.exists() {
                transfer(&from, &to).map_err(|cause| io_error("write", &to, cause))?;
            }
        }
        for path in checkpoints {
            let to = aside.join(path.file_name().unwrap_or_default());
            fs::rename(&path, &to).map_err(|cause| io_error("write", &to, cause))?;
        }
        Ok(aside)
    }

    /// Folders named after a step, complete or not.
    fn steps(&self) -> Result<Vec<(u64, PathBuf)>> {
        let read = |cause| io_error("read", &self.path, cause);
        let mut steps = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(read)? {
            let path = entry.map_err(read)?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            let step = name.and_then(|name| name.strip_prefix("step-")?.parse().ok());
            steps.extend(step.filter(|_| path.is_dir()).map(|step| (step, path)));
        }
        steps.sort_unstable();
        Ok(steps)
    }
}

/// The first folder `set-aside-N` of `run` that does not exist.
fn next_aside(run: &Path) -> PathBuf {
    let mut number = 1;
    loop {
        let aside = run.join(format!("set-aside-{number}"));
        if !aside.exists() {
            return aside;
        }
        number += 1;
    }
}

/// The file that is written and then renamed to `path`.
pub(crate) fn partial(path: &Path) -> PathBuf {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    partial.into()
}

/// Replaces `path` atomically: readers get either the old or the new content, even after a crash.
///
/// # Errors
/// When it cannot be written.
pub(crate) fn replace(path: &Path, content: &[u8]) -> Result<()> {
    try_replace(path, content).map_err(|cause| io_error("write", path, cause))
}

/// As [`replace`], with the system's error.
pub(crate) fn try_replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let temporary = partial(path);
    let mut file = File::create(&temporary)?;
    io::Write::write_all(&mut file, content)?;
    file.sync_all()?;
    fs::rename(&temporary, path)
}

/// The error for a file or folder of rank 0 that this rank does not see.
pub(crate) fn not_shared(path: &Path) -> Error {
    error!(
        Missing,
        "{} is missing or not that of rank 0; use a run folder on a file system that all ranks share",
        path.display()
    )
}

#[cfg(test)]
mod tests {
    use meshgrad_error::Kind;

    use super::*;

    #[test]
    fn a_run_folder_is_locked() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("runs/first");

        let held = RunFolder::open(&path).unwrap();
        let error = RunFolder::open(&path).unwrap_err();
        assert_eq!(error.kind(), Kind::Busy);
        assert!(error.to_string().contains("--run-dir"), "{error}");

        drop(held);
        RunFolder::open(&path).unwrap();
    }

    #[test]
    fn an_impossible_folder_is_named() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("file");
        fs::write(&file, "x").unwrap();

        let error = RunFolder::open(&file.join("run")).unwrap_err().to_string();
        assert!(error.contains("file/run") && error.contains("--run-dir"), "{error}");
    }

    #[test]
    fn later_checkpoints_are_set_aside() {
        let place = tempfile::tempdir().unwrap();
        let run = RunFolder::open(place.path()).unwrap();
        for name in ["step-000200", "step-1000000", "step-000050", "step-", "other-000300"] {
            fs::create_dir(run.path().join(name)).unwrap();
        }
        fs::write(run.metrics(), "{}").unwrap();
        fs::write(run.tensorboard(), "events").unwrap();

        assert_eq!(run.set_aside_after(1_000_000).unwrap(), None);
        let aside = run.set_aside_after(50).unwrap().unwrap();
        assert_eq!(aside, run.path().join("set-aside-1"));
        for name in ["step-000200", "step-1000000", "metrics.jsonl", "events.out.tfevents.meshgrad"]
        {
            assert!(aside.join(name).exists(), "{name}");
        }
        // The run goes on, so its own metrics stay.
        assert!(run.metrics().exists() && run.tensorboard().exists());
    }

    /// A new run has no file of the run before, which may have only metrics.
    #[test]
    fn a_run_is_set_aside_as_a_whole() {
        let place = tempfile::tempdir().unwrap();
        let run = RunFolder::open(place.path()).unwrap();
        fs::create_dir(run.path().join("step-000050")).unwrap();
        for results in [run.metrics(), run.tensorboard(), run.plot()] {
            fs::write(results, "{}").unwrap();
        }
        let aside = run.set_aside_after(0).unwrap().unwrap();
        for name in RESULTS.iter().chain(&["step-000050"]) {
            assert!(aside.join(name).exists(), "{name}");
            assert!(!run.path().join(name).exists(), "{name}");
        }

        fs::write(run.metrics(), "").unwrap();
        assert_eq!(run.set_aside_run().unwrap(), None);
        fs::write(run.metrics(), "{}").unwrap();
        let aside = run.set_aside_run().unwrap().unwrap();
        assert_eq!(aside, run.path().join("set-aside-2"));
        assert!(aside.join(METRICS).exists() && !run.metrics().exists());
    }

    #[test]
    fn files_are_replaced_atomically() {
        let place = tempfile::tempdir().unwrap();
        let run = RunFolder::open(place.path()).unwrap();
        for text in ["first, longer", "second"] {
            run.write(&run.config(), text).unwrap();
            assert_eq!(fs::read_to_string(run.config()).unwrap(), text);
        }
        let mut names: Vec<_> =
            fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["config.toml", "lock"]);
    }
}
