//! Errors of the runtime. Messages name the op, the shapes, and how to fix the call.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::params::attention_error::AttentionError;
use super::params::matmul::GemmError;
use super::sharding::error::ShardedTensorError;
use super::tape_error::TapeError;
use crate::driver::CudaError;
use crate::{DType, Shape};

/// The result of tensors, the tape and models.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the runtime, the tape or a model.
///
/// Tensors, the tape and models share this type, so a model needs no conversions for `?`. `{:?}`
/// prints the message, so that `main` may return the error.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Operands do not match the signature of an op.
    #[error("{op}: {problem}; the op is `{spec}` and was given {given}")]
    Signature {
        /// The op.
        op: &'static str,
        /// Its signature.
        spec: &'static str,
        /// The operands' names, dtypes and shapes.
        given: String,
        /// Which of them does not match, and how.
        problem: String,
    },

    /// Operands are on different devices.
    #[error("{op}: operands are on different devices ({devices}); copy them to one device first")]
    Devices {
        /// The op.
        op: &'static str,
        /// The device of each operand.
        devices: String,
    },

    /// An argument that the op is not defined for.
    #[error("{op}: {problem}")]
    Argument {
        /// The op.
        op: &'static str,
        /// The argument, its value, and the allowed values.
        problem: String,
    },

    /// An index out of range, on a CPU. A GPU reports it later, as [`CudaError::IndexOutOfRange`].
    #[error("{op}: index {index} at position {position} is outside of 0..{extent}")]
    IndexOutOfRange {
        /// The op.
        op: &'static str,
        /// The index.
        index: i64,
        /// Its position among the indices, in row-major order.
        position: usize,
        /// The number of rows.
        extent: usize,
    },

    /// A dim that a tensor does not have.
    #[error("{op}: shape {shape} has no dim {dim}")]
    NoDim {
        /// The op or view.
        op: &'static str,
        /// The requested dim; negative ones count from the end.
        dim: isize,
        /// The shape.
        shape: Shape,
    },

    /// A slice out of range.
    #[error("slice: {}..{} is out of range for dim {dim} of shape {shape}", range.start, range.end)]
    SliceRange {
        /// The shape.
        shape: Shape,
        /// The dim.
        dim: usize,
        /// The requested range.
        range: Range<usize>,
    },

    /// An order that is not a permutation of the dims.
    #[error("permute: {order:?} does not name each dim of shape {shape} once")]
    Permutation {
        /// The shape.
        shape: Shape,
        /// The requested order.
        order: Vec<usize>,
    },

    /// A shape that does not broadcast to another.
    #[error(
        "broadcast: shape {from} does not broadcast to {to:?}; aligned at the last dim, each dim \
         must be equal or 1"
    )]
    Broadcast {
        /// The shape of the tensor.
        from: Shape,
        /// The requested shape.
        to: Vec<usize>,
    },

    /// A reshape that changes the number of elements.
    #[error(
        "reshape: shape {from} has {} elements, but {to} has {}",
        from.elements(),
        to.elements()
    )]
    Reshape {
        /// The shape of the tensor.
        from: Shape,
        /// The requested shape.
        to: Shape,
    },

    /// More dims than a tensor can have.
    #[error("shape {shape:?} has {} dims; a tensor has at most {}", shape.len(), crate::MAX_DIMS)]
    TooManyDims {
        /// The requested shape.
        shape: Vec<usize>,
    },

    /// A tensor larger than the address space.
    #[error("shape {shape} of {dtype} is larger than the address space")]
    TooLarge {
        /// The requested shape.
        shape: Shape,
        /// The requested dtype.
        dtype: DType,
    },

    /// Out of host memory.
    #[error("out of memory: {device} could not allocate {bytes} bytes; {live} bytes are in use")]
    OutOfMemory {
        /// The device.
        device: String,
        /// The requested bytes.
        bytes: usize,
        /// The bytes in use.
        live: usize,
    },

    /// Data whose length does not match the shape.
    #[error("shape {shape} has {} elements, but {given} were given", shape.elements())]
    Length {
        /// The requested shape.
        shape: Shape,
        /// The number of elements given.
        given: usize,
    },

    /// [`Tensor::item`](crate::Tensor::item) of a tensor that does not have one element.
    #[error("item: shape {shape} has {} elements, but must have exactly one", shape.elements())]
    NotOneElement {
        /// The shape.
        shape: Shape,
    },

    /// A tensor accessed as elements of another dtype.
    #[error("tensor is {actual}, but was accessed as {asked}; cast it first")]
    WrongDType {
        /// Its dtype.
        actual: DType,
        /// The requested dtype.
        asked: DType,
    },

    /// A dtype without floating-point arithmetic.
    #[error("no arithmetic on {dtype}; cast to f64, f32 or bf16 first")]
    NotAFloat {
        /// The dtype.
        dtype: DType,
    },

    /// A dtype that is not an index dtype.
    #[error("{dtype} is not an index dtype; use i64, i32 or u32")]
    NotAnIndex {
        /// The dtype.
        dtype: DType,
    },

    /// Access to the values of a tensor on a meta device.
    #[error("tensors on {device} have shapes but no values; use a CPU or GPU device")]
    NoValues {
        /// The device.
        device: String,
    },

    /// Direct access to the values of a tensor that is not in host memory.
    #[error(
        "the values on {device} are not in host memory; copy them with Tensor::to_vec or \
         ops::to_device"
    )]
    NotOnHost {
        /// The device.
        device: String,
    },

    /// An op without a kernel for the device.
    #[error(
        "{op}: there is no kernel{operands} on {device}; copy the operands to a CPU device \
         (ops::to_device) and run it there"
    )]
    NoKernel {
        /// The op.
        op: &'static str,
        /// The device.
        device: String,
        /// The operands, if there is a kernel for other operands: ` for f64`.
        operands: String,
    },

    /// Operands that the kernels of an op do not support.
    #[error(
        "{op}: {device} has no kernel for these operands: {reason}; split the operands, or copy them \
         to a CPU device (ops::to_device)"
    )]
    KernelRefused {
        /// The op.
        op: &'static str,
        /// The device.
        device: String,
        /// The error of the kernel.
        reason: meshgrad_error::Error,
    },

    /// A write to an immutable tensor.
    #[error(
        "{op}: the tensor is a value, which is immutable; only parameters, gradients, optimizer state \
         and caches can be written"
    )]
    Immutable {
        /// The op.
        op: &'static str,
    },

    /// A conflicting access to a storage: by another operand of the op, by another thread, or by
    /// pending work on another stream.
    #[error(
        "{op}: the storage is in use; it can have many readers or one writer. Copy the operand that \
         shares the result's storage, or wait for the Pending that uses it"
    )]
    Busy {
        /// The op.
        op: &'static str,
    },

    /// A tensor that [sleeps](crate::Tensor::sleep).
    #[error("{op}: the tensor is asleep; call `wake` first")]
    Asleep {
        /// The op.
        op: &'static str,
    },

    /// Invalid operands of a matrix product. Signatures report most of them first.
    #[error(transparent)]
    Gemm(#[from] GemmError),

    /// Invalid operands of attention.
    #[error(transparent)]
    Attention(#[from] AttentionError),

    /// An error of a GPU, its driver or the emulator.
    #[error(transparent)]
    Cuda(#[from] CudaError),

    /// A CPU device with 0 threads.
    #[error("a CPU device needs at least 1 thread, not 0")]
    NoThreads,

    /// An error of a sharded tensor.
    #[error(transparent)]
    Sharding(Box<ShardedTensorError>),

    /// An error of the tape.
    #[error(transparent)]
    Tape(#[from] TapeError),

    /// An error of another crate.
    #[error(transparent)]
    Other(OtherError),
}

impl Error {
    /// Wraps an error of another crate or of a model. [`Error::downcast_ref`] returns it.
    pub fn other(error: impl std::error::Error + Send + Sync + 'static) -> Error {
        Error::Other(OtherError(Arc::new(error)))
    }

    /// The error that [`Error::other`] wrapped, if it is of type `E`.
    pub fn downcast_ref<E: std::error::Error + 'static>(&self) -> Option<&E> {
        match self {
            Error::Other(OtherError(error)) => error.downcast_ref(),
            _ => None,
        }
    }
}

impl From<meshgrad_mesh::Error> for Error {
    fn from(error: meshgrad_mesh::Error) -> Error {
        ShardedTensorError::from(error).into()
    }
}

impl From<ShardedTensorError> for Error {
    fn from(error: ShardedTensorError) -> Error {
        Error::Sharding(Box::new(error))
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An error of another crate. Two are equal only if one is a clone of the other.
#[derive(Clone, Debug, thiserror::Error)]
#[error(transparent)]
pub struct OtherError(Arc<dyn std::error::Error + Send + Sync>);

impl PartialEq for OtherError {
    fn eq(&self, other: &OtherError) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Device, Tensor};

    #[derive(Debug, thiserror::Error)]
    #[error("line {0}")]
    struct Foreign(u32);

    #[test]
    fn item_of_several_elements_is_an_error() {
        let x = Tensor::from_slice(&Device::cpu(), &[1, 3], &[1.0f32, 2.0, 3.0]).unwrap();
        let error = x.item::<f32>().unwrap_err().to_string();
        let expected = "item: shape [1, 3] has 3 elements, but must have exactly one";
        assert_eq!(error, expected);
    }

    /// `main` may return the error: its `Debug` is the message. Errors of other crates keep their
    /// type.
    #[test]
    fn debug_is_the_message_and_other_errors_keep_their_type() {
        let error = Error::other(Foreign(7));
        assert_eq!(format!("{error:?}"), "line 7");
        assert_eq!(error.downcast_ref::<Foreign>().map(|it| it.0), Some(7));
        assert!(error.downcast_ref::<std::io::Error>().is_none());
        assert_eq!(error, error.clone());
        assert_ne!(error, Error::other(Foreign(7)));

        assert_eq!(format!("{:?}", Error::NoThreads), Error::NoThreads.to_string());
        assert!(Error::NoThreads.downcast_ref::<Foreign>().is_none());
    }
}
