//! Saving in the background: at most one save at a time, and no error is lost.
//!
//! ```text
//! training   step | snapshot | step | step | step | step | snapshot | step ...
//!                      |                                      |
//! saver                +--- write, seal, publish ---+         +--- write, ...
//! ```
//!
//! Training stops only while its state is copied. The error of a failed save is returned by the
//! next [`Saver::submit`], [`Saver::poll`] or [`Saver::wait`], or reported when the saver is
//! dropped.

use std::any::Any;
use std::fmt;
use std::path::{Path, PathBuf};
use std::thread::{Builder, JoinHandle};

use meshgrad_error::{Error, Result, error};

use crate::error::io_error;
use crate::{Committed, Snapshot};

/// Work for a [`Saver`]: a [`Snapshot`], or any other work that returns a `T`.
pub struct Task<T = Committed> {
    path: PathBuf,
    run: Box<dyn FnOnce() -> Result<T> + Send>,
}

impl<T> Task<T> {
    /// A task that runs `run` in the background once it is submitted; messages name `path`. A rank
    /// that only writes parts returns its [`WriteReport`](crate::WriteReport). A coordinator also
    /// waits for the reports of other ranks. To limit the number of checkpoints, call
    /// [`keep_last`](crate::keep_last) at the end.
    pub fn new(
        path: impl AsRef<Path>,
        run: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Task<T> {
        Task { path: path.as_ref().to_owned(), run: Box::new(run) }
    }
}

impl<T> fmt::Debug for Task<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Task({})", self.path.display())
    }
}

impl From<Snapshot> for Task {
    fn from(snapshot: Snapshot) -> Task {
        Task::new(snapshot.path(), || snapshot.save())
    }
}

/// What a saver does with a save that is submitted while another is running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenBusy {
    /// Training waits until the running save has finished.
    Wait,
    /// The new save is returned, to be retried later or dropped.
    Reject,
}

/// The result of [`Saver::submit`].
#[derive(Debug)]
#[must_use]
pub enum Submitted<T = Committed> {
    /// The save has started.
    Started {
        /// The result of the previous save, unless it was already returned.
        previous: Option<Result<T>>,
    },
    /// Another save is running; this one has not started.
    Busy(Task<T>),
}

/// Saves in the background, one after the other.
///
/// ```
/// use meshgrad_ckpt::{Saver, Snapshot, Submitted, WhenBusy, step_name};
///
/// let run = tempfile::tempdir()?;
/// let mut weights = vec![1u8; 1000];
///
/// let mut saver = Saver::new(WhenBusy::Wait);
/// let mut snapshot = Snapshot::new(run.path(), &step_name(1));
/// snapshot.add("weights.bin", weights.clone());
/// let Submitted::Started { previous: None } = saver.submit(snapshot) else {
///     panic!("nothing was saved before")
/// };
///
/// weights.fill(2); // training continues
///
/// let committed = saver.wait().ok_or("nothing was saved")??;
/// assert_eq!(std::fs::read(committed.path().join("weights.bin"))?, [1; 1000]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Saver<T: Send + 'static = Committed> {
    when_busy: WhenBusy,
    state: State<T>,
    report: Box<dyn Fn(&Error) + Send>,
}

enum State<T> {
    Idle,
    Running(PathBuf, JoinHandle<Result<T>>),
    Ended(Result<T>),
}

impl<T: Send + 'static> fmt::Debug for Saver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.state {
            State::Idle => f.write_str("Saver(idle)"),
            State::Running(path, _) => write!(f, "Saver(saving {})", path.display()),
            State::Ended(_) => f.write_str("Saver(ended)"),
        }
    }
}

impl<T: Send + 'static> Saver<T> {
    /// An idle saver.
    pub fn new(when_busy: WhenBusy) -> Saver<T> {
        Saver {
            when_busy,
            state: State::Idle,
            report: Box::new(|error| eprintln!("checkpoint not saved: {error}")),
        }
    }

    /// Sets the callback for the error of a failed save whose result is not queried before the
    /// saver is dropped. The default writes to standard error.
    pub fn report_to(mut self, report: impl Fn(&Error) + Send + 'static) -> Saver<T> {
        self.report = Box::new(report);
        self
    }

    /// Starts a save. If another one is running, waits or rejects it, depending on [`WhenBusy`].
    pub fn submit(&mut self, task: impl Into<Task<T>>) -> Submitted<T> {
        let task = task.into();
        if self.when_busy == WhenBusy::Reject && self.is_running() {
            return Submitted::Busy(task);
        }
        let previous = self.wait();

        let Task { path, run } = task;
        let thread = Builder::new().name("save".to_owned());
        self.state = match thread.spawn(run) {
            Ok(thread) => State::Running(path, thread),
            Err(error) => State::Ended(Err(io_error("start a thread to save", &path, error))),
        };
        Submitted::Started { previous }
    }

    /// Whether a save is running.
    pub fn is_running(&self) -> bool {
        matches!(&self.state, State::Running(_, thread) if !thread.is_finished())
    }

    /// The result of the last save; `None` while it is running, or after it was returned.
    pub fn poll(&mut self) -> Option<Result<T>> {
        if self.is_running() { None } else { self.wait() }
    }

    /// Waits for the running save, if any; `None` after its result was returned.
    pub fn wait(&mut self) -> Option<Result<T>> {
        match std::mem::replace(&mut self.state, State::Idle) {
            State::Idle => None,
            State::Ended(result) => Some(result),
            State::Running(path, thread) => Some(thread.join().unwrap_or_else(|panic| {
                let (path, panic) = (path.display(), panic_text(&*panic));
                Err(error!(Invalid, "the background save of {path} panicked: {panic}"))
            })),
        }
    }
}

impl<T: Send + 'static> Drop for Saver<T> {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.wait() {
            (self.report)(&error);
        }
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "without a message".to_owned())
}
