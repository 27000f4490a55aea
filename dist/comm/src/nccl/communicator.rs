//! A communicator of one rank.

use std::sync::{Arc, OnceLock};

use meshgrad_collectives::{Collective, Communicator, Operands, Peer, Request};
use meshgrad_error::error;
use meshgrad_mesh::Group;
use meshgrad_nccl::{Call as RawCall, Communicator as Raw};
use meshgrad_runtime::{Device, LentMut, Pending, Result, Stream, StreamEvent, StreamWork, Tensor};

use super::created::Created;
use super::settings::Settings;
use super::steps::{Memory, Part};
use super::watch::{Call, CallProgress, Watch};
use crate::contribution::{Contribution, Work};
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
    progress: Arc<CallProgress>,
}

impl NcclCommunicator {
    pub(super) fn new(
        ranks: Arc<dyn Communicator>,
        created: Arc<Created>,
        settings: Settings,
        watch: Arc<Watch>,
    ) -> Result<NcclCommunicator> {
        let own = LocalCommunicator::alone(ranks.rank(), &settings.device)?;
        let stream = OnceLock::new();
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
        Ok(LentCall { request, contribution, progress: Arc::default() })
    }

    /// Tells the other ranks of calls, and enqueues them as one group.
    fn begin(&self, calls: &[LentCall]) -> Result<()> {
        let Member { ranks, created, settings, watch, .. } = &*self.0;
        watch.check()?;
        let raw = created.get()?;
        for call in calls {
            let (request, progress) = (call.request.clone(), call.progress.clone());
            watch.call(Call { ranks: ranks.clone(), request, progress });
        }
        // A call that the others know of and that was not enqueued ends the communicator.
        let enqueued = self.enqueue(raw, calls);
        let failed = |error| watch.check().err().unwrap_or_else(|| watch.fail(error));
        enqueued.map_err(failed)?;
        for call in calls.iter().filter(|it| settings.is_strict && it.request.peer.is_none()) {
            call.progress.called.wait()?;
        }
        Ok(())
    }

    fn enqueue(&self, raw: &Raw, calls: &[LentCall]) -> Result<()> {
        let place = [self.index(), self.size()];
        let mut tensors: Vec<_> = calls.iter().map(|it| it.contribution.lock()).collect();
        let mut works = Vec::with_capacity(calls.len());
        for tensors in &mut tensors {
            if let Work::Begun(work) = std::mem::replace(&mut tensors.work, Work::None) {
                work.wait_for(work.ready())?;
                works.push(work);
            }
        }
        let parts: Vec<Part<'_>> =
            calls.iter().map(|it| Part::of(&it.request, place, self.0.settings.is_tree)).collect();
        let mut scratch: Vec<Option<LentMut>> = Vec::with_capacity(calls.len());
        for ((part, tensors), work) in parts.iter().zip(&mut tensors).zip(&mut works) {
            scratch.push(part.scratch(tensors, work)?);
        }
        let memory = tensors.iter_mut().zip(&mut scratch);
        let memory: Vec<Memory<'_>> =
            memory.map(|(it, scratch)| Memory::new(it, scratch)).collect();
        let steps = || parts.iter().zip(&memory);
        together(raw, &mut works, steps().map(|(part, memory)| part.first(memory)))?;
        for ((part, memory), work) in steps().zip(&mut works) {
            work.run(|| part.reduce(memory))?;
        }
        together(raw, &mut works, steps().map(|(part, memory)| part.last(memory)))?;
        drop(memory);
        for ((call, tensors), work) in calls.iter().zip(&mut tensors).zip(works) {
            let _ = call.progress.end.set(Some(work.event()?)); // set only here
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
        let progress = Arc::new(CallProgress::default());
        let _ = progress.end.set(None::<StreamEvent>); // it is new
        let call = Call { ranks: self.0.ranks.clone(), request, progress: progress.clone() };
        self.0.watch.call(call);
        Ok(Pending::by_host(move || progress.called.wait().map(|()| None)))
    }
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
