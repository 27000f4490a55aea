//! Planted faults: a check that accepts a wrong result is a defect.

use std::sync::Arc;
use std::time::Duration;

use meshgrad_collectives::{
    Clock, Communicator, ControlChannel, GroupConnector, Operands, Output, Rank, Request,
};
use meshgrad_mesh::Group;
use meshgrad_runtime::{Device, Element, Pending, Result, Tensor};

use super::Check;
use super::checks::TRANSFERS;
use crate::by_dtype::by_dtype;

/// The index of the member that a fault affects.
const VICTIM: usize = 1;

/// A fault in the data of a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// None.
    None,
    /// The second member contributes zeros.
    Dropped,
    /// The contribution of the second member is multiplied by 2.
    Scaled,
    /// The second and the third member take each other's place.
    Swapped,
}

impl Fault {
    /// Every fault.
    pub const ALL: [Fault; 3] = [Fault::Dropped, Fault::Scaled, Fault::Swapped];

    /// The ranks, in the order in which the faulty communicator is connected. Two ranks keep theirs.
    pub fn order(self, ranks: &[usize]) -> Vec<usize> {
        let mut ranks = ranks.to_vec();
        if self == Fault::Swapped && ranks.len() > VICTIM + 1 {
            ranks.swap(VICTIM, VICTIM + 1);
        }
        ranks
    }

    /// Whether a check must report the fault as a wrong result. If members are swapped, transfers
    /// match no receive and ragged counts differ, so these calls fail with another error.
    pub fn is_detected_by(self, check: &Check) -> bool {
        match self {
            Fault::None => false,
            Fault::Dropped | Fault::Scaled => true,
            Fault::Swapped => !check.is_ragged() && !TRANSFERS.contains(&check.name()),
        }
    }

    /// Alters what a member contributes.
    fn alter<T: Element>(self, values: &mut [T]) {
        let factor = match self {
            Fault::Dropped => 0.0,
            Fault::Scaled => 2.0,
            Fault::None | Fault::Swapped => return,
        };
        for value in values {
            *value = T::from_f64(factor * value.to_f64());
        }
    }

    fn alter_operands(self, operands: &mut Operands) -> Result<()> {
        match (&operands.input, &operands.output) {
            (Some(input), _) => {
                let altered = by_dtype!(input.dtype(), T => {
                    let mut values = input.to_vec::<T>()?;
                    self.alter(&mut values);
                    Tensor::from_slice(input.device(), input.shape(), &values)
                });
                operands.input = Some(altered?);
                Ok(())
            }
            (None, Output::Into(tensor)) => by_dtype!(tensor.dtype(), T => {
                self.alter(&mut tensor.write::<T>("alter")?);
                Ok(())
            }),
            _ => Ok(()),
        }
    }
}

/// A communicator with a [`Fault`].
pub struct Faulty<C> {
    fault: Fault,
    group: Group,
    inner: C,
}

impl<C: Communicator> Faulty<C> {
    /// Pretends that `inner` is the communicator of `group`. The ranks of `inner` must be in the
    /// [order](Fault::order) of the fault.
    pub fn new(fault: Fault, group: Group, inner: C) -> Faulty<C> {
        Faulty { fault, group, inner }
    }
}

impl<C: Communicator> Communicator for Faulty<C> {
    fn group(&self) -> &Group {
        &self.group
    }

    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn index(&self) -> usize {
        let index = self.group.index_of(self.rank());
        index.unwrap_or_else(|| self.inner.index())
    }

    fn device(&self) -> &Device {
        self.inner.device()
    }

    fn can_capture(&self) -> bool {
        self.inner.can_capture()
    }

    fn start(&self, call: Request, mut operands: Operands) -> Result<Pending<Option<Tensor>>> {
        if self.index() == VICTIM {
            self.fault.alter_operands(&mut operands)?;
        }
        self.inner.start(call, operands)
    }
}

/// A rank whose groups are connected by another connector.
pub struct RewiredRank<'a> {
    rank: &'a dyn Rank,
    connector: Arc<dyn GroupConnector>,
}

impl<'a> RewiredRank<'a> {
    /// `rank` with this connector.
    pub fn new(rank: &'a dyn Rank, connector: Arc<dyn GroupConnector>) -> RewiredRank<'a> {
        RewiredRank { rank, connector }
    }

    /// `rank` with a fault in each of its communicators.
    pub fn faulty(rank: &'a dyn Rank, fault: Fault) -> RewiredRank<'a> {
        let connector = rank.connector();
        RewiredRank::new(rank, Arc::new(FaultyConnector { fault, connector }))
    }
}

impl Rank for RewiredRank<'_> {
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
        self.connector.clone()
    }

    /// That of the rank itself.
    fn control(&self, number: u16, limit: Duration) -> Result<ControlChannel> {
        self.rank.control(number, limit)
    }
}

struct FaultyConnector {
    fault: Fault,
    connector: Arc<dyn GroupConnector>,
}

impl GroupConnector for FaultyConnector {
    fn connect(&self, name: &str, group: &Group) -> Result<Arc<dyn Communicator>> {
        let order = Group::new(self.fault.order(group.ranks()))?;
        let communicator = self.connector.connect(name, &order)?;
        Ok(Arc::new(Faulty::new(self.fault, group.clone(), communicator)))
    }
}
