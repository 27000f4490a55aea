//! The communicators that a rank has requested.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use meshgrad_collectives::registry::{Connect, Handle, Registry, Share};
use meshgrad_collectives::{Communicator, GroupConnector};
use meshgrad_error::error;
use meshgrad_mesh::Group;
use meshgrad_runtime::{Device, Result};

use crate::local::communicator::LocalCommunicator;
use crate::members::not_member;

/// A rank's registry, and handles that keep its communicators.
pub(crate) struct Shares<C: Connect> {
    rank: usize,
    device: Device,
    registry: Registry<C>,
    handles: Mutex<Vec<Handle<C>>>,
}

impl<C: Connect> Shares<C>
where
    C::Communicator: Clone,
{
    pub(crate) fn new(rank: usize, device: Device, connector: C) -> Shares<C> {
        Shares { rank, device, registry: Registry::new(rank, connector), handles: Mutex::default() }
    }

    pub(crate) fn registry(&self) -> &Registry<C> {
        &self.registry
    }

    /// The communicator of a group, which the transport creates without waiting; `None` if the rank
    /// is the only member.
    pub(crate) fn member(&self, name: &str, group: &Group) -> Result<Option<C::Communicator>> {
        match self.registry.share(name, group)? {
            Share::NotMember => Err(not_member(self.rank, group)),
            Share::Singleton => Ok(None),
            Share::Member(handle) => {
                let connected = handle.connect(Duration::ZERO)?;
                let communicator = connected.cloned();
                let mut handles = self.handles.lock().unwrap_or_else(PoisonError::into_inner);
                handles.push(handle);
                let waits = || {
                    error!(Invalid, "connect: the communicator of {group} waits for other members")
                };
                communicator.map(Some).ok_or_else(waits)
            }
        }
    }

    /// The communicator of a group of this rank only.
    pub(crate) fn alone(&self) -> Result<LocalCommunicator> {
        LocalCommunicator::alone(self.rank, &self.device)
    }
}

impl<C: Connect> GroupConnector for Shares<C>
where
    C: Send,
    C::Connecting: Send,
    C::Communicator: Communicator + Clone + 'static,
{
    fn connect(&self, name: &str, group: &Group) -> Result<Arc<dyn Communicator>> {
        Ok(match self.member(name, group)? {
            Some(communicator) => Arc::new(communicator),
            None => Arc::new(self.alone()?),
        })
    }
}
