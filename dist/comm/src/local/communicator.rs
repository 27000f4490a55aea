//! A communicator of one rank.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use meshgrad_mesh::Group;
use meshgrad_runtime::{Device, Pending, Result, Tensor};

use super::table::Table;
use crate::communicator::{Communicator, Operands};
use crate::contribution::Contribution;
use crate::error::CommError;
use crate::ticket::{Counters, Request};

/// A communicator between threads. Cheap to clone; clones are the same communicator.
#[derive(Clone)]
pub struct LocalCommunicator(Arc<Member>);

struct Member {
    table: Arc<Table>,
    index: usize,
    device: Device,
    counters: Counters,
}

impl LocalCommunicator {
    pub(super) fn new(table: Arc<Table>, index: usize, device: Device) -> LocalCommunicator {
        let counters = Counters::new(table.group().len());
        LocalCommunicator(Arc::new(Member {
            table,
            index,
            device,
            counters,
        }))
    }

    /// A communicator of one rank. Its collectives complete at once and send nothing.
    ///
    /// # Errors
    /// [`CommError::Start`] when `rank` is too large for a group.
    pub fn alone(rank: usize, device: &Device) -> Result<LocalCommunicator, CommError> {
        let group = Group::new([rank]).map_err(|error| CommError::Start {
            reason: error.to_string(),
        })?;
        let table = Arc::new(Table::new(group, Duration::MAX, Arc::default()));
        Ok(LocalCommunicator::new(table, 0, device.clone()))
    }
}

impl Communicator for LocalCommunicator {
    fn group(&self) -> &Group {
        self.0.table.group()
    }

    fn rank(&self) -> usize {
        self.group().ranks()[self.0.index]
    }

    fn index(&self) -> usize {
        self.0.index
    }

    fn device(&self) -> &Device {
        &self.0.device
    }

    fn start(&self, request: Request, operands: Operands) -> Result<Pending<Option<Tensor>>> {
        let Member {
            table,
            index,
            counters,
            ..
        } = &*self.0;
        let contribution = Contribution::lend(operands, &request)?;
        let ticket = counters.ticket(request);
        let begun = table.arrive(*index, ticket, contribution.clone())?;

        let (table, deadline) = (table.clone(), Instant::now().checked_add(table.deadline()));
        Ok(Pending::by_host(move || {
            let waited = deadline.and_then(|deadline| begun.completion.wait_until(deadline));
            match waited {
                Some(result) => result?,
                None => {
                    if deadline.is_some() {
                        table.expire(&begun);
                    }
                    begun.completion.wait()?;
                }
            }
            Ok(contribution.take())
        }))
    }
}

impl fmt::Debug for LocalCommunicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "LocalCommunicator(rank {} of {})",
            self.rank(),
            self.group()
        )
    }
}
