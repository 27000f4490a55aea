//! Saving beside training: one save in flight, none of its errors lost.
//!
//! ```text
//! training   step | snapshot | step | step | step | step | snapshot | step ...
//!                      |                                      |
//! saver                +--- write, seal, publish ---+         +--- write, ...
//! ```
//!
//! Training stops for as long as the copy of its state takes. A save that fails tells at the next
//! [`Saver::submit`], [`Saver::poll`] or [`Saver::wait`], and if none comes, when the saver is
//! dropped.

use std::any::Any;
use std::fmt;
use std::path::{Path, PathBuf};
use std::thread::{Builder, JoinHandle};

use crate::{Committed, Error, Result, Snapshot};

/// Work for a [`Saver`]: a [`Snapshot`], or anything else that ends with a `T`.
pub struct Task<T = Committed> {
    path: PathBuf,
    run: Box<dyn FnOnce() -> Result<T> + Send>,
}

impl<T> Task<T> {
    /// Does `run` in the background; `path` is what it saves, for messages. A rank that only writes
    /// parts ends with its [`WriteReport`](crate::WriteReport); a coordinator also waits for those of
    /// others; who keeps few checkpoints calls [`keep_last`](crate::keep_last) at the end.
    pub fn new(
        path: impl AsRef<Path>,
        run: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Task<T> {
        Task {
            path: path.as_ref().to_owned(),
            run: Box::new(run),
        }
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

/// What a saver does with a save that comes while another is running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenBusy {
    /// Training waits until the running one has ended.
    Wait,
    /// The new one is given back: it can be tried later, or left out.
    Reject,
}

/// What became of [`Saver::submit`].
#[derive(Debug)]
#[must_use]
pub enum Submitted<T = Committed> {
    /// The save has begun.
    Started {
        /// How the one before it ended, if nobody has asked before.
        previous: Option<Result<T>>,
    },
    /// Another save is running; this one has not begun.
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
/// weights.fill(2); // training goes on
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
            State::Running(path, _) => write!(f, "Saver(saves {})", path.display()),
            State::Ended(_) => f.write_str("Saver(ended)"),
        }
    }
}

impl<T: Send + 'static> Saver<T> {
    /// A saver with nothing to do.
    pub fn new(when_busy: WhenBusy) -> Saver<T> {
        Saver {
            when_busy,
            state: State::Idle,
            report: Box::new(|error| eprintln!("not saved: {error}")),
        }
    }

    /// Is told of a failed save that nobody asked about before the saver is dropped; the standard
    /// error stream is, unless this is called.
    pub fn report_to(mut self, report: impl Fn(&Error) + Send + 'static) -> Saver<T> {
        self.report = Box::new(report);
        self
    }

    /// Begins a save, after the running one or not at all, as [`WhenBusy`] says.
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
            Err(error) => State::Ended(Err(Error::io("start a thread to save", &path, error))),
        };
        Submitted::Started { previous }
    }

    /// Whether a save is running.
    pub fn is_running(&self) -> bool {
        matches!(&self.state, State::Running(_, thread) if !thread.is_finished())
    }

    /// How the last save ended; `None` while it is running and when that was told before.
    pub fn poll(&mut self) -> Option<Result<T>> {
        if self.is_running() { None } else { self.wait() }
    }

    /// Waits for the running save, if one is; `None` when its end was told before.
    pub fn wait(&mut self) -> Option<Result<T>> {
        match std::mem::replace(&mut self.state, State::Idle) {
            State::Idle => None,
            State::Ended(result) => Some(result),
            State::Running(path, thread) => Some(thread.join().unwrap_or_else(|panic| {
                let message = panic_text(&*panic);
                Err(Error::Panicked { path, message })
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
        .unwrap_or_else(|| "it gave no text".to_owned())
}
