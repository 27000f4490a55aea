//! Stream capture: operations become nodes of a graph instead of being run, and what a capture
//! cannot contain is refused with the driver's own codes (CUDA C++ Programming Guide, "Creating a
//! Graph Using Stream Capture").

use std::cell::Cell;
use std::collections::BTreeMap;
use std::thread::{self, ThreadId};

use super::error::{Code, Error, Result};
use super::event::{EventHandle, Point};
use super::graph::{Graph, GraphHandle, NodeIndex, NodeKind};
use super::stream::{StreamHandle, StreamKind};
use super::work::Work;
use super::{Driver, State};

/// Names a capture among all that ever were.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CaptureId(u64);

/// A capture that goes on.
pub(crate) struct Capture {
    /// Where it began and has to end.
    origin: StreamHandle,
    mode: CaptureMode,
    thread: ThreadId,
    pub(crate) graph: Graph,
    /// What the next node of each stream follows.
    tails: BTreeMap<StreamHandle, Vec<NodeIndex>>,
    /// Why no graph will come of it.
    broken: Option<String>,
}

/// Which calls a capture makes unsafe, and for whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CaptureMode {
    /// For every thread.
    Global,
    /// For the thread that began it.
    ThreadLocal,
    /// For none.
    Relaxed,
}

impl CaptureMode {
    /// `CUstreamCaptureMode`.
    pub(crate) fn from_number(number: i32) -> Result<CaptureMode> {
        match number {
            0 => Ok(CaptureMode::Global),
            1 => Ok(CaptureMode::ThreadLocal),
            2 => Ok(CaptureMode::Relaxed),
            _ => Err(Code::InvalidValue.because(format!("{number} is no CUstreamCaptureMode"))),
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
                let words = "the legacy default stream cannot be captured; create a stream";
                return Err(Code::StreamCaptureUnsupported.because(words));
            }
            if stream.capture.is_some() {
                let words = format!("stream {handle:?} is capturing already");
                return Err(Code::IllegalState.because(words));
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
                let words = format!("stream {stream:?} is not capturing");
                return Err(Code::IllegalState.because(words));
            };
            if let Some(refused) = state.captures[&id].why_not_end_in(stream) {
                if refused.code == Code::StreamCaptureUnmatched {
                    state.break_capture(id, &refused.message);
                }
                return Err(refused);
            }
            state.end(id)
        })
    }

    /// `cuStreamIsCapturing`.
    pub(crate) fn capture_status(&self, raw: u64) -> Result<CaptureStatus> {
        self.with(|state| {
            let (stream, _) = state.stream(raw)?;
            state.refuse_implicit(stream)?;
            let capture = state
                .streams
                .get(stream)?
                .capture
                .map(|id| &state.captures[&id]);
            Ok(match capture {
                None => CaptureStatus::None,
                Some(Capture { broken: None, .. }) => CaptureStatus::Active,
                Some(_) => CaptureStatus::Invalidated,
            })
        })
    }
}

impl Capture {
    fn why_not_end_in(&self, stream: StreamHandle) -> Option<Error> {
        if self.origin != stream {
            let words = format!("the capture began in stream {:?}", self.origin);
            return Some(Code::StreamCaptureUnmatched.because(words));
        }
        if self.mode != CaptureMode::Relaxed && self.thread != thread::current().id() {
            let words = format!("the capture was begun by {:?}", self.thread);
            return Some(Code::StreamCaptureWrongThread.because(words));
        }
        None
    }

    /// Streams whose last nodes lead nowhere, so that the origin does not wait for them.
    fn unjoined(&self) -> Vec<StreamHandle> {
        let joined = self.tails.get(&self.origin).map_or(&[][..], Vec::as_slice);
        let leaves = self.graph.leaves();
        let loose = |tail: &Vec<NodeIndex>| {
            tail.iter()
                .any(|node| leaves.contains(node) && !joined.contains(node))
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

    /// Adds the recording of an event as a node.
    pub(crate) fn capture_record(
        &mut self,
        stream: StreamHandle,
        event: EventHandle,
    ) -> Result<()> {
        self.capture_node(stream, NodeKind::Record(event))
    }

    /// Adds the wait for an event as a node.
    pub(crate) fn capture_wait(&mut self, stream: StreamHandle, event: EventHandle) -> Result<()> {
        self.capture_node(stream, NodeKind::Wait(event))
    }

    /// Adds a node after the last of `stream`.
    pub(crate) fn capture_node(&mut self, handle: StreamHandle, kind: NodeKind) -> Result<()> {
        let stream = self.streams.get(handle)?;
        let (context, id) = (stream.context, stream.capture);
        let capture = self.capture(id)?.usable()?;
        let tail = capture.tails.entry(handle).or_default();
        let node = capture.graph.add(context, std::mem::take(tail), kind);
        *tail = vec![node];
        Ok(())
    }

    /// The nodes that the stream's next one follows.
    pub(crate) fn captured_tail(&mut self, stream: StreamHandle) -> Result<&mut Vec<NodeIndex>> {
        let id = self.streams.get(stream)?.capture;
        Ok(self.capture(id)?.usable()?.tails.entry(stream).or_default())
    }

    /// The graph that the stream's nodes go to.
    pub(crate) fn captured_graph(&mut self, stream: StreamHandle) -> Result<&mut Graph> {
        let id = self.streams.get(stream)?.capture;
        Ok(&mut self.capture(id)?.usable()?.graph)
    }

    /// What an event means that is recorded in a capturing stream.
    pub(crate) fn captured_point(&mut self, stream: StreamHandle) -> Result<Point> {
        let id = self.streams.get(stream)?.capture;
        let after = self.captured_tail(stream)?.clone();
        let capture = id.ok_or_else(not_capturing)?;
        Ok(Point::Captured { capture, after })
    }

    /// Makes a stream wait for nodes of a capture, which it thereby joins.
    pub(crate) fn join(
        &mut self,
        stream: StreamHandle,
        id: CaptureId,
        after: &[NodeIndex],
    ) -> Result<()> {
        if !self.captures.contains_key(&id) {
            let words = "the event was recorded in a capture that has ended";
            return Err(Code::CapturedEvent.because(words));
        }
        let found = self.streams.get(stream)?;
        match found.capture {
            Some(other) if other != id => {
                let words = format!("stream {stream:?} belongs to another capture");
                self.break_capture(id, &words);
                self.break_capture(other, &words);
                return Err(Code::StreamCaptureMerge.because(words));
            }
            None if found.kind == StreamKind::Legacy => {
                let words = "the legacy default stream cannot join a capture";
                self.break_capture(id, words);
                return Err(Code::StreamCaptureImplicit.because(words));
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

    /// Refuses a call that must not meet a stream that captures, and ends hope for the capture.
    pub(crate) fn refuse_on_capturing(&mut self, stream: StreamHandle, call: &str) -> Result<()> {
        self.refuse_implicit(stream)?;
        if self.streams.get(stream)?.capture.is_none() {
            return self.refuse_while_capturing(call);
        }
        let words = format!("{call} on stream {stream:?}, which is capturing");
        self.abandon_capture(stream, &words);
        Err(Code::StreamCaptureUnsupported.because(words))
    }

    /// Refuses a call that a capture makes unsafe for this thread.
    pub(crate) fn refuse_while_capturing(&mut self, call: &str) -> Result<()> {
        let thread = thread::current().id();
        let concerns = |capture: &Capture| {
            let own = capture.thread == thread && capture.mode != CaptureMode::Relaxed;
            match THREAD_MODE.get() {
                CaptureMode::Global => own || capture.mode == CaptureMode::Global,
                CaptureMode::ThreadLocal => own,
                CaptureMode::Relaxed => false,
            }
        };
        let concerned = self
            .captures
            .iter()
            .filter(|(_, capture)| concerns(capture));
        let concerned: Vec<CaptureId> = concerned.map(|(id, _)| *id).collect();
        if concerned.is_empty() {
            return Ok(());
        }
        let words = format!("{call} while a stream captures");
        for id in concerned {
            self.break_capture(id, &words);
        }
        Err(Code::StreamCaptureUnsupported.because(words))
    }

    /// Refuses the legacy stream while a blocking stream of its context captures: either would
    /// have to follow the other.
    pub(crate) fn refuse_implicit(&mut self, handle: StreamHandle) -> Result<()> {
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
        let words = "the legacy default stream was used while a blocking stream captures";
        self.break_capture(id, words);
        Err(Code::StreamCaptureImplicit.because(words))
    }

    /// Ends hope for the capture of a stream, if it has one.
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
        id.and_then(|id| self.captures.get_mut(&id))
            .ok_or_else(not_capturing)
    }

    fn end(&mut self, id: CaptureId) -> Result<GraphHandle> {
        let mut capture = self.captures.remove(&id).ok_or_else(not_capturing)?;
        for stream in self.streams.handles(|it| it.capture == Some(id)) {
            self.streams.get_mut(stream)?.capture = None;
        }
        let unjoined = capture.unjoined();
        let outcome = capture
            .usable()
            .map(drop)
            .and_then(|()| match unjoined.first() {
                None => Ok(()),
                Some(stream) => {
                    let words = format!("work of stream {stream:?} was never joined to the origin");
                    Err(Code::StreamCaptureUnjoined.because(words))
                }
            });
        match outcome {
            Ok(()) => Ok(self.graphs.insert(capture.graph)),
            Err(error) => {
                self.give_back(&capture.graph.memory, Vec::new())?;
                Err(error)
            }
        }
    }

    /// Forgets the captures that began in `stream`.
    pub(crate) fn forget_captures_of(&mut self, stream: StreamHandle) -> Result<()> {
        let begun = self.captures.iter().filter(|(_, it)| it.origin == stream);
        let begun: Vec<CaptureId> = begun.map(|(id, _)| *id).collect();
        for id in begun {
            self.break_capture(id, "its context ended");
            // It was broken just now, so that ends it without a graph.
            let _ = self.end(id);
        }
        Ok(())
    }
}

fn not_capturing() -> Error {
    Code::IllegalState.because("the stream is not capturing")
}
