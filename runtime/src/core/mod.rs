//! Tensors and the types under them: devices, memory, streams, layouts, dtypes, and the signatures
//! of ops. This module depends on no kernel and no op.
//!
//! Layers of this crate, each of which imports only those above it in this list:
//!
//! - [`driver`](crate::driver): the CUDA driver; [`threads`](crate::threads): the CPU's threads.
//! - `core`: this module.
//! - [`cpu`](crate::cpu): kernels on the CPU; [`launch`](crate::launch): launches of GPU kernels.
//! - [`ops`](crate::ops): the ops.

pub(crate) mod arguments;
mod available;
pub(crate) mod completion;
pub(crate) mod device;
pub(crate) mod dtype;
pub(crate) mod gpu_slice;
pub(crate) mod graph;
pub(crate) mod key;
pub(crate) mod layout;
pub(crate) mod lent;
pub(crate) mod memory;
pub(crate) mod number;
pub(crate) mod op_trace;
pub(crate) mod philox;
pub(crate) mod pinned;
mod print;
pub(crate) mod shape;
pub(crate) mod sharding;
pub(crate) mod signature;
pub(crate) mod simd_math;
mod sleep;
pub(crate) mod storage;
pub(crate) mod stream;
pub(crate) mod stream_uses;
pub(crate) mod stream_work;
pub(crate) mod strides;
pub(crate) mod tensor;
mod transfers;
