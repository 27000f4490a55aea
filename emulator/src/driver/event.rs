//! Events: points in streams that other streams and the host wait for, and the times at which they
//! completed.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use super::capture::CaptureId;
use super::context::ContextHandle;
use super::error::{Code, Result};
use super::graph::NodeIndex;
use super::handles::{Handle, Named};
use super::schedule::Ticket;
use super::stream::StreamHandle;
use super::work::Work;
use super::{Driver, State};

pub(crate) type EventHandle = Handle<Event>;

/// An event of a context.
pub(crate) struct Event {
    pub(crate) context: ContextHandle,
    has_time: bool,
    pub(crate) point: Point,
}

/// The point at which an event was last recorded.
#[derive(Clone)]
pub(crate) enum Point {
    Never,
    /// An operation that records the time.
    Recorded {
        ticket: Ticket,
        time: Arc<OnceLock<Instant>>,
    },
    /// Nodes of a graph under capture.
    Captured {
        capture: CaptureId,
        after: Vec<NodeIndex>,
    },
}

impl Named for Event {
    const NAME: &'static str = "event";
}

/// `CU_EVENT_DISABLE_TIMING`.
const NO_TIME: u32 = 2;
/// `CU_EVENT_RECORD_EXTERNAL` and `CU_EVENT_WAIT_EXTERNAL`: a capture adds a node to its graph
/// instead of a dependency.
const EXTERNAL: u32 = 1;

impl Driver {
    /// `cuEventCreate`.
    pub(crate) fn create_event(&self, flags: u32) -> Result<EventHandle> {
        let interprocess_with_time = flags & 4 != 0 && flags & NO_TIME == 0;
        if flags & !7 != 0 || interprocess_with_time {
            return Err(Code::InvalidValue.because(format!("{flags:#x} are not valid event flags")));
        }
        self.with(|state| {
            let event = Event {
                context: state.current()?,
                has_time: flags & NO_TIME == 0,
                point: Point::Never,
            };
            Ok(state.events.insert(event))
        })
    }

    /// `cuEventDestroy`: operations that already wait for the event keep waiting.
    pub(crate) fn destroy_event(&self, event: EventHandle) -> Result<()> {
        self.with(|state| {
            let context = state.events.get(event)?.context;
            state.check_context(context)?;
            state.events.remove(event).map(drop)
        })
    }

    /// `cuEventRecordWithFlags`.
    pub(crate) fn record_event(&self, event: EventHandle, raw: u64, flags: u32) -> Result<()> {
        check_external(flags)?;
        let mut state = self.lock();
        let (stream, context) = state.stream(raw)?;
        if state.events.get(event)?.context != context {
            let message =
                format!("event {event:?} and stream {raw:#x} belong to different contexts");
            return Err(Code::InvalidHandle.because(message));
        }
        match state.streams.get(stream)?.capture {
            Some(_) if flags == EXTERNAL => state.capture_record(stream, event)?,
            Some(_) => {
                let point = state.captured_point(stream)?;
                state.events.get_mut(event)?.point = point;
            }
            None => {
                state.record(event, stream, Vec::new())?;
            }
        }
        self.run_submitted(state, stream)
    }

    /// `cuStreamWaitEvent`.
    pub(crate) fn wait_event(&self, raw: u64, event: EventHandle, flags: u32) -> Result<()> {
        check_external(flags)?;
        let mut state = self.lock();
        let (stream, _) = state.stream(raw)?;
        let point = state.events.get(event)?.point.clone();
        let capture = state.streams.get(stream)?.capture;
        match (point, capture) {
            (_, Some(_)) if flags == EXTERNAL => state.capture_wait(stream, event)?,
            (Point::Never, _) => {}
            (Point::Captured { capture, after }, _) => state.join(stream, capture, &after)?,
            (Point::Recorded { .. }, Some(_)) => {
                let message = format!("event {event:?} was recorded outside the capture");
                let rejected = Code::StreamCaptureIsolation.because(message);
                state.abandon_capture(stream, &rejected.message);
                return Err(rejected);
            }
            (Point::Recorded { ticket, .. }, None) => {
                state.enqueue(stream, vec![ticket], Work::Join)?;
            }
        }
        self.run_submitted(state, stream)
    }

    /// `cuEventQuery`.
    pub(crate) fn query_event(&self, event: EventHandle) -> Result<()> {
        let mut state = self.lock();
        let context = state.events.get(event)?.context;
        state.reject_while_capturing("cuEventQuery")?;
        let ticket = state.ticket_of(event)?;
        // Each query makes progress, so that a polling program terminates.
        let state = self.progress(state, 1);
        state.check_context(context)?;
        match ticket {
            Some(ticket) if !state.schedule.is_done(ticket) => {
                Err(Code::NotReady.because("the event has not completed"))
            }
            _ => Ok(()),
        }
    }

    /// `cuEventSynchronize`.
    pub(crate) fn synchronize_event(&self, event: EventHandle) -> Result<()> {
        let mut state = self.lock();
        let context = state.events.get(event)?.context;
        state.reject_while_capturing("cuEventSynchronize")?;
        state.check_context(context)?;
        match state.ticket_of(event)? {
            Some(ticket) => {
                let state = self.wait(state, |state| state.schedule.is_done(ticket));
                state.check_context(context)
            }
            None => Ok(()),
        }
    }

    /// `cuEventElapsedTime`: milliseconds on the host's clock.
    pub(crate) fn elapsed(&self, start: EventHandle, end: EventHandle) -> Result<f32> {
        self.with(|state| {
            let from = state.time_of(start)?;
            let to = state.time_of(end)?;
            let (forward, backward) = (to.duration_since(from), from.duration_since(to));
            Ok((forward.as_secs_f64() * 1e3 - backward.as_secs_f64() * 1e3) as f32)
        })
    }
}

fn check_external(flags: u32) -> Result<()> {
    match flags {
        0 | EXTERNAL => Ok(()),
        _ => {
            Err(Code::InvalidValue.because(format!("{flags:#x} are not valid flags for this call")))
        }
    }
}

impl State {
    /// Records an event in a stream; the record also depends on `after`.
    pub(crate) fn record(
        &mut self,
        event: EventHandle,
        stream: StreamHandle,
        after: Vec<Ticket>,
    ) -> Result<Ticket> {
        let time = Arc::new(OnceLock::new());
        let ticket = self.enqueue(stream, after, Work::Stamp(time.clone()))?;
        self.events.get_mut(event)?.point = Point::Recorded { ticket, time };
        Ok(ticket)
    }

    /// The operation that completes the event; `None` if it was never recorded.
    pub(crate) fn ticket_of(&self, event: EventHandle) -> Result<Option<Ticket>> {
        match &self.events.get(event)?.point {
            Point::Never => Ok(None),
            Point::Recorded { ticket, .. } => Ok(Some(*ticket)),
            Point::Captured { .. } => Err(captured(event)),
        }
    }

    fn time_of(&self, handle: EventHandle) -> Result<Instant> {
        let event = self.events.get(handle)?;
        if !event.has_time {
            let message = format!("event {handle:?} was created with CU_EVENT_DISABLE_TIMING");
            return Err(Code::InvalidHandle.because(message));
        }
        match &event.point {
            Point::Never => {
                let message = format!("event {handle:?} was never recorded");
                Err(Code::InvalidHandle.because(message))
            }
            Point::Captured { .. } => Err(captured(handle)),
            Point::Recorded { time, .. } => time.get().copied().ok_or_else(|| {
                Code::NotReady.because(format!("event {handle:?} has not completed"))
            }),
        }
    }
}

fn captured(event: EventHandle) -> super::error::Error {
    let message = format!("event {event:?} was last recorded in a stream that was capturing");
    Code::CapturedEvent.because(message)
}
