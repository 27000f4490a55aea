//! Stream capture: operations become nodes of a graph instead of being executed. Operations that a
//! capture cannot contain fail with the error codes of NVIDIA's driver (CUDA C++ Programming
//! Guide, "Creating a Graph Using Stream Capture").

use std::cell::Cell;
use std::collections::BTreeMap;
use std::thread::{self, ThreadId};

use super::error::{Code, Error, Result};
use super::event::{EventHandle, Point};
use super::graph::{Graph, GraphHandle, NodeIndex, NodeKind};
use super::stream::{StreamHandle, StreamKind};
use super::work::Work;
use super::{Driver, State};

/// Identifies a capture, uniquely in the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CaptureId(u64);

/// An active capture.
pub(crate) struct Capture {
    /// The stream in which it began and must end.
    origin: StreamHandle,
    mode: CaptureMode,
    thread: ThreadId,
    pub(crate) graph: Graph,
    /// The nodes that the next node of each stream depends on.
    tails: BTreeMap<StreamHandle, Vec<NodeIndex>>,
    /// Why the capture is invalidated, if it is.
    broken: Option<String>,
}

/// The threads in which a capture rejects unsafe calls, such as allocations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CaptureMode {
    /// In every thread.
    Global,
    /// In the thread that began the capture.
    ThreadLocal,
    /// In no thread.
    Relaxed,
}

impl CaptureMode {
    /// `CUstreamCaptureMode`.
    pub(crate) fn from_number(number: i32) -> Result<CaptureMode> {
        match number {
            0 => Ok(CaptureMode::Global),
            1 => Ok(CaptureMode::ThreadLocal),
            2 => Ok(CaptureMode::Relaxed),
            _ => Err(Code::InvalidValue.because(format!("{number} is not a CUstreamCaptureMode"))),
        }
    }
}

/// `CUstreamCaptureStatus`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CaptureStatus {
    None = 0,
    Active = 1,
    Invalidated = 2,
}

thread_local! {
    static THREAD_MODE: Cell<CaptureMode> = const { Cell::new(CaptureMode::Global) };
}

impl Driver {
    /// `cuThreadExchangeStreamCaptureMode`.
    pub(crate) fn exchange_capture_mode(&self, mode: CaptureMode) -> CaptureMode {
        THREAD_MODE.replace(mode)
    }

    /// `cuStreamBeginCapture`.
    pub(crate) fn begin_capture(&self, raw: u64, mode: CaptureMode) -> Result<()> {
        self.with(|state| {
            let (handle, _) = state.stream(raw)?;
            let stream = state.streams.get(handle)?;
            if stream.kind == StreamKind::Legacy {
                let message = "the legacy default stream cannot be captured; create a stream";
                return Err(Code::StreamCaptureUnsupported.because(message));
            }
            if stream.capture.is_some() {
                let message = format!("stream {handle:?} is already capturing");
                return Err(Code::IllegalState.because(message));
            }
            let capture = Capture {
                origin: handle,
                mode,
                thread: thread::current().id(),
                graph: Graph::default(),
                tails: BTreeMap::from([(handle, Vec::new())]),
                broken: None,
            };
            state.captures_begun += 1;
            let id = CaptureId(state.captures_begun);
            state.captures.insert(id, capture);
            state.streams.get_mut(handle)?.capture = Some(id);
            Ok(())
        })
    }

    /// `cuStreamEndCapture`.
    pub(crate) fn end_capture(&self, raw: u64) -> Result<GraphHandle> {
        self.with(|state| {
            let (stream, _) = state.stream(raw)?;
            let Some(id) = state.streams.get(stream)?.capture else {
                let message = format!("stream {stream:?} is not capturing");
                return Err(Code::IllegalState.because(message));
            };
            if let Some(rejected) = state.captures[&id].end_error(stream) {
                if rejected.code == Code::StreamCaptureUnmatched {
                    state.break_capture(id, &rejected.message);
                }
                return Err(rejected);
            }
            state.end(id)
        })
    }

    /// `cuStreamIsCapturing`.
    pub(crate) fn capture_status(&self, raw: u64) -> Result<CaptureStatus> {
        self.with(|state| {
            let (stream, _) = state.stream(raw)?;
            state.reject_implicit_sync(stream)?;
            let capture = state.streams.get(stream)?.capture.map(|id| &state.captures[&id]);
            Ok(match capture {
                None => CaptureStatus::None,
                Some(Capture { broken: None, .. }) => CaptureStatus::Active,
                Some(_) => CaptureStatus::Invalidated,
            })
        })
    }
}

impl Capture {
    fn end_error(&self, stream: StreamHandle) -> Option<Error> {
        if self.origin != stream {
            let message =
                format!("the capture must end in the stream where it began, {:?}", self.origin);
            return Some(Code::StreamCaptureUnmatched.because(message));
        }
        if self.mode != CaptureMode::Relaxed && self.thread != thread::current().id() {
            let message =
                format!("the capture must end in the thread that began it, {:?}", self.thread);
            return Some(Code::StreamCaptureWrongThread.because(message));
        }
        None
    }

    /// Streams whose last nodes the origin does not depend on.
    fn unjoined(&self) -> Vec<StreamHandle> {
        let joined = self.tails.get(&self.origin).map_or(&[][..], Vec::as_slice);
        let leaves = self.graph.leaves();
        let loose = |tail: &Vec<NodeIndex>| {
            tail.iter().any(|node| leaves.contains(node) && !joined.contains(node))
        };
        let streams = self.tails.iter().filter(|(_, tail)| loose(tail));
        streams.map(|(stream, _)| *stream).collect()
    }

    fn usable(&mut self) -> Result<&mut Capture> {
        match &self.broken {
            None => Ok(self),
            Some(why) => Err(Code::StreamCaptureInvalidated.because(why.clone())),
        }
    }
}

impl State {
    /// Adds an operation to a stream's capture.
    pub(crate) fn capture_work(&mut self, stream: StreamHandle, work: Work) -> Result<()> {
        self.capture_node(stream, NodeKind::Work(work))
    }

    /// Adds an event record node.
    pub(crate) fn capture_record(
        &mut self,
        stream: StreamHandle,
        event: EventHandle,
    ) -> Result<()> {
        self.capture_node(stream, NodeKind::Record(event))
    }

    /// Adds an event wait node.
    pub(crate) fn capture_wait(&mut self, stream: StreamHandle, event: EventHandle) -> Result<()> {
        self.capture_node(stream, NodeKind::Wait(event))
    }

    /// Adds a node after the last one of `stream`.
    pub(crate) fn capture_node(&mut self, handle: StreamHandle, kind: NodeKind) -> Result<()> {
        let stream = self.streams.get(handle)?;
        let (context, id) = (stream.context, stream.capture);
        let capture = self.capture(id)?.usable()?;
        let tail = capture.tails.entry(handle).or_default();
        let node = capture.graph.add(context, std::mem::take(tail), kind);
        *tail = vec![node];
        Ok(())
    }

    /// The nodes that the stream's next node depends on.
    pub(crate) fn captured_tail(&mut self, stream: StreamHandle) -> Result<&mut Vec<NodeIndex>> {
        let id = self.streams.get(stream)?.capture;
        Ok(self.capture(id)?.usable()?.tails.entry(stream).or_default())
    }

    /// The graph that the stream is captured into.
    pub(crate) fn captured_graph(&mut self, stream: StreamHandle) -> Result<&mut Graph> {
        let id = self.streams.get(stream)?.capture;
        Ok(&mut self.capture(id)?.usable()?.graph)
    }

    /// The point of an event that is recorded in a capturing stream now.
    pub(crate) fn captured_point(&mut self, stream: StreamHandle) -> Result<Point> {
        let id = self.streams.get(stream)?.capture;
        let after = self.captured_tail(stream)?.clone();
        let capture = id.ok_or_else(not_capturing)?;
        Ok(Point::Captured { capture, after })
    }

    /// Makes a stream depend on nodes of a capture; the stream joins the capture.
    pub(crate) fn join(
        &mut self,
        stream: StreamHandle,
        id: CaptureId,
        after: &[NodeIndex],
    ) -> Result<()> {
        if !self.captures.contains_key(&id) {
            let message = "the event was recorded in a capture that has ended";
            return Err(Code::CapturedEvent.because(message));
        }
        let found = self.streams.get(stream)?;
        match found.capture {
            Some(other) if other != id => {
                let message = format!("stream {stream:?} belongs to another capture");
                self.break_capture(id, &message);
                self.break_capture(other, &message);
                return Err(Code::StreamCaptureMerge.because(message));
            }
            None if found.kind == StreamKind::Legacy => {
                let message = "the legacy default stream cannot join a capture";
                self.break_capture(id, message);
                return Err(Code::StreamCaptureImplicit.because(message));
            }
            _ => {}
        }
        let capture = self.capture(Some(id))?.usable()?;
        let tail = capture.tails.entry(stream).or_default();
        let new = after.iter().filter(|node| !tail.contains(node));
        let new: Vec<NodeIndex> = new.copied().collect();
        tail.extend(new);
        self.streams.get_mut(stream)?.capture = Some(id);
        Ok(())
    }

    /// Rejects a call that is illegal on a capturing stream, and invalidates the capture.
    pub(crate) fn reject_on_capturing(&mut self, stream: StreamHandle, call: &str) -> Result<()> {
        self.reject_implicit_sync(stream)?;
        if self.streams.get(stream)?.capture.is_none() {
            return self.reject_while_capturing(call);
        }
        let message = format!("{call} on stream {stream:?}, which is capturing");
        self.abandon_capture(stream, &message);
        Err(Code::StreamCaptureUnsupported.because(message))
    }

    /// Rejects a call that an active capture makes unsafe in this thread.
    pub(crate) fn reject_while_capturing(&mut self, call: &str) -> Result<()> {
        let thread = thread::current().id();
        let concerns = |capture: &Capture| {
            let own = capture.thread == thread && capture.mode != CaptureMode::Relaxed;
            match THREAD_MODE.get() {
                CaptureMode::Global => own || capture.mode == CaptureMode::Global,
                CaptureMode::ThreadLocal => own,
                CaptureMode::Relaxed => false,
            }
        };
        let concerned = self.captures.iter().filter(|(_, capture)| concerns(capture));
        let concerned: Vec<CaptureId> = concerned.map(|(id, _)| *id).collect();
        if concerned.is_empty() {
            return Ok(());
        }
        let message = format!("{call} is not allowed while a stream is capturing");
        for id in concerned {
            self.break_capture(id, &message);
        }
        Err(Code::StreamCaptureUnsupported.because(message))
    }

    /// Rejects use of the legacy stream while a blocking stream of its context is capturing: each
    /// would depend on the other.
    pub(crate) fn reject_implicit_sync(&mut self, handle: StreamHandle) -> Result<()> {
        let stream = self.streams.get(handle)?;
        if stream.kind != StreamKind::Legacy || self.captures.is_empty() {
            return Ok(());
        }
        let concerned = self.streams.iter().find_map(|(_, other)| {
            let here = other.context == stream.context && other.kind != StreamKind::NonBlocking;
            other.capture.filter(|_| here)
        });
        let Some(id) = concerned else {
            return Ok(());
        };
        let message = "the legacy default stream was used while a blocking stream is capturing";
        self.break_capture(id, message);
        Err(Code::StreamCaptureImplicit.because(message))
    }

    /// Invalidates the capture of a stream, if it has one.
    pub(crate) fn abandon_capture(&mut self, stream: StreamHandle, why: &str) {
        if let Ok(stream) = self.streams.get(stream)
            && let Some(id) = stream.capture
        {
            self.break_capture(id, why);
        }
    }

    fn break_capture(&mut self, id: CaptureId, why: &str) {
        if let Some(capture) = self.captures.get_mut(&id) {
            capture.broken.get_or_insert_with(|| why.to_owned());
        }
    }

    fn capture(&mut self, id: Option<CaptureId>) -> Result<&mut Capture> {
        id.and_then(|id| self.captures.get_mut(&id)).ok_or_else(not_capturing)
    }

    fn end(&mut self, id: CaptureId) -> Result<GraphHandle> {
        let mut capture = self.captures.remove(&id).ok_or_else(not_capturing)?;
        for stream in self.streams.handles(|it| it.capture == Some(id)) {
            self.streams.get_mut(stream)?.capture = None;
        }
        let unjoined = capture.unjoined();
        let outcome = capture.usable().map(drop).and_then(|()| match unjoined.first() {
            None => Ok(()),
            Some(stream) => {
                let message = format!("the work of stream {stream:?} was not joined to the origin");
                Err(Code::StreamCaptureUnjoined.because(message))
            }
        });
        match outcome {
            Ok(()) => Ok(self.graphs.insert(capture.graph)),
            Err(error) => {
                self.release_graph_memory(&capture.graph.memory, Vec::new())?;
                Err(error)
            }
        }
    }

    /// Discards the captures that began in `stream`.
    pub(crate) fn forget_captures_of(&mut self, stream: StreamHandle) -> Result<()> {
        let begun = self.captures.iter().filter(|(_, it)| it.origin == stream);
        let begun: Vec<CaptureId> = begun.map(|(id, _)| *id).collect();
        for id in begun {
            self.break_capture(id, "its context ended");
            // The capture was invalidated above, so this ends it without a graph.
            let _ = self.end(id);
        }
        Ok(())
    }
}

fn not_capturing() -> Error {
    Code::IllegalState.because("the stream is not capturing")
}
