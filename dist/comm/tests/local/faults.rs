//! Planted faults: a check that accepts a wrong result is a defect.

use std::time::Duration;

use meshgrad_comm::{Communicator, Local, LocalCommunicator, Operands, Output, Request, RunError};
use meshgrad_mesh::Group;
use meshgrad_runtime::{Device, Pending, Result, Tensor};

use crate::suite;

#[derive(Clone, Copy, Debug)]
enum Fault {
    None,
    /// The victim contributes zeros.
    Dropped,
    /// The victim's contribution is multiplied by 2.
    Scaled,
    /// The victim and the next member take each other's place.
    Swapped,
}

const VICTIM: usize = 1;

/// A communicator with a fault, of f32 tensors.
struct Faulty {
    fault: Fault,
    group: Group,
    inner: LocalCommunicator,
}

impl Faulty {
    fn alter(&self, value: f32) -> f32 {
        match self.fault {
            Fault::Dropped => 0.0,
            Fault::Scaled => 2.0 * value,
            Fault::None | Fault::Swapped => value,
        }
    }
}

impl Communicator for Faulty {
    fn group(&self) -> &Group {
        &self.group
    }

    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn index(&self) -> usize {
        self.group.index_of(self.rank()).unwrap()
    }

    fn device(&self) -> &Device {
        self.inner.device()
    }

    fn start(&self, call: Request, mut operands: Operands) -> Result<Pending<Option<Tensor>>> {
        if self.index() == VICTIM {
            match (&operands.input, &operands.output) {
                (Some(input), _) => {
                    let values = input.to_vec::<f32>()?;
                    let values: Vec<f32> = values.iter().map(|x| self.alter(*x)).collect();
                    let altered = Tensor::from_slice(self.device(), input.shape(), &values)?;
                    operands.input = Some(altered);
                }
                (None, Output::Into(tensor)) => {
                    let mut values = tensor.write::<f32>("alter")?;
                    values.iter_mut().for_each(|x| *x = self.alter(*x));
                }
                _ => {}
            }
        }
        self.inner.start(call, operands)
    }
}

fn outcome(fault: Fault, check: suite::Check) -> Result<Vec<()>, RunError> {
    let local = Local::new(3).deadline(Duration::from_secs(20)); // a hang is no detection
    local.launch(|rank| {
        let order = match fault {
            Fault::Swapped => [0, 2, 1],
            _ => [0, 1, 2],
        };
        let inner = rank.connect("faulty", &Group::new(order).unwrap());
        let faulty = Faulty {
            fault,
            group: Group::new([0, 1, 2]).unwrap(),
            inner: inner.map_err(|error| error.to_string())?,
        };
        check(&faulty, 257)
    })
}

fn fails(fault: Fault, name: &str, check: suite::Check) {
    match outcome(fault, check) {
        Err(RunError::Rank { source, .. }) if source.to_string().contains("differs") => {}
        other => panic!("{name} accepts {fault:?}: {other:?}"),
    }
}

#[test]
fn every_check_detects_every_fault() {
    for (name, check) in suite::even::<f32>() {
        outcome(Fault::None, check).unwrap();
        fails(Fault::Dropped, name, check);
        fails(Fault::Scaled, name, check);
        // A transfer to the wrong rank matches no receive: that is a timeout, not a result.
        if name != "send and recv" {
            fails(Fault::Swapped, name, check);
        }
    }
    for (name, check) in suite::ragged::<f32>() {
        outcome(Fault::None, check).unwrap();
        fails(Fault::Dropped, name, check);
        fails(Fault::Scaled, name, check);
    }
}
