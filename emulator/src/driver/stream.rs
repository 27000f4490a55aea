//! Streams: queues whose operations run in submission order.

use std::thread;

use super::capture::CaptureId;
use super::context::ContextHandle;
use super::error::{Code, Result};
use super::handles::{Handle, Named};
use super::schedule::Ticket;
use super::work::{Condition, Pattern, Test, Work};
use super::{Driver, State};

pub(crate) type StreamHandle = Handle<Stream>;

/// A stream of a context.
pub(crate) struct Stream {
    pub(crate) context: ContextHandle,
    pub(crate) kind: StreamKind,
    priority: i32,
    /// The last operation submitted to it.
    pub(crate) last: Option<Ticket>,
    pub(crate) capture: Option<CaptureId>,
}

/// How a stream synchronizes with the legacy default stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamKind {
    /// The legacy default stream, which synchronizes with all blocking streams.
    Legacy,
    Blocking,
    /// The default stream of a thread: a blocking stream that cannot be destroyed.
    PerThread,
    NonBlocking,
}

impl Named for Stream {
    const NAME: &'static str = "stream";
}

impl Stream {
    pub(crate) fn new(context: ContextHandle, kind: StreamKind, priority: i32) -> Stream {
        Stream { context, kind, priority, last: None, capture: None }
    }

    fn is_blocking(&self) -> bool {
        matches!(self.kind, StreamKind::Blocking | StreamKind::PerThread)
    }

    /// Whether a caller created it and must destroy it.
    pub(crate) fn is_created(&self) -> bool {
        matches!(self.kind, StreamKind::Blocking | StreamKind::NonBlocking)
    }
}

/// `CU_STREAM_LEGACY`; handle 0 means the same.
const LEGACY: u64 = 1;
/// `CU_STREAM_PER_THREAD`.
const PER_THREAD: u64 = 2;
/// Lowest and highest priority.
pub(crate) const PRIORITIES: (i32, i32) = (0, -5);

impl Driver {
    /// `cuStreamCreateWithPriority`; priorities out of range are clamped.
    pub(crate) fn create_stream(&self, flags: u32, priority: i32) -> Result<StreamHandle> {
        let kind = match flags {
            0 => StreamKind::Blocking,
            1 => StreamKind::NonBlocking,
            _ => {
                let message = format!("{flags:#x} are not valid stream flags");
                return Err(Code::InvalidValue.because(message));
            }
        };
        self.with(|state| {
            let context = state.current()?;
            let priority = priority.clamp(PRIORITIES.1, PRIORITIES.0);
            Ok(state.streams.insert(Stream::new(context, kind, priority)))
        })
    }

    /// `cuStreamDestroy`: submitted operations still run.
    pub(crate) fn destroy_stream(&self, raw: u64) -> Result<()> {
        self.with(|state| {
            let handle = StreamHandle::from_raw(raw);
            let stream = state.streams.get(handle)?;
            state.check_context(stream.context)?;
            if !stream.is_created() {
                return Err(Code::InvalidHandle.because("a default stream cannot be destroyed"));
            }
            state.abandon_capture(handle, "one of its streams was destroyed");
            let stream = state.streams.remove(handle)?;
            state.keep_pending(&stream)
        })
    }

    /// `cuStreamSynchronize`.
    pub(crate) fn synchronize_stream(&self, raw: u64) -> Result<()> {
        let mut state = self.lock();
        let (stream, context) = state.stream(raw)?;
        state.reject_on_capturing(stream, "cuStreamSynchronize")?;
        let ticket = state.enqueue(stream, Vec::new(), Work::Join)?;
        let state = self.wait(state, |state| state.schedule.is_done(ticket));
        state.check_context(context)?;
        drop(state);
        self.release_pools_of(context);
        Ok(())
    }

    /// `cuStreamQuery`.
    pub(crate) fn query_stream(&self, raw: u64) -> Result<()> {
        let mut state = self.lock();
        let (stream, context) = state.stream(raw)?;
        state.reject_on_capturing(stream, "cuStreamQuery")?;
        // Each query makes progress, so that a polling program terminates.
        let state = self.progress(state, 1);
        state.check_context(context)?;
        match state.predecessors(stream)?.is_empty() {
            true => Ok(()),
            false => Err(Code::NotReady.because("the stream has pending operations")),
        }
    }

    /// `cuStreamGetFlags`.
    pub(crate) fn stream_flags(&self, raw: u64) -> Result<u32> {
        self.with(|state| {
            let (stream, _) = state.stream(raw)?;
            Ok(u32::from(state.streams.get(stream)?.kind == StreamKind::NonBlocking))
        })
    }

    /// `cuStreamGetPriority`.
    pub(crate) fn stream_priority(&self, raw: u64) -> Result<i32> {
        self.with(|state| {
            let (stream, _) = state.stream(raw)?;
            Ok(state.streams.get(stream)?.priority)
        })
    }

    /// `cuStreamGetCtx`.
    pub(crate) fn stream_context(&self, raw: u64) -> Result<ContextHandle> {
        self.with(|state| Ok(state.stream(raw)?.1))
    }

    /// Submits an operation, or captures it if the stream is capturing.
    pub(crate) fn submit(&self, raw: u64, work: Work) -> Result<()> {
        let mut state = self.lock();
        let (stream, _) = state.stream(raw)?;
        state.submit(stream, work)?;
        self.run_submitted(state, stream)
    }

    /// `cuStreamWriteValue32` and `cuStreamWriteValue64`.
    pub(crate) fn write_value(&self, raw: u64, at: u64, bytes: &[u8]) -> Result<()> {
        self.check_value(at, bytes.len())?;
        let write = Work::Fill { to: at, pattern: Pattern::new(bytes), count: 1 };
        self.submit(raw, write)
    }

    /// `cuStreamWaitValue32` and `cuStreamWaitValue64`.
    pub(crate) fn wait_value(
        &self,
        raw: u64,
        at: u64,
        value: u64,
        bytes: usize,
        flags: u32,
    ) -> Result<()> {
        self.check_value(at, bytes)?;
        // CU_STREAM_WAIT_VALUE_FLUSH concerns remote writes, which are never delayed here.
        let test = match flags & !(1 << 30) {
            0 => Test::AtLeast,
            1 => Test::Equal,
            2 => Test::And,
            3 => Test::Nor,
            _ => {
                let message = format!("{flags:#x} are not valid flags for a wait on a value");
                return Err(Code::InvalidValue.because(message));
            }
        };
        let condition = Condition { test, value, bytes };
        self.submit(raw, Work::WaitValue { at, condition })
    }

    fn check_value(&self, at: u64, bytes: usize) -> Result<()> {
        self.with(|state| state.check_range(at, bytes))?;
        match at % bytes as u64 {
            0 => Ok(()),
            _ => {
                let message =
                    format!("{at:#x} is not aligned to the value's size of {bytes} bytes");
                Err(Code::InvalidValue.because(message))
            }
        }
    }
}

impl State {
    /// The stream of a caller's handle, and its context. Default streams belong to the current
    /// context.
    pub(crate) fn stream(&mut self, raw: u64) -> Result<(StreamHandle, ContextHandle)> {
        let handle = match raw {
            0 | LEGACY => self.contexts.get(self.current()?)?.legacy,
            PER_THREAD => self.stream_of_thread(self.current()?)?,
            _ => StreamHandle::from_raw(raw),
        };
        let context = self.streams.get(handle)?.context;
        self.check_context(context)?;
        Ok((handle, context))
    }

    fn stream_of_thread(&mut self, context: ContextHandle) -> Result<StreamHandle> {
        let thread = thread::current().id();
        if let Some(known) = self.contexts.get(context)?.per_thread.get(&thread) {
            return Ok(*known);
        }
        let stream = Stream::new(context, StreamKind::PerThread, 0);
        let handle = self.streams.insert(stream);
        self.contexts.get_mut(context)?.per_thread.insert(thread, handle);
        Ok(handle)
    }

    /// Captures an operation if the stream is capturing; else enqueues it and returns its ticket.
    pub(crate) fn submit(&mut self, stream: StreamHandle, work: Work) -> Result<Option<Ticket>> {
        if self.streams.get(stream)?.capture.is_some() {
            self.capture_work(stream, work)?;
            return Ok(None);
        }
        self.enqueue(stream, Vec::new(), work).map(Some)
    }

    /// Enqueues an operation that depends on the stream's last operation and those in `after`.
    pub(crate) fn enqueue(
        &mut self,
        stream: StreamHandle,
        mut after: Vec<Ticket>,
        work: Work,
    ) -> Result<Ticket> {
        self.reject_implicit_sync(stream)?;
        after.extend(self.predecessors(stream)?);
        let context = self.streams.get(stream)?.context;
        let ticket = self.schedule.add(context, after, work);
        self.streams.get_mut(stream)?.last = Some(ticket);
        Ok(ticket)
    }

    /// The unfinished operations that the stream's next operation depends on.
    pub(crate) fn predecessors(&self, handle: StreamHandle) -> Result<Vec<Ticket>> {
        let stream = self.streams.get(handle)?;
        let legacy = self.contexts.get(stream.context)?.legacy;
        let of_others: Vec<Ticket> = match stream.kind {
            StreamKind::Legacy => {
                let blocking = self.streams.iter().map(|(_, it)| it);
                let here = blocking.filter(|it| it.is_blocking() && it.context == stream.context);
                let pending_after_destroy =
                    &self.contexts.get(stream.context)?.pending_after_destroy;
                here.filter_map(|it| it.last).chain(pending_after_destroy.iter().copied()).collect()
            }
            StreamKind::Blocking | StreamKind::PerThread => {
                self.streams.get(legacy)?.last.into_iter().collect()
            }
            StreamKind::NonBlocking => Vec::new(),
        };
        let all = stream.last.into_iter().chain(of_others);
        Ok(all.filter(|it| !self.schedule.is_done(*it)).collect())
    }

    /// Keeps the pending work of a destroyed stream: the legacy default stream still depends on it.
    fn keep_pending(&mut self, stream: &Stream) -> Result<()> {
        let schedule = &self.schedule;
        let pending_after_destroy =
            &mut self.contexts.get_mut(stream.context)?.pending_after_destroy;
        pending_after_destroy.extend(stream.last.filter(|_| stream.is_blocking()));
        pending_after_destroy.retain(|ticket| !schedule.is_done(*ticket));
        Ok(())
    }

    /// Makes the stream's next operation depend on `ticket` and on the stream's current
    /// dependencies.
    pub(crate) fn set_last(&mut self, stream: StreamHandle, ticket: Ticket) -> Result<()> {
        self.streams.get_mut(stream)?.last = Some(ticket);
        Ok(())
    }
}
