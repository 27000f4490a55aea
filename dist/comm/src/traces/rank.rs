//! A rank whose communicators count and record their collectives.

use std::sync::Arc;
use std::time::Duration;

use meshgrad_collectives::{
    Clock, Communicator, ControlChannel, Counters, GroupConnector, Operands, Rank, Request,
};
use meshgrad_mesh::Group;
use meshgrad_runtime::{Device, Pending, Result, Tensor};

use super::tracer::{Recording, Tracer};
use super::{CollectiveSpan, CommStats, Span};

/// A rank that counts and records the collectives of the communicators that it connects.
///
/// ```
/// use meshgrad_comm::{Collectives, Local, Rank, Reduction, TracedRank, chrome_trace};
/// use meshgrad_runtime::{DType, Error, ops};
///
/// let traces = Local::run(2, |rank| {
///     let rank = TracedRank::new(rank);
///     let recording = rank.record()?;
///     let x = ops::full(rank.device(), &[1000], DType::F32, 1.0)?;
///     let sum = rank.world()?.all_reduce(&x, Reduction::Sum)?;
///     ops::exp(&x)?; // hides a part of the collective
///     sum.wait()?;
///     assert_eq!((rank.stats().collectives, rank.stats().bytes), (1, 4000));
///     Ok::<_, Error>(recording.finish())
/// });
/// let json = chrome_trace(&traces.unwrap()); // for ui.perfetto.dev
/// assert!(json.contains("all_reduce(f32 x 1000, sum)"));
/// ```
pub struct TracedRank<'a> {
    rank: &'a dyn Rank,
    tracer: Arc<Tracer>,
}

impl<'a> TracedRank<'a> {
    /// `rank` with nothing counted. Communicators that `rank` itself connects are not counted.
    pub fn new(rank: &'a dyn Rank) -> TracedRank<'a> {
        TracedRank { rank, tracer: Arc::new(Tracer::new(rank.clock().clone())) }
    }

    /// What was counted so far.
    pub fn stats(&self) -> CommStats {
        self.tracer.stats()
    }

    /// Starts to record collectives and waits, and the ops of the rank's device if that is a CPU.
    /// A recording grows with each of them, so record some steps of a long run.
    ///
    /// # Errors
    /// While the rank already records, or its device is [recorded](Device::trace_ops).
    pub fn record(&self) -> Result<Recording> {
        Recording::start(self.rank.rank(), self.rank.device(), &self.tracer)
    }
}

impl Rank for TracedRank<'_> {
    fn rank(&self) -> usize {
        self.rank.rank()
    }

    fn world_size(&self) -> usize {
        self.rank.world_size()
    }

    fn device(&self) -> &Device {
        self.rank.device()
    }

    fn clock(&self) -> &Clock {
        self.rank.clock()
    }

    fn connector(&self) -> Arc<dyn GroupConnector> {
        Arc::new(TracedConnector { connector: self.rank.connector(), tracer: self.tracer.clone() })
    }

    /// Messages are not counted.
    fn control(&self, number: u16, limit: Duration) -> Result<ControlChannel> {
        self.rank.control(number, limit)
    }
}

struct TracedConnector {
    connector: Arc<dyn GroupConnector>,
    tracer: Arc<Tracer>,
}

impl GroupConnector for TracedConnector {
    fn connect(&self, name: &str, group: &Group) -> Result<Arc<dyn Communicator>> {
        Ok(Arc::new(TracedCommunicator {
            inner: self.connector.connect(name, group)?,
            counters: self.tracer.counters(group),
            tracer: self.tracer.clone(),
        }))
    }
}

struct TracedCommunicator {
    inner: Arc<dyn Communicator>,
    tracer: Arc<Tracer>,
    /// Number the calls as `inner` does.
    counters: Arc<Counters>,
}

/// A call before it starts.
struct Begun {
    request: Request,
    bytes: u64,
    at: Duration,
}

impl TracedCommunicator {
    fn begin(&self, request: &Request, operands: &Operands) -> Begun {
        Begun { request: request.clone(), bytes: operands.bytes(), at: self.tracer.now() }
    }

    /// A call that has started takes a number, as in `inner`.
    fn started(&self, begun: Begun, pending: Pending<Option<Tensor>>) -> Pending<Option<Tensor>> {
        let span = CollectiveSpan {
            group: self.inner.group().clone(),
            ticket: self.counters.ticket(begun.request),
            bytes: begun.bytes,
            call: Span { start: begun.at, end: self.tracer.now() },
            wait: None,
        };
        self.tracer.started(span, pending)
    }
}

impl Communicator for TracedCommunicator {
    fn group(&self) -> &Group {
        self.inner.group()
    }

    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn index(&self) -> usize {
        self.inner.index()
    }

    fn device(&self) -> &Device {
        self.inner.device()
    }

    fn can_capture(&self) -> bool {
        self.inner.can_capture()
    }

    fn start(&self, request: Request, operands: Operands) -> Result<Pending<Option<Tensor>>> {
        let begun = self.begin(&request, &operands);
        let pending = self.inner.start(request, operands)?;
        Ok(self.started(begun, pending))
    }

    fn start_fused(&self, calls: Vec<(Request, Operands)>) -> Result<Vec<Pending<Option<Tensor>>>> {
        let begin = |(request, operands): &(Request, Operands)| self.begin(request, operands);
        let begun: Vec<Begun> = calls.iter().map(begin).collect();
        let pending = self.inner.start_fused(calls)?;
        let started = begun.into_iter().zip(pending);
        Ok(started.map(|(begun, pending)| self.started(begun, pending)).collect())
    }
}
