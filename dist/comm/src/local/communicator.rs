//! A communicator of one rank.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use meshgrad_collectives::{Clock, Communicator, Counters, Operands, Request};
use meshgrad_mesh::Group;
use meshgrad_runtime::{Device, Error, Pending, Result, Stream, Tensor};

use super::table::{Begun, Table};
use crate::contribution::{Arrival, Contribution};

/// A communicator between threads. Cheap to clone; clones are the same communicator.
#[derive(Clone)]
pub struct LocalCommunicator(Arc<Member>);

struct Member {
    table: Arc<Table>,
    index: usize,
    device: Device,
    /// The stream of its collectives on a GPU, from the first one on.
    stream: OnceLock<Stream>,
    clock: Clock,
    counters: Counters,
}

impl LocalCommunicator {
    pub(super) fn new(table: Arc<Table>, index: usize, device: Device) -> LocalCommunicator {
        table.join(index);
        let counters = Counters::new(table.group().len());
        let rank = table.group().ranks()[index];
        LocalCommunicator(Arc::new(Member {
            clock: table.rules().clock.of_rank(rank),
            table,
            index,
            device,
            stream: OnceLock::new(),
            counters,
        }))
    }

    /// A communicator of one rank. Its collectives complete at once and send nothing.
    ///
    /// # Errors
    /// When `rank` is too large for a group.
    pub fn alone(rank: usize, device: &Device) -> Result<LocalCommunicator> {
        let group = Group::new([rank])
            .map_err(|error| error.context("the communicator could not be created"))?;
        let table = Arc::new(Table::new(group, Duration::MAX, Arc::default()));
        Ok(LocalCommunicator::new(table, 0, device.clone()))
    }

    fn lend(&self, operands: Operands, request: &Request) -> Result<Contribution> {
        let Member { device, stream, .. } = &*self.0;
        if !device.is_gpu() {
            return Contribution::lend(operands, request);
        }
        let stream = match stream.get() {
            Some(stream) => stream,
            None => {
                let new = device.stream()?;
                stream.get_or_init(|| new)
            }
        };
        Contribution::lend_on(stream, operands, request)
    }

    /// Starts calls as one entry of the table: a transfer, or one or more fused collectives.
    fn begin(&self, calls: Vec<(Request, Contribution)>) -> Result<Begun> {
        let Member { table, index, clock, counters, .. } = &*self.0;
        clock.yield_now();
        let is_transfer = calls.iter().any(|(request, _)| request.peer.is_some());
        let arrivals = calls.into_iter().map(|(request, contribution)| Arrival {
            ticket: counters.ticket(request),
            contribution,
        });
        let begun = table.arrive(*index, arrivals.collect())?;
        if table.rules().is_strict && !is_transfer {
            table.wait(&begun, clock)?;
        }
        Ok(begun)
    }

    fn pending(&self, begun: Begun, contribution: Contribution) -> Pending<Option<Tensor>> {
        let (table, clock) = (self.0.table.clone(), self.0.clock.clone());
        Pending::by_host(move || {
            table.wait(&begun, &clock)?;
            contribution.join()?;
            Ok(contribution.take())
        })
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

    fn time_limit(&self) -> Duration {
        self.0.table.time_limit()
    }

    fn failure(&self) -> Option<Error> {
        self.0.table.failure()
    }

    fn start(&self, request: Request, operands: Operands) -> Result<Pending<Option<Tensor>>> {
        let contribution = self.lend(operands, &request)?;
        let begun = self.begin(vec![(request, contribution.clone())])?;
        Ok(self.pending(begun, contribution))
    }

    /// The collectives are one entry of the table and one transfer of the link model. Sends and
    /// receives start one by one, after them.
    fn start_fused(&self, calls: Vec<(Request, Operands)>) -> Result<Vec<Pending<Option<Tensor>>>> {
        let lent = calls.into_iter().map(|(request, operands)| {
            let contribution = self.lend(operands, &request)?;
            Ok((request, contribution))
        });
        let lent: Vec<(Request, Contribution)> = lent.collect::<Result<_>>()?;
        let is_collective = |call: &&(Request, Contribution)| call.0.peer.is_none();
        let collectives: Vec<_> = lent.iter().filter(is_collective).cloned().collect();
        let together = match collectives.is_empty() {
            true => None,
            false => Some(self.begin(collectives)?),
        };
        let pending = lent.into_iter().map(|(request, contribution)| {
            let begun = match (&together, request.peer) {
                (Some(together), None) => together.clone(),
                _ => self.begin(vec![(request, contribution.clone())])?,
            };
            Ok(self.pending(begun, contribution))
        });
        pending.collect()
    }
}

impl fmt::Debug for LocalCommunicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LocalCommunicator(rank {} of {})", self.rank(), self.group())
    }
}
