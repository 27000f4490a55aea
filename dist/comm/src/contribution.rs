//! The tensors that a rank lends to a collective.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use meshgrad_runtime::{Lent, LentInPlace, LentMut, Result, Tensor, UninitTensor};

use crate::communicator::{Operands, Output};
use crate::ticket::{Request, Ticket};

/// One member's part of a collective.
pub(crate) struct Arrival {
    pub(crate) ticket: Ticket,
    pub(crate) contribution: Contribution,
}

/// The tensors that a rank lends to a collective. They are returned when all clones are dropped:
/// the rank's `Pending` and the work.
#[derive(Clone)]
pub(crate) struct Contribution(Arc<Mutex<Tensors>>);

/// The tensors of a [`Contribution`].
pub(crate) struct Tensors {
    pub(crate) input: Option<Lent>,
    pub(crate) output: Buffer,
}

/// Where a rank's result is written.
pub(crate) enum Buffer {
    None,
    New(UninitTensor),
    Existing(LentMut),
    /// Another part of the storage is the input.
    Shared(LentInPlace),
}

impl Contribution {
    /// Lends the operands of a call.
    pub(crate) fn lend(operands: Operands, request: &Request) -> Result<Contribution> {
        let op = request.fingerprint.collective.name();
        let lend = |input: Tensor| input.lend(op);
        let (input, output) = match (operands.input, operands.output) {
            (Some(input), Output::Into(tensor)) if input.storage_id() == tensor.storage_id() => {
                (None, Buffer::Shared(tensor.lend_in_place(&input, op)?))
            }
            (input, Output::Into(tensor)) => {
                let input = input.map(lend).transpose()?;
                (input, Buffer::Existing(tensor.lend_mut(op)?))
            }
            (input, Output::New(tensor)) => (input.map(lend).transpose()?, Buffer::New(tensor)),
            (input, Output::None) => (input.map(lend).transpose()?, Buffer::None),
        };
        let tensors = Tensors { input, output };
        Ok(Contribution(Arc::new(Mutex::new(tensors))))
    }

    /// The output. Called once, when the work is complete.
    pub(crate) fn take(&self) -> Option<Tensor> {
        let mut tensors = self.lock();
        tensors.input = None;
        match std::mem::replace(&mut tensors.output, Buffer::None) {
            Buffer::None => None,
            Buffer::New(tensor) => Some(tensor.finish()),
            Buffer::Existing(loan) => Some(loan.finish()),
            Buffer::Shared(loan) => Some(loan.finish()),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Tensors> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
