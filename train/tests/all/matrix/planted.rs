//! Faults that a comparison with one rank must find.

use std::sync::{Arc, Mutex};

use meshgrad_collectives::{GroupConnector, Operands, Request};
use meshgrad_comm::Communicator;
use meshgrad_mesh::{Channel, Group};
use meshgrad_runtime::{Device, Pending, Result, Tensor, ops};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Planted {
    Nothing,
    /// The last stage has the labels of another microbatch.
    OtherMicrobatch,
    /// A gradient that passes between stages is lost: zeros arrive.
    DroppedGradient,
    /// An activation is sent in place of the next one.
    StaleActivation,
    /// The gradients of a tied table are added twice.
    TiedTwice,
    /// The tokens per expert are those of the own rows only.
    OwnCounts,
}

impl Planted {
    pub(crate) const FAULTS: [Planted; 5] = [
        Planted::OtherMicrobatch,
        Planted::DroppedGradient,
        Planted::StaleActivation,
        Planted::TiedTwice,
        Planted::OwnCounts,
    ];
}

/// Connects groups with a fault in what they carry.
pub(crate) struct PlantedConnector {
    pub(crate) fault: Planted,
    /// Of a sparse layer.
    pub(crate) experts: usize,
    pub(crate) connector: Arc<dyn GroupConnector>,
}

struct Faulty {
    fault: Planted,
    experts: usize,
    /// What was sent first.
    first: Mutex<Option<Tensor>>,
    inner: Arc<dyn Communicator>,
}

impl GroupConnector for PlantedConnector {
    fn connect(&self, name: &str, group: &Group) -> Result<Arc<dyn Communicator>> {
        let inner = self.connector.connect(name, group)?;
        // Homes along no axis of a stage's mesh are those of tied tables.
        let applies = match self.fault {
            Planted::DroppedGradient => group.channel() == Channel::Backward,
            Planted::StaleActivation => group.channel() == Channel::Forward,
            Planted::TiedTwice => name == "home",
            Planted::OwnCounts => group.channel() == Channel::Main,
            Planted::Nothing | Planted::OtherMicrobatch => false,
        };
        Ok(match applies {
            true => {
                let (fault, experts) = (self.fault, self.experts);
                Arc::new(Faulty { fault, experts, first: Mutex::default(), inner })
            }
            false => inner,
        })
    }
}

impl Communicator for Faulty {
    fn group(&self) -> &Group {
        self.inner.group()
    }

    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn index(&self) -> usize {
        self.inner.index()
    }

    fn device(&self) -> &Device {
        self.inner.device()
    }

    fn start(&self, call: Request, mut operands: Operands) -> Result<Pending<Option<Tensor>>> {
        let Some(input) = operands.input.take() else {
            let started = self.inner.start(call, operands)?;
            return match self.fault {
                Planted::TiedTwice => twice(started),
                _ => Ok(started),
            };
        };
        if self.fault == Planted::OwnCounts {
            operands.input = Some(input.clone());
            let started = self.inner.start(call, operands)?;
            return match input.shape()[..] == [1 + self.experts] {
                true => own_counts(&input, started),
                false => Ok(started),
            };
        }
        let mut first = self.first.lock().unwrap();
        operands.input = Some(match (self.fault, &*first) {
            (Planted::DroppedGradient, Some(_)) => input.clone(),
            (Planted::DroppedGradient, None) => ops::affine(&input, 0.0, 0.0)?,
            (Planted::StaleActivation, Some(first)) if first.shape() == input.shape() => {
                first.clone()
            }
            _ => input.clone(),
        });
        first.get_or_insert(input);
        drop(first);
        self.inner.start(call, operands)
    }
}

/// The weight of a loss, summed over ranks, and the counts of `own`.
fn own_counts(own: &Tensor, started: Pending<Option<Tensor>>) -> Result<Pending<Option<Tensor>>> {
    let sum = started.wait()?;
    if let Some(sum) = &sum {
        let counts = |x: &Tensor| x.local().slice(0, 1..own.shape()[0]);
        ops::copy_into(&counts(own)?, &counts(sum)?)?;
    }
    Ok(Pending::by_host(move || Ok(sum)))
}

/// What was reduced in place, added twice.
fn twice(reduced: Pending<Option<Tensor>>) -> Result<Pending<Option<Tensor>>> {
    let sum = reduced.wait()?;
    if let Some(sum) = &sum {
        ops::copy_into(&ops::affine(&sum.local(), 2.0, 0.0)?, sum)?;
    }
    Ok(Pending::by_host(move || Ok(sum)))
}
