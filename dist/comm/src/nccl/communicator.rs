//! A communicator of one rank.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use meshgrad_collectives::{
    Collective, Communicator, Counts, Fingerprint, Operands, Peer, Request,
};
use meshgrad_error::{ensure, error};
use meshgrad_mesh::Group;
use meshgrad_nccl::{Call as RawCall, Communicator as Raw};
use meshgrad_runtime::{
    Device, LentMut, Pending, Result, Stream, StreamEvent, StreamWork, Tensor, after_launches,
    captured_graph, is_capturing,
};

use super::created::Created;
use super::settings::Settings;
use super::steps::{Memory, Part};
use super::watch::{Call, CallProgress, Watch, named};
use crate::contribution::{Contribution, Tensors, Work};
use crate::local::LocalCommunicator;

/// A communicator over NCCL. Cheap to clone; clones are the same communicator.
#[derive(Clone)]
pub(super) struct NcclCommunicator(Arc<Member>);

struct Member {
    /// The same group on the host.
    ranks: Arc<dyn Communicator>,
    created: Arc<Created>,
    settings: Settings,
    watch: Arc<Watch>,
    /// The stream of its collectives, from the first one on.
    stream: OnceLock<Stream>,
    /// For transfers of this rank to itself.
    own: LocalCommunicator,
    graphs: Mutex<Graphs>,
}

/// A call whose tensors are lent.
struct LentCall {
    request: Request,
    contribution: Contribution,
    /// `None` if it is captured, and not called yet.
    progress: Option<Arc<CallProgress>>,
}

/// The graphs into which a communicator's calls were captured.
#[derive(Default)]
struct Graphs {
    /// How many have collectives of all members.
    count: usize,
    /// The last one, as [`captured_graph`] names it.
    open: Option<u32>,
    /// Of what each launch of it tells the other ranks: of the graph, and of its transfers, in which not all members
    /// have a part.
    told: Arc<Mutex<Vec<Request>>>,
}

impl Graphs {
    fn begin(&mut self, graph: Option<u32>) {
        *self = Graphs { count: self.count, open: graph, told: Arc::default() };
    }

    /// Adds a call. Returns the request that stands for all collectives of the graph, if this is the first one.
    fn add(&mut self, call: &Request) -> Option<Request> {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if call.peer.is_some() {
            told.push(call.clone());
            return None;
        }
        if told.iter().any(|it| it.peer.is_none()) {
            return None;
        }
        let fingerprint = Fingerprint {
            collective: Collective::Graph,
            dtype: None,
            counts: Counts::Even(self.count),
            reduction: None,
            root: None,
        };
        let graph = Request { fingerprint, peer: None, caller: call.caller };
        self.count += 1;
        told.push(graph.clone());
        Some(graph)
    }
}

impl NcclCommunicator {
    pub(super) fn new(
        ranks: Arc<dyn Communicator>,
        created: Arc<Created>,
        settings: Settings,
        watch: Arc<Watch>,
    ) -> Result<NcclCommunicator> {
        let own = LocalCommunicator::alone(ranks.rank(), &settings.device)?;
        let stream = settings.stream.clone().map_or_else(OnceLock::new, OnceLock::from);
        let graphs = Mutex::default();
        let member = Member { ranks, created, settings, watch, stream, own, graphs };
        Ok(NcclCommunicator(Arc::new(member)))
    }

    fn stream(&self) -> Result<&Stream> {
        if let Some(stream) = self.0.stream.get() {
            return Ok(stream);
        }
        let new = self.device().stream()?;
        Ok(self.0.stream.get_or_init(|| new))
    }

    fn lend(&self, request: Request, operands: Operands) -> Result<LentCall> {
        let contribution = Contribution::lend_on(self.stream()?, operands, &request)?;
        let progress = (!is_capturing()).then(Arc::default);
        Ok(LentCall { request, contribution, progress })
    }

    /// Tells the other ranks of calls, and enqueues them as one group.
    fn begin(&self, calls: &[LentCall]) -> Result<()> {
        let Member { ranks, created, settings, watch, .. } = &*self.0;
        watch.check()?;
        let raw = created.get()?;
        if is_capturing() {
            return self.capture(raw, calls);
        }
        let told = calls.iter().filter_map(|call| Some((call, call.progress.clone()?)));
        told.clone().for_each(|(call, progress)| self.tell(&call.request, progress));
        // A call that the others know of and that was not enqueued ends the communicator.
        let enqueued = self.enqueue(raw, calls);
        let failed = |error| {
            let failure = watch.check().err();
            failure.unwrap_or_else(|| watch.fail(named(&**ranks, error)))
        };
        enqueued.map_err(failed)?;
        let mut awaited = told.filter(|(it, _)| settings.is_strict && it.request.peer.is_none());
        awaited.try_for_each(|(_, progress)| progress.called.wait())
    }

    /// Enqueues calls into a graph. The other ranks are told of each call now, and later of each launch.
    fn capture(&self, raw: &Raw, calls: &[LentCall]) -> Result<()> {
        self.enqueue(raw, calls)?;
        let compare = |request: &Request| self.tell(request, Arc::new(CallProgress::until(None)));
        let mut graphs = self.0.graphs.lock().unwrap_or_else(PoisonError::into_inner);
        if graphs.open != captured_graph() {
            graphs.begin(captured_graph());
            let (this, told) = (self.clone(), graphs.told.clone()); // it must outlive the graph
            after_launches(move |end| this.tell_of_launch(&told, end));
        }
        for LentCall { request, .. } in calls {
            if let Some(graph) = graphs.add(request) {
                compare(&graph);
            }
            compare(request);
        }
        Ok(())
    }

    fn tell_of_launch(&self, told: &Mutex<Vec<Request>>, end: &StreamEvent) {
        for request in &*told.lock().unwrap_or_else(PoisonError::into_inner) {
            self.tell(request, Arc::new(CallProgress::until(Some(end.clone()))));
        }
    }

    fn tell(&self, request: &Request, progress: Arc<CallProgress>) {
        let (ranks, request) = (self.0.ranks.clone(), request.clone());
        self.0.watch.call(Call { ranks, request, progress });
    }

    fn part<'a>(&self, call: &'a LentCall) -> Part<'a> {
        Part::of(&call.request, [self.index(), self.size()], self.0.settings.is_tree)
    }

    fn enqueue(&self, raw: &Raw, calls: &[LentCall]) -> Result<()> {
        let mut tensors: Vec<_> = calls.iter().map(|it| it.contribution.lock()).collect();
        let mut works = begun(&mut tensors)?;
        let mut scratch: Vec<Option<LentMut>> = Vec::with_capacity(calls.len());
        for ((call, tensors), work) in calls.iter().zip(&mut tensors).zip(&mut works) {
            scratch.push(self.part(call).scratch(tensors, work)?);
        }
        let memory = tensors.iter_mut().zip(&mut scratch);
        let memory = memory.map(|(it, scratch)| Memory::new(it, scratch));
        let steps: Vec<_> = calls.iter().map(|call| self.part(call)).zip(memory).collect();
        run(raw, &steps, &mut works)?;
        drop(steps);
        for ((call, tensors), work) in calls.iter().zip(&mut tensors).zip(works) {
            if let Some(progress) = &call.progress {
                let _ = progress.end.set(Some(work.event()?)); // set only here
            }
            tensors.work = Work::Enqueued(work.finish()?);
        }
        Ok(())
    }

    fn pending(&self, call: LentCall) -> Pending<Option<Tensor>> {
        let watch = self.0.watch.clone();
        Pending::by_host(move || {
            watch.check()?;
            call.contribution.join()?;
            Ok(call.contribution.take())
        })
    }

    /// A collective without tensors: only the host waits for it.
    fn barrier(&self, request: Request) -> Result<Pending<Option<Tensor>>> {
        self.0.watch.check()?;
        ensure!(
            !is_capturing(),
            Invalid,
            "barrier of {} during Device::capture: a graph cannot contain it; call it before or after the capture",
            self.group()
        );
        let progress = Arc::new(CallProgress::until(None));
        self.tell(&request, progress.clone());
        Ok(Pending::by_host(move || progress.called.wait().map(|()| None)))
    }
}

/// The work that has begun for each call; it waits for what wrote the operands.
fn begun(tensors: &mut [MutexGuard<'_, Tensors>]) -> Result<Vec<StreamWork>> {
    let mut works = Vec::with_capacity(tensors.len());
    for tensors in tensors {
        if let Work::Begun(work) = std::mem::replace(&mut tensors.work, Work::None) {
            work.wait_for(work.ready())?;
            works.push(work);
        }
    }
    Ok(works)
}

/// Enqueues all parts: what is moved first, own reductions, what is moved last.
fn run(raw: &Raw, parts: &[(Part<'_>, Memory<'_>)], works: &mut [StreamWork]) -> Result<()> {
    together(raw, works, parts.iter().map(|(part, memory)| part.first(memory)))?;
    for ((part, memory), work) in parts.iter().zip(&mut *works) {
        work.run(|| part.reduce(memory))?;
    }
    together(raw, works, parts.iter().map(|(part, memory)| part.last(memory)))
}

/// Enqueues the calls of several collectives as one group.
fn together<'a>(
    raw: &Raw,
    works: &mut [StreamWork],
    calls: impl Iterator<Item = Result<Vec<RawCall<'a>>>>,
) -> Result<()> {
    let calls: Vec<RawCall<'_>> = calls.collect::<Result<Vec<_>>>()?.concat();
    match works.first_mut() {
        Some(work) if !calls.is_empty() => raw.enqueue(work, &calls),
        _ => Ok(()),
    }
}

impl Communicator for NcclCommunicator {
    fn group(&self) -> &Group {
        self.0.ranks.group()
    }

    fn rank(&self) -> usize {
        self.0.ranks.rank()
    }

    fn index(&self) -> usize {
        self.0.ranks.index()
    }

    fn device(&self) -> &Device {
        &self.0.settings.device
    }

    fn can_capture(&self) -> bool {
        true
    }

    fn start(&self, request: Request, operands: Operands) -> Result<Pending<Option<Tensor>>> {
        let mut started = self.start_fused(vec![(request, operands)])?;
        started.pop().ok_or_else(|| error!(Invalid, "a call was not started"))
    }

    /// The calls are one group of NCCL, in which messages in opposite directions pass each other.
    fn start_fused(&self, calls: Vec<(Request, Operands)>) -> Result<Vec<Pending<Option<Tensor>>>> {
        let own = self.index();
        let mut started: Vec<Option<Pending<Option<Tensor>>>> = Vec::with_capacity(calls.len());
        let mut lent = Vec::new();
        for (mut request, operands) in calls {
            let to_self = match &mut request.peer {
                Some(Peer::To(peer) | Peer::From(peer)) if *peer == own => {
                    *peer = 0; // its index in a group of one
                    true
                }
                _ => false,
            };
            started.push(match request.fingerprint.collective {
                _ if to_self => Some(self.0.own.start(request, operands)?),
                Collective::Barrier => Some(self.barrier(request)?),
                _ => {
                    lent.push(self.lend(request, operands)?);
                    None
                }
            });
        }
        if !lent.is_empty() {
            self.begin(&lent)?;
        }
        let mut enqueued = lent.into_iter().map(|call| self.pending(call));
        Ok(started.into_iter().filter_map(|it| it.or_else(|| enqueued.next())).collect())
    }
}
