//! A communicator of one rank, and the registry's interface to it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use meshgrad_collectives::registry::{Connect, Creation, Exchange, Progress};
use meshgrad_collectives::{Communicator, Counters, Operands, Peer, Request};
use meshgrad_mesh::{Error, Group, Kind};
use meshgrad_runtime::{Completion, Device, Pending, Result, Tensor};

use super::call::{Call, Membership};
use super::inquiry::LONGEST;
use super::message::{CallKey, GroupId};
use super::shared::Shared;
use crate::contribution::Contribution;
use crate::local::LocalCommunicator;
use crate::members::{Members, index_in};
use crate::verdict::first_look;

/// The time between reports of a collective whose time is over.
const REPORT_AGAIN: Duration = Duration::from_secs(1);
/// How long rank 0 may be silent, in addition to the grace period.
const VERDICT: Duration = Duration::from_secs(20);

/// A communicator between processes. Cheap to clone; clones are the same communicator.
#[derive(Clone)]
pub struct TcpCommunicator(Arc<Member>);

struct Member {
    shared: Arc<Shared>,
    membership: Arc<Membership>,
    device: Device,
    counters: Counters,
    /// Whether a call waits for all members before it returns.
    is_strict: bool,
    /// For transfers of this rank to itself.
    own: LocalCommunicator,
}

impl Communicator for TcpCommunicator {
    fn group(&self) -> &Group {
        &self.0.membership.group
    }

    fn rank(&self) -> usize {
        self.0.membership.rank()
    }

    fn index(&self) -> usize {
        self.0.membership.index
    }

    fn device(&self) -> &Device {
        &self.0.device
    }

    fn time_limit(&self) -> Duration {
        self.0.membership.deadline
    }

    fn failure(&self) -> Option<Error> {
        self.0.shared.failure(self.0.membership.id)
    }

    fn start(&self, mut request: Request, operands: Operands) -> Result<Pending<Option<Tensor>>> {
        let own = self.index();
        match &mut request.peer {
            Some(Peer::To(peer) | Peer::From(peer)) if *peer == own => {
                *peer = 0; // its index in a group of one
                return self.0.own.start(request, operands);
            }
            _ => {}
        }
        let Member { shared, membership, counters, .. } = &*self.0;
        let contribution = Contribution::lend(operands, &request)?;
        let (call, frames) = Call::new(membership, request, counters, contribution.clone())?;
        let begun = Begun {
            shared: shared.clone(),
            key: call.key(),
            completion: call.completion.clone(),
            is_waiting: call.is_waiting.clone(),
            began: Instant::now(),
            look: membership.look,
            grace: membership.grace,
        };
        shared.start(call, frames)?;
        if self.0.is_strict && begun.key.key.between == Members::All {
            begun.wait()?;
        }
        Ok(Pending::by_host(move || {
            begun.wait()?;
            Ok(contribution.take())
        }))
    }
}

/// A collective that this rank has started.
struct Begun {
    shared: Arc<Shared>,
    key: CallKey,
    completion: Completion,
    is_waiting: Arc<AtomicBool>,
    began: Instant,
    look: Duration,
    grace: Duration,
}

impl Begun {
    /// Waits for the collective. If it is not complete in time, rank 0 decides why.
    fn wait(&self) -> Result<()> {
        if self.completion.is_complete() {
            return self.completion.wait();
        }
        self.is_waiting.store(true, Ordering::Relaxed);
        let Some(mut until) = self.began.checked_add(self.look) else {
            return self.completion.wait();
        };
        let mut reported: Option<Instant> = None;
        loop {
            if let Some(result) = self.completion.wait_until(until) {
                return result;
            }
            let now = Instant::now();
            if self.shared.expire(self.key) {
                let reported = *reported.get_or_insert(now);
                let heard = self.shared.asked().map_or(reported, |it| it.max(reported));
                if now - heard > self.grace + VERDICT {
                    self.shared.died(0, "it does not ask why a collective is not complete");
                }
            }
            until = now + REPORT_AGAIN;
        }
    }
}

impl fmt::Debug for TcpCommunicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TcpCommunicator(rank {} of {})", self.rank(), self.group())
    }
}

/// Creates the communicators of one rank of a [`Tcp`](crate::Tcp) world. They are ready at once:
/// only the first collective waits for other members.
pub struct TcpConnector {
    pub(super) shared: Arc<Shared>,
    pub(super) device: Device,
    pub(super) deadline: Duration,
    pub(super) grace: Option<Duration>,
    pub(super) is_strict: bool,
}

impl Connect for TcpConnector {
    type Communicator = TcpCommunicator;
    type Connecting = TcpCommunicator;

    fn begin(&mut self, creation: &Creation<'_>) -> Result<TcpCommunicator, Error> {
        let (group, rank) = (creation.group, self.shared.rank);
        let index = index_in(group, rank, self.shared.world)?;
        let deadline = group.options().timeout.unwrap_or(self.deadline);
        let look = first_look(group, deadline);
        let grace = self.grace.unwrap_or(deadline / 10);
        let membership = Membership {
            id: GroupId::of(group, creation.generation),
            group: group.clone(),
            index,
            deadline,
            look,
            grace: grace.saturating_add(deadline.saturating_sub(look)).min(LONGEST),
        };
        self.shared.join(membership.id);
        Ok(TcpCommunicator(Arc::new(Member {
            shared: self.shared.clone(),
            membership: Arc::new(membership),
            device: self.device.clone(),
            counters: Counters::new(group.len()),
            is_strict: self.is_strict,
            own: LocalCommunicator::alone(rank, &self.device)?,
        })))
    }

    fn poll(
        &mut self,
        connecting: &mut TcpCommunicator,
    ) -> Result<Progress<TcpCommunicator>, Error> {
        Ok(Progress::Ready(connecting.clone()))
    }
}

/// Exchanges bytes between all ranks of a [`Tcp`](crate::Tcp) world, through rank 0.
pub struct TcpExchange {
    pub(super) shared: Arc<Shared>,
    /// The number of the next exchange of this rank.
    pub(super) next: Arc<AtomicU64>,
    pub(super) deadline: Duration,
}

impl Exchange for TcpExchange {
    fn all_gather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.shared.gather(number, mine);
        let parts = self.shared.wait_gathered(number, self.deadline);
        parts.map_err(|reason| {
            let message = format!("exchange {number} between all ranks failed: {reason}");
            Error::new(Kind::System, message)
        })
    }
}
