//! The interface of a transport's communicators.

use std::sync::Arc;
use std::time::Duration;

use meshgrad_mesh::Group;
use meshgrad_runtime::{DType, Device, Error, Pending, Result, Tensor, UninitTensor};

use crate::ticket::Request;

/// The time limit of collectives that no option sets.
const TIME_LIMIT: Duration = Duration::from_secs(300);

/// A group's communicator on one rank. Implemented by transports; callers use
/// [`Collectives`](crate::Collectives), which checks arguments and allocates results.
pub trait Communicator: Send + Sync {
    /// Its group.
    fn group(&self) -> &Group;

    /// This rank's number in the world.
    fn rank(&self) -> usize;

    /// This rank's index in the group. Roots and peers are such indices.
    fn index(&self) -> usize;

    /// The number of members.
    fn size(&self) -> usize {
        self.group().len()
    }

    /// The device of the tensors that it accepts and returns.
    fn device(&self) -> &Device;

    /// Whether its collectives can be captured in a graph
    /// ([`Device::capture`](meshgrad_runtime::Device::capture)). A group of one rank always can:
    /// its collectives are copies.
    fn can_capture(&self) -> bool {
        false
    }

    /// How long a collective may take until it is an error: the group's `timeout`, or what the transport is set to.
    fn time_limit(&self) -> Duration {
        self.group().options().timeout.unwrap_or(TIME_LIMIT)
    }

    /// Why its collectives fail from now on, if the transport knows of a rank that failed.
    fn failure(&self) -> Option<Error> {
        None
    }

    /// Starts a collective whose arguments are valid. Does not wait for other members. The result
    /// is the output of `operands`.
    ///
    /// A call that fails because of its tensors takes no number, so it can be repeated.
    ///
    /// # Errors
    /// An error that is known immediately: the collective differs from that of another member, the
    /// communicator has failed, or a tensor is in use. All others are errors of the [`Pending`].
    fn start(&self, request: Request, operands: Operands) -> Result<Pending<Option<Tensor>>>;

    /// Starts several collectives, in order, with one message per peer if the transport can. The
    /// default starts them one after another.
    ///
    /// # Errors
    /// As [`Communicator::start`], for the first collective that fails.
    fn start_fused(&self, calls: Vec<(Request, Operands)>) -> Result<Vec<Pending<Option<Tensor>>>> {
        let starts = calls.into_iter();
        starts.map(|(request, operands)| self.start(request, operands)).collect()
    }
}

/// The tensors of one rank's call, all contiguous and on the communicator's device.
///
/// The input may be a part of the storage that the output writes ([`Tensor::lend_in_place`]). In
/// that case the part is in its place in the whole, or they do not overlap. So a member never reads
/// what another member writes at its own place.
pub struct Operands {
    /// What this rank contributes; `None` if it contributes nothing or works in place.
    pub input: Option<Tensor>,
    /// What this rank gets.
    pub output: Output,
}

impl Operands {
    /// The bytes of the input or of the output, whichever is larger.
    pub fn bytes(&self) -> u64 {
        let of = |dtype: DType, elements: usize| dtype.bytes(elements) as u64;
        let output = match &self.output {
            Output::None => 0,
            Output::New(new) => of(new.dtype(), new.shape().elements()),
            Output::Into(tensor) => of(tensor.dtype(), tensor.elements()),
        };
        let input = self.input.as_ref();
        input.map_or(output, |x| of(x.dtype(), x.elements()).max(output))
    }
}

/// The destination of a collective's result.
pub enum Output {
    /// This rank gets nothing.
    None,
    /// A new tensor.
    New(UninitTensor),
    /// A mutable tensor. It is also the input if there is no other.
    Into(Tensor),
}

impl<C: Communicator + ?Sized> Communicator for Arc<C> {
    fn group(&self) -> &Group {
        (**self).group()
    }

    fn rank(&self) -> usize {
        (**self).rank()
    }

    fn index(&self) -> usize {
        (**self).index()
    }

    fn device(&self) -> &Device {
        (**self).device()
    }

    fn can_capture(&self) -> bool {
        (**self).can_capture()
    }

    fn time_limit(&self) -> Duration {
        (**self).time_limit()
    }

    fn failure(&self) -> Option<Error> {
        (**self).failure()
    }

    fn start(&self, request: Request, operands: Operands) -> Result<Pending<Option<Tensor>>> {
        (**self).start(request, operands)
    }

    fn start_fused(&self, calls: Vec<(Request, Operands)>) -> Result<Vec<Pending<Option<Tensor>>>> {
        (**self).start_fused(calls)
    }
}
