//! A communicator of one rank.

use std::sync::{Arc, MutexGuard, OnceLock};

use meshgrad_collectives::{Collective, Communicator, Operands, Peer, Request};
use meshgrad_error::{ensure, error};
use meshgrad_mesh::Group;
use meshgrad_nccl::{Call as RawCall, Communicator as Raw};
use meshgrad_runtime::{
    Device, LentMut, Pending, Result, Stream, StreamWork, Tensor, after_launches, is_capturing,
};

use super::created::Created;
use super::settings::Settings;
use super::steps::{Memory, Part};
use super::watch::{Call, CallProgress, Watch};
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
}

/// A call whose tensors are lent.
struct LentCall {
    request: Request,
    contribution: Contribution,
    /// `None` if it is captured, and not called yet.
    progress: Option<Arc<CallProgress>>,
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
        Ok(NcclCommunicator(Arc::new(Member { ranks, created, settings, watch, stream, own })))
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
        let Member { created, settings, watch, .. } = &*self.0;
        watch.check()?;
        let raw = created.get()?;
        if is_capturing() {
            return self.capture(raw, calls);
        }
        let told = calls.iter().filter_map(|call| Some((call, call.progress.clone()?)));
        told.clone().for_each(|(call, progress)| self.tell(&call.request, progress));
        // A call that the others know of and that was not enqueued ends the communicator.
        let enqueued = self.enqueue(raw, calls);
        let failed = |error| watch.check().err().unwrap_or_else(|| watch.fail(error));
        enqueued.map_err(failed)?;
        let mut awaited = told.filter(|(it, _)| settings.is_strict && it.request.peer.is_none());
        awaited.try_for_each(|(_, progress)| progress.called.wait())
    }

    /// Enqueues calls into a graph. Each of its launches tells the other ranks of them.
    fn capture(&self, raw: &Raw, calls: &[LentCall]) -> Result<()> {
        self.enqueue(raw, calls)?;
        let requests: Vec<Request> = calls.iter().map(|it| it.request.clone()).collect();
        let this = self.clone(); // the communicator must outlive the graph
        after_launches(move |end| {
            for request in &requests {
                this.tell(request, Arc::new(CallProgress::until(Some(end.clone()))));
            }
        });
        Ok(())
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
