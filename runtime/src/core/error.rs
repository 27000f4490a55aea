//! What can go wrong in the runtime. Every message names the op, the shapes and the way out.

use std::ops::Range;

use super::params::attention::AttentionError;
use super::params::matmul::GemmError;
use crate::driver::CudaError;
use crate::{DType, Shape};

/// The result of everything in this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the runtime.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Operands do not fit the signature of an op.
    #[error("{op}: {problem}; the op is `{spec}` and was given {given}")]
    Signature {
        /// The op.
        op: &'static str,
        /// What it wants.
        spec: &'static str,
        /// The operands' names, dtypes and shapes.
        given: String,
        /// Which of them does not fit, and how.
        problem: String,
    },

    /// Operands live on different devices.
    #[error("{op}: operands live on different devices ({devices}); copy them to one device first")]
    Devices {
        /// The op.
        op: &'static str,
        /// The device of each operand.
        devices: String,
    },

    /// A value outside of what an op is defined for.
    #[error("{op}: {problem}")]
    Argument {
        /// The op.
        op: &'static str,
        /// The argument, its value, and what is allowed.
        problem: String,
    },

    /// An index outside of the rows it selects from.
    #[error("{op}: index {index} at position {position} is outside of 0..{extent}")]
    IndexOutOfRange {
        /// The op.
        op: &'static str,
        /// The index.
        index: i64,
        /// Where it stands among the indices, in row-major order.
        position: usize,
        /// How many rows there are.
        extent: usize,
    },

    /// A dim that a tensor does not have.
    #[error("{op}: there is no dim {dim} in shape {shape}")]
    NoDim {
        /// The op or view.
        op: &'static str,
        /// The dim asked for.
        dim: usize,
        /// The shape it was looked for in.
        shape: Shape,
    },

    /// A slice that reaches outside of its dim.
    #[error("slice: {}..{} is not inside dim {dim} of shape {shape}", range.start, range.end)]
    SliceRange {
        /// The shape sliced.
        shape: Shape,
        /// The dim sliced.
        dim: usize,
        /// The range asked for.
        range: Range<usize>,
    },

    /// Not a permutation of the dims.
    #[error("permute: {order:?} does not name each dim of shape {shape} once")]
    Permutation {
        /// The shape permuted.
        shape: Shape,
        /// The order asked for.
        order: Vec<usize>,
    },

    /// A shape that does not broadcast to another.
    #[error(
        "broadcast: shape {from} does not broadcast to {to:?}: a dim must be equal or 1, counted \
         from the last"
    )]
    Broadcast {
        /// The shape there is.
        from: Shape,
        /// The shape asked for.
        to: Vec<usize>,
    },

    /// A shape with another number of elements.
    #[error(
        "reshape: shape {from} has {} elements but {to} has {}",
        from.elements(),
        to.elements()
    )]
    Reshape {
        /// The shape there is.
        from: Shape,
        /// The shape asked for.
        to: Shape,
    },

    /// More dims than a tensor can have.
    #[error("shape {shape:?} has {} dims; a tensor has at most {}", shape.len(), crate::MAX_DIMS)]
    TooManyDims {
        /// The shape asked for.
        shape: Vec<usize>,
    },

    /// More bytes than can be addressed.
    #[error("shape {shape} of {dtype} has more bytes than can be addressed")]
    TooLarge {
        /// The shape asked for.
        shape: Shape,
        /// The dtype asked for.
        dtype: DType,
    },

    /// The operating system has no memory left.
    #[error("out of memory: {device} could not get {bytes} bytes beside the {live} bytes in use")]
    OutOfMemory {
        /// The device.
        device: String,
        /// How much was asked for.
        bytes: usize,
        /// How much is in use.
        live: usize,
    },

    /// Data of another length than the shape asks for.
    #[error("shape {shape} has {} elements but {given} were given", shape.elements())]
    Length {
        /// The shape asked for.
        shape: Shape,
        /// How many elements there are.
        given: usize,
    },

    /// A tensor read as elements of another type.
    #[error("tensor holds {actual} but was read as {asked}; cast it first")]
    WrongDType {
        /// What it holds.
        actual: DType,
        /// What was asked for.
        asked: DType,
    },

    /// A dtype without floating-point arithmetic.
    #[error("no arithmetic on {dtype}: cast to f64, f32 or bf16 first")]
    NotAFloat {
        /// The dtype.
        dtype: DType,
    },

    /// A dtype that cannot index.
    #[error("{dtype} cannot index: use i64, i32 or u32")]
    NotAnIndex {
        /// The dtype.
        dtype: DType,
    },

    /// The values of a tensor on a device that computes none.
    #[error("{device} knows shapes only: its tensors have no values to read or write")]
    NoValues {
        /// The device.
        device: String,
    },

    /// The values of a tensor that the host cannot address.
    #[error(
        "the values on {device} are not in the host's memory: copy them by Tensor::to_vec or \
         ops::to_device"
    )]
    NotOnHost {
        /// The device.
        device: String,
    },

    /// An op that a device has no kernel for.
    #[error(
        "{op}: there is no kernel{operands} on {device}; compute it on a CPU device, where \
         ops::to_device takes the operands"
    )]
    NoKernel {
        /// The op.
        op: &'static str,
        /// The device.
        device: String,
        /// For which operands, when there is one for others: ` for f64`.
        operands: String,
    },

    /// Operands that no kernel of an op can be made for.
    #[error(
        "{op}: {device} has no kernel for these operands: {reason}; compute it in smaller parts, or \
         on a CPU device, where ops::to_device takes the operands"
    )]
    KernelRefused {
        /// The op.
        op: &'static str,
        /// The device.
        device: String,
        /// What the kernel's family said.
        reason: meshgrad_kernels::Error,
    },

    /// A write to a tensor that must not change.
    #[error(
        "{op}: the tensor is a value that others may share; only parameters, gradients, optimizer \
         state and caches change"
    )]
    Immutable {
        /// The op that wanted to write.
        op: &'static str,
    },

    /// A write while someone reads or writes, or a read while someone writes: another operand of
    /// the same op, another thread, or work on another stream that nobody waited for.
    #[error(
        "{op}: the storage is in use elsewhere at this moment: it can be read by many or written by \
         one; copy an operand that shares it with the result, and wait for the Pending whose work \
         uses it"
    )]
    Busy {
        /// The op that wanted the storage.
        op: &'static str,
    },

    /// Operands of a matrix product that do not fit; signatures find these first.
    #[error(transparent)]
    Gemm(#[from] GemmError),

    /// Operands of an attention that do not fit.
    #[error(transparent)]
    Attention(#[from] AttentionError),

    /// What went wrong with a GPU, its driver or the emulator.
    #[error(transparent)]
    Cuda(#[from] CudaError),

    /// A device was to compute with no threads.
    #[error("a CPU device cannot have 0 threads; give it at least one")]
    NoThreads,
}
