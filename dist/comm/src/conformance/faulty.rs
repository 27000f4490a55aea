//! Planted faults: a check that accepts a wrong result is a defect.

use meshgrad_mesh::Group;
use meshgrad_runtime::{Device, Pending, Result, Tensor};

use super::Check;
use crate::communicator::{Communicator, Operands, Output};
use crate::ticket::Request;

/// The index of the member that a fault affects.
const VICTIM: usize = 1;

/// A fault in the data of a communicator of three ranks or more.
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

    /// The ranks, in the order in which the faulty communicator is connected.
    pub fn order(self, ranks: &[usize]) -> Vec<usize> {
        let mut ranks = ranks.to_vec();
        if self == Fault::Swapped {
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
            Fault::Swapped => !check.is_ragged() && check.name() != "send and recv",
        }
    }

    fn alter(self, value: f32) -> f32 {
        match self {
            Fault::Dropped => 0.0,
            Fault::Scaled => 2.0 * value,
            Fault::None | Fault::Swapped => value,
        }
    }
}

/// A communicator with a [`Fault`], for f32 tensors.
pub struct Faulty<C> {
    fault: Fault,
    group: Group,
    inner: C,
}

impl<C: Communicator> Faulty<C> {
    /// Pretends that `inner` is the communicator of `group`. The ranks of `inner` must be in the
    /// [order](Fault::order) of the fault.
    pub fn new(fault: Fault, group: Group, inner: C) -> Faulty<C> {
        Faulty {
            fault,
            group,
            inner,
        }
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

    fn start(&self, call: Request, mut operands: Operands) -> Result<Pending<Option<Tensor>>> {
        if self.index() == VICTIM {
            match (&operands.input, &operands.output) {
                (Some(input), _) => {
                    let values = input.to_vec::<f32>()?;
                    let values: Vec<f32> = values.iter().map(|x| self.fault.alter(*x)).collect();
                    let altered = Tensor::from_slice(self.device(), input.shape(), &values)?;
                    operands.input = Some(altered);
                }
                (None, Output::Into(tensor)) => {
                    let mut values = tensor.write::<f32>("alter")?;
                    let altered = values.iter_mut();
                    altered.for_each(|x| *x = self.fault.alter(*x));
                }
                _ => {}
            }
        }
        self.inner.start(call, operands)
    }
}
