//! A communicator of one rank, and the registry's interface to it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use meshgrad_dist::registry::{Connect, Creation, Exchange, Progress};
use meshgrad_mesh::Group;
use meshgrad_runtime::{Device, Pending, Result, Tensor};

use super::call::{Call, Membership};
use super::message::GroupId;
use super::shared::Shared;
use crate::communicator::{Communicator, Operands};
use crate::contribution::Contribution;
use crate::error::CommError;
use crate::local::LocalCommunicator;
use crate::ticket::{Counters, Peer, Request};

/// The time between attempts to fail a collective whose time is over.
const EXPIRE_AGAIN: Duration = Duration::from_millis(100);

/// A communicator between processes. Cheap to clone; clones are the same communicator.
#[derive(Clone)]
pub struct HostCommunicator(Arc<Member>);

struct Member {
    shared: Arc<Shared>,
    membership: Arc<Membership>,
    device: Device,
    counters: Counters,
    /// For transfers of this rank to itself.
    own: LocalCommunicator,
}

impl Communicator for HostCommunicator {
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

    fn start(&self, mut request: Request, operands: Operands) -> Result<Pending<Option<Tensor>>> {
        let own = self.index();
        match &mut request.peer {
            Some(Peer::To(peer) | Peer::From(peer)) if *peer == own => {
                *peer = 0; // its index in a group of one
                return self.0.own.start(request, operands);
            }
            _ => {}
        }
        let Member {
            shared,
            membership,
            counters,
            ..
        } = &*self.0;
        let contribution = Contribution::lend(operands, &request)?;
        let (call, frames) = Call::new(membership, request, counters, contribution.clone())?;
        let (key, completion) = (call.key(), call.completion.clone());
        shared.start(call, frames)?;

        let deadline = Instant::now().checked_add(membership.deadline);
        let shared = shared.clone();
        Ok(Pending::by_host(move || {
            let Some(mut deadline) = deadline else {
                completion.wait()?;
                return Ok(contribution.take());
            };
            loop {
                match completion.wait_until(deadline) {
                    Some(result) => {
                        result?;
                        return Ok(contribution.take());
                    }
                    // It does nothing while a round's work is being done.
                    None => shared.expire(key),
                }
                deadline = Instant::now() + EXPIRE_AGAIN;
            }
        }))
    }
}

impl fmt::Debug for HostCommunicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "HostCommunicator(rank {} of {})",
            self.rank(),
            self.group()
        )
    }
}

/// Creates the communicators of one rank of a [`Host`](crate::Host) world. They are ready at once
/// and wait for no member: the first collective does.
pub struct HostConnector {
    pub(super) shared: Arc<Shared>,
    pub(super) device: Device,
    pub(super) deadline: Duration,
}

impl Connect for HostConnector {
    type Communicator = HostCommunicator;
    type Connecting = HostCommunicator;
    type Error = CommError;

    fn begin(&mut self, creation: &Creation<'_>) -> Result<HostCommunicator, CommError> {
        let (group, rank, world) = (creation.group, self.shared.rank, self.shared.world);
        let index = group.index_of(rank).ok_or_else(|| CommError::NotMember {
            rank,
            group: group.clone(),
        })?;
        if let Some(rank) = group.ranks().iter().find(|rank| **rank >= world) {
            return Err(CommError::OutsideWorld {
                group: group.clone(),
                rank: *rank,
                world,
            });
        }
        let membership = Membership {
            id: GroupId::of(group, creation.generation),
            group: group.clone(),
            index,
            deadline: group.options().timeout.unwrap_or(self.deadline),
        };
        Ok(HostCommunicator(Arc::new(Member {
            shared: self.shared.clone(),
            membership: Arc::new(membership),
            device: self.device.clone(),
            counters: Counters::new(group.len()),
            own: LocalCommunicator::alone(rank, &self.device)?,
        })))
    }

    fn poll(
        &mut self,
        connecting: &mut HostCommunicator,
    ) -> Result<Progress<HostCommunicator>, CommError> {
        Ok(Progress::Ready(connecting.clone()))
    }
}

/// Exchanges bytes between all ranks of a [`Host`](crate::Host) world, through rank 0.
pub struct HostExchange {
    pub(super) shared: Arc<Shared>,
    /// The number of the next exchange of this rank.
    pub(super) next: Arc<AtomicU64>,
    pub(super) deadline: Duration,
}

/// An exchange between all ranks that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("exchange {number} between all ranks failed: {reason}")]
pub struct ExchangeError {
    number: u64,
    reason: String,
}

impl Exchange for HostExchange {
    type Error = ExchangeError;

    fn all_gather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, ExchangeError> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.shared.gather(number, mine);
        let parts = self.shared.wait_gathered(number, self.deadline);
        parts.map_err(|reason| ExchangeError { number, reason })
    }
}
