//! The result of work that may still be running.

use std::fmt;

use super::scope::Join;
use crate::Result;

/// The result of work that may still be running, and the tensors that the work uses. The work is
/// either enqueued on another stream ([`with_stream`](crate::with_stream)) or completed by other
/// host threads ([`Pending::by_host`]).
///
/// If it is dropped without [`Pending::wait`], the memory is still kept until the work is done.
#[must_use = "the result is ready for the current stream after `wait`"]
pub struct Pending<T>(Work<T>);

enum Work<T> {
    Stream { value: T, join: Join },
    Host(Box<dyn FnOnce() -> Result<T> + Send>),
}

impl<T> Pending<T> {
    /// The result of a scope's work.
    pub(super) fn on_stream(value: T, join: Join) -> Pending<T> {
        Pending(Work::Stream { value, join })
    }

    /// Work that other host threads complete. `wait` blocks until it is complete, usually on a
    /// [`Completion`](crate::Completion), and returns the result. `wait` owns the tensors that
    /// [`Pending::wait`] returns; the threads that do the work own the ones that they use.
    pub fn by_host(wait: impl FnOnce() -> Result<T> + Send + 'static) -> Pending<T> {
        Pending(Work::Host(Box::new(wait)))
    }

    /// Waits for the work, and returns its result. For work on a stream, the current stream waits
    /// and the host does not. For work of host threads, the calling thread blocks.
    ///
    /// # Errors
    /// When the driver fails; the error of host work.
    pub fn wait(self) -> Result<T> {
        match self.0 {
            Work::Stream { value, mut join } => {
                join.join()?;
                Ok(value)
            }
            Work::Host(wait) => wait(),
        }
    }

    /// The same work with another form of its result, such as one tensor of several. `f` must not
    /// read or compute: work on a stream may not have written the tensors yet.
    pub fn map<U>(self, f: impl FnOnce(T) -> U + Send + 'static) -> Pending<U>
    where
        T: 'static,
    {
        match self.0 {
            Work::Stream { value, join } => Pending(Work::Stream { value: f(value), join }),
            Work::Host(wait) => Pending::by_host(move || wait().map(f)),
        }
    }

    /// [`Pending::map`] with a function that can fail; [`Pending::wait`] returns its error.
    pub fn and_then<U>(self, f: impl FnOnce(T) -> Result<U> + Send + 'static) -> Pending<U>
    where
        T: 'static,
    {
        match self.0 {
            Work::Stream { value, mut join } => match f(value) {
                Ok(value) => Pending(Work::Stream { value, join }),
                Err(error) => Pending::by_host(move || {
                    join.join()?;
                    Err(error)
                }),
            },
            Work::Host(wait) => Pending::by_host(move || wait().and_then(f)),
        }
    }
}

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Work::Stream { join, .. } => write!(f, "Pending(on {})", join.device()),
            Work::Host(_) => f.write_str("Pending(on the host)"),
        }
    }
}
