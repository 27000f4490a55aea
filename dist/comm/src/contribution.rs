//! The tensors that a rank lends to a collective.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use meshgrad_collectives::{Operands, Output, Request, Ticket};
use meshgrad_runtime::{
    GpuSlice, GpuSliceMut, Lent, LentInPlace, LentMut, Result, Stream, StreamJoin, StreamWork,
    Tensor, UninitTensor,
};

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
    /// Dropped first: the tensors live until the work is done.
    pub(crate) work: Work,
    /// Shared with data that the transport is still sending.
    pub(crate) input: Option<Arc<Lent>>,
    pub(crate) output: Buffer,
}

/// The work of a contribution on a stream of its GPU.
pub(crate) enum Work {
    /// No work: the contribution is on the host, or its work was waited for.
    None,
    /// It has begun, and may be enqueued.
    Begun(StreamWork),
    Enqueued(StreamJoin),
    /// Lets a test observe when the work is dropped.
    #[cfg(test)]
    Observed {
        _until_drop: tests::OnDrop,
    },
}

/// Where a rank's result is written.
pub(crate) enum Buffer {
    None,
    New(UninitTensor),
    Existing(LentMut),
    /// The input is another part of the same storage.
    Shared(LentInPlace),
}

impl Contribution {
    /// Lends the operands of a call.
    pub(crate) fn lend(operands: Operands, request: &Request) -> Result<Contribution> {
        let tensors = Tensors::lend(operands, request)?;
        Ok(Contribution(Arc::new(Mutex::new(tensors))))
    }

    /// Lends operands on a GPU to the work of a stream.
    pub(crate) fn lend_on(
        stream: &Stream,
        operands: Operands,
        request: &Request,
    ) -> Result<Contribution> {
        let begun = StreamWork::begin(stream, || Tensors::lend(operands, request));
        let (work, mut tensors) = begun?;
        tensors.work = Work::Begun(work);
        Ok(Contribution(Arc::new(Mutex::new(tensors))))
    }

    /// Makes the current stream wait for the work, if it is on a stream.
    pub(crate) fn join(&self) -> Result<()> {
        let work = std::mem::replace(&mut self.lock().work, Work::None);
        match work {
            Work::Enqueued(join) => join.wait(),
            _ => Ok(()),
        }
    }

    /// Gives up this clone. If it is the last one, the `Pending` was dropped: frees the tensors, or
    /// returns them if freeing them may wait for a GPU.
    pub(crate) fn release(self) -> Option<Tensors> {
        let tensors = Arc::into_inner(self.0)?.into_inner();
        let tensors = tensors.unwrap_or_else(PoisonError::into_inner);
        (!matches!(tensors.work, Work::None)).then_some(tensors)
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

    /// Whether the call has no tensors.
    pub(crate) fn is_empty(&self) -> bool {
        let tensors = self.lock();
        tensors.input.is_none() && matches!(tensors.output, Buffer::None)
    }

    /// Whether its work is on a stream of a GPU.
    pub(crate) fn is_on_gpu(&self) -> bool {
        matches!(self.lock().work, Work::Begun(_) | Work::Enqueued(_))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Tensors> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tensors {
    fn lend(operands: Operands, request: &Request) -> Result<Tensors> {
        let op = request.fingerprint.collective.name();
        let lend = |input: Tensor| input.lend(op).map(Arc::new);
        let (input, output) = match (operands.input, operands.output) {
            (Some(input), Output::Into(tensor)) if input.storage_id() == tensor.storage_id() => {
                (None, Buffer::Shared(tensor.lend_in_place(&input, op)?))
            }
            (input, Output::Into(tensor)) => {
                let input = input.map(lend).transpose()?;
                (input, Buffer::Existing(tensor.lend_mut(op)?))
            }
            (input, Output::New(tensor)) => {
                let output = match tensor.device().is_gpu() {
                    true => Buffer::Existing(tensor.lend_mut(op)?),
                    false => Buffer::New(tensor),
                };
                (input.map(lend).transpose()?, output)
            }
            (input, Output::None) => (input.map(lend).transpose()?, Buffer::None),
        };
        let work = Work::None;
        Ok(Tensors { work, input, output })
    }

    /// What a member on a GPU contributes, and its output. In place, they are the same.
    pub(crate) fn gpu_slices(&mut self) -> (Option<GpuSlice<'_>>, Option<GpuSliceMut<'_>>) {
        let input = self.input.as_ref().map(|input| input.gpu_slice());
        let output = match &mut self.output {
            Buffer::None | Buffer::New(_) => None,
            Buffer::Existing(loan) => Some(loan.gpu_slice()),
            Buffer::Shared(loan) => {
                let (input, output) = loan.gpu_slices();
                return (Some(input), Some(output));
            }
        };
        let source = input.or_else(|| Some(output.as_ref()?.as_slice().clone()));
        (source, output)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Calls a function when it is dropped.
    pub(crate) struct OnDrop(Box<dyn FnMut() + Send>);

    impl Drop for OnDrop {
        fn drop(&mut self) {
            (self.0)();
        }
    }

    impl Contribution {
        /// No tensors. `dropped` is called when they would be freed.
        pub(crate) fn observed(dropped: impl FnMut() + Send + 'static) -> Contribution {
            Contribution(Arc::new(Mutex::new(Tensors {
                work: Work::Observed { _until_drop: OnDrop(Box::new(dropped)) },
                input: None,
                output: Buffer::None,
            })))
        }
    }
}
