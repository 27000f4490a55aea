//! The tensors that a rank lends to a collective.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use meshgrad_runtime::{Lent, LentMut, Result, Tensor, UninitTensor};

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
}

impl Contribution {
    /// Lends the operands of a call.
    pub(crate) fn lend(operands: Operands, request: &Request) -> Result<Contribution> {
        let op = request.fingerprint.collective.name();
        let input = operands.input.map(|input| input.lend(op)).transpose()?;
        let output = match operands.output {
            Output::None => Buffer::None,
            Output::New(tensor) => Buffer::New(tensor),
            Output::Into(tensor) => Buffer::Existing(tensor.lend_mut(op)?),
        };
        Ok(Contribution(Arc::new(Mutex::new(Tensors {
            input,
            output,
        }))))
    }

    /// The output. Called once, when the work is complete.
    pub(crate) fn take(&self) -> Option<Tensor> {
        let mut tensors = self.lock();
        tensors.input = None;
        match std::mem::replace(&mut tensors.output, Buffer::None) {
            Buffer::None => None,
            Buffer::New(tensor) => Some(tensor.finish()),
            Buffer::Existing(loan) => Some(loan.finish()),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Tensors> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
