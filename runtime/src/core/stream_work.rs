//! Work on a stream that another host thread enqueues, such as a collective between GPUs.
//!
//! The thread that owns the operands begins the work, and waits for it. Between the two, any thread
//! may enqueue kernels and copies, and order them after work of other devices by events.
//!
//! [`StreamWork::begin`] does not make the stream wait. If it did, work that began earlier on the
//! stream and is enqueued later would also wait for what the thread computed in between. So the
//! work itself waits for [`StreamWork::ready`]. Beginning also returns no freed memory to the
//! stream: tensors that the work allocates stay within it, so no other stream uses them.

use std::ffi::c_void;
use std::sync::Arc;
use std::thread::{self, ThreadId};

use meshgrad_error::bail;

use crate::Result;
use crate::core::gpu_slice::GpuSlice;
use crate::core::stream::{Join, Scope, ScopeGuard, Stream};
use crate::driver::Event;

/// Work that has begun on a stream and may still be enqueued, by any thread.
///
/// If it is dropped, the memory of its operands is kept until what was enqueued is done.
pub struct StreamWork {
    /// `None` after a panic in [`StreamWork::run`].
    scope: Option<Scope>,
    ready: StreamEvent,
    thread: ThreadId,
}

/// A point in the work of a stream; nothing on a CPU device. Cheap to clone.
#[derive(Clone)]
pub struct StreamEvent(Option<Arc<Event>>);

impl StreamEvent {
    pub(crate) fn new(event: Option<Event>) -> StreamEvent {
        StreamEvent(event.map(Arc::new))
    }

    /// Whether the work before it is done.
    ///
    /// # Errors
    /// When the driver fails, also because of that work.
    pub fn is_done(&self) -> Result<bool> {
        self.0.as_ref().map_or(Ok(true), |event| event.is_done())
    }
}

impl StreamWork {
    /// Begins work on `stream`. The tensors that `lend` lends
    /// ([`Tensor::lend`](crate::Tensor::lend)) are used by the work until it is waited for. During
    /// [`Device::capture`](crate::Device::capture), this thread enqueues the work and waits for it.
    ///
    /// # Errors
    /// The error of `lend`; when the driver fails.
    pub fn begin<T>(stream: &Stream, lend: impl FnOnce() -> Result<T>) -> Result<(StreamWork, T)> {
        let ready = StreamEvent::new(stream.enclosing_event()?);
        let guard = stream.enter().of_stream_work();
        let lent = lend();
        let work =
            StreamWork { scope: Some(guard.suspend()), ready, thread: thread::current().id() };
        Ok((work, lent?))
    }

    /// The end of all work that had been enqueued on the thread's current stream when this work
    /// began. That work wrote the operands, so [wait for it](StreamWork::wait_for) before using
    /// them.
    pub fn ready(&self) -> &StreamEvent {
        &self.ready
    }

    /// Makes work that is enqueued later wait for `event`, which may be of any device.
    ///
    /// # Errors
    /// When the driver fails.
    pub fn wait_for(&self, event: &StreamEvent) -> Result<()> {
        match (self.scope.as_ref().and_then(Scope::raw), &event.0) {
            (Some(stream), Some(event)) => stream.wait(event),
            _ => Ok(()),
        }
    }

    /// The end of the work that is enqueued so far.
    ///
    /// # Errors
    /// As [`StreamWork::wait_for`].
    pub fn event(&self) -> Result<StreamEvent> {
        let stream = self.scope.as_ref().and_then(Scope::raw);
        Ok(StreamEvent::new(stream.map(|it| it.record()).transpose()?))
    }

    /// Runs `enqueue` with the stream as the current stream of this thread.
    pub fn run<T>(&mut self, enqueue: impl FnOnce() -> T) -> T {
        let guard = self.scope.take().map(ScopeGuard::resume);
        let value = enqueue();
        self.scope = guard.map(ScopeGuard::suspend);
        value
    }

    /// Runs `enqueue` with the driver's handle of the stream, for a library that enqueues work there.
    /// The device's context is current. The memory of `used` is kept until the work is waited for.
    ///
    /// # Errors
    /// That of `enqueue`; when the driver fails, and on a device without streams.
    pub fn enqueue<'a, T>(
        &mut self,
        used: impl Iterator<Item = &'a GpuSlice<'a>>,
        enqueue: impl FnOnce(*mut c_void) -> Result<T>,
    ) -> Result<T> {
        let Some((scope, stream)) =
            self.scope.as_mut().and_then(|it| it.raw().cloned().map(|raw| (it, raw)))
        else {
            bail!(Unsupported, "StreamWork::enqueue: the work is not on a GPU");
        };
        scope.keep_others(used.map(GpuSlice::storage));
        stream.context().bind()?;
        enqueue(stream.raw().cast())
    }

    /// Ends the work.
    ///
    /// # Errors
    /// As [`StreamWork::wait_for`].
    pub fn finish(mut self) -> Result<StreamJoin> {
        let join = self.scope.take().map(Join::new).transpose()?;
        Ok(StreamJoin { join, thread: self.thread })
    }
}

impl Drop for StreamWork {
    fn drop(&mut self) {
        if let Some(scope) = self.scope.take() {
            // After an error the operands are leaked.
            drop(Join::new(scope).map(|join| StreamJoin { join: Some(join), thread: self.thread }));
        }
    }
}

/// A [`StreamWork`] that is enqueued completely.
#[must_use = "the operands are ready for the current stream after `wait`"]
pub struct StreamJoin {
    join: Option<Join>,
    thread: ThreadId,
}

impl StreamJoin {
    /// Makes the current stream wait for the work. The host does not wait.
    ///
    /// # Errors
    /// As [`StreamWork::wait_for`].
    pub fn wait(mut self) -> Result<()> {
        match self.join.take() {
            Some(mut join) => join.join(),
            None => Ok(()),
        }
    }
}

impl Drop for StreamJoin {
    /// On the thread that began the work, the current stream waits. On another thread the host
    /// waits, because the stream that may reuse the operands' memory is not known there.
    fn drop(&mut self) {
        if let Some(join) = self.join.take()
            && self.thread != thread::current().id()
        {
            join.synchronize();
        }
    }
}
