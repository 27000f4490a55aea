//! Streams and events of the driver.

use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::{self, CUevent, CUevent_flags, CUresult, CUstream, CUstream_flags};
use meshgrad_error::Result;

use super::Context;
use super::library::{call, check};

/// An in-order queue of work of one GPU.
pub(crate) struct RawStream {
    context: Arc<Context>,
    raw: CUstream,
    events: Events,
}

// SAFETY: a stream is a handle that the driver allows any thread to use.
unsafe impl Send for RawStream {}
// SAFETY: as above; the driver synchronizes.
unsafe impl Sync for RawStream {}

impl RawStream {
    /// A stream that does not synchronize with the driver's default stream.
    pub(crate) fn new(context: &Arc<Context>) -> Result<RawStream> {
        context.bind()?;
        let mut raw = std::ptr::null_mut();
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the context is current; writes one handle.
        unsafe { call!(&**context, cuStreamCreate(&mut raw, flags)) }?;
        Ok(RawStream { context: context.clone(), raw, events: Events::default() })
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// The handle. Memory that enqueued work uses must live until the work is done.
    pub(crate) fn raw(&self) -> CUstream {
        self.raw
    }

    /// Records an event after all work enqueued so far.
    pub(crate) fn record(self: &Arc<RawStream>) -> Result<Event> {
        self.context.bind()?;
        let raw = match self.events.take() {
            Some(raw) => raw,
            None => self.new_event()?,
        };
        let event = Event { stream: self.clone(), raw };
        // SAFETY: both handles exist and are of the current context.
        unsafe { call!(&*self.context, cuEventRecord(event.raw, self.raw)) }?;
        Ok(event)
    }

    /// Makes later work of this stream wait for `event`.
    pub(crate) fn wait(&self, event: &Event) -> Result<()> {
        self.context.bind()?;
        // SAFETY: both handles exist. The event may be of another context.
        unsafe { call!(&*self.context, cuStreamWaitEvent(self.raw, event.raw, 0)) }
    }

    /// Waits on the host until all work of this stream is done.
    pub(crate) fn synchronize(&self) -> Result<()> {
        self.context.bind()?;
        // SAFETY: the handle exists.
        unsafe { call!(&*self.context, cuStreamSynchronize(self.raw)) }
    }

    fn new_event(&self) -> Result<CUevent> {
        let mut raw = std::ptr::null_mut();
        let flags = CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: the context is current; writes one handle.
        unsafe { call!(&*self.context, cuEventCreate(&mut raw, flags)) }?;
        Ok(raw)
    }
}

impl Drop for RawStream {
    fn drop(&mut self) {
        // Errors in `drop` are ignored.
        if self.context.bind().is_err() {
            return;
        }
        for event in self.events.drain() {
            // SAFETY: created by `new_event`, and the only handle.
            let _ = unsafe { sys::cuEventDestroy_v2(event) };
        }
        // SAFETY: created in `new`, and the only handle. The driver finishes enqueued work first.
        let _ = unsafe { sys::cuStreamDestroy_v2(self.raw) };
    }
}

/// A recorded event. Dropping it returns the driver's event to its stream for reuse. A stream that
/// waits for it waits for this recording, even if the driver's event is recorded again.
pub(crate) struct Event {
    stream: Arc<RawStream>,
    raw: CUevent,
}

// SAFETY: an event is a handle that the driver allows any thread to use.
unsafe impl Send for Event {}
// SAFETY: as above; the driver synchronizes.
unsafe impl Sync for Event {}

impl Event {
    /// Whether the event was recorded on `stream`.
    pub(crate) fn is_of(&self, stream: &Arc<RawStream>) -> bool {
        Arc::ptr_eq(&self.stream, stream)
    }

    /// Whether the work before it is done.
    pub(crate) fn is_done(&self) -> Result<bool> {
        self.stream.context.bind()?;
        // SAFETY: the handle exists.
        match unsafe { sys::cuEventQuery(self.raw) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            code => check(&*self.stream.context, "cuEventQuery", code).map(|()| true),
        }
    }

    /// Waits on the host for the event.
    pub(crate) fn synchronize(&self) -> Result<()> {
        self.stream.context.bind()?;
        // SAFETY: the handle exists.
        unsafe { call!(&*self.stream.context, cuEventSynchronize(self.raw)) }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        self.stream.events.put(self.raw);
    }
}

/// Events to reuse.
#[derive(Default)]
struct Events(Mutex<Vec<CUevent>>);

impl Events {
    fn take(&self) -> Option<CUevent> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    fn put(&self, event: CUevent) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }

    fn drain(&mut self) -> Vec<CUevent> {
        std::mem::take(self.0.get_mut().unwrap_or_else(PoisonError::into_inner))
    }
}
