//! Devices, memory, dtypes, tensors and the ops on them. Gradients are in the `autograd` crate.
//!
//! ```
//! use meshgrad_runtime::{Device, Result, Tensor, ops};
//!
//! # fn main() -> Result<()> {
//! let device = Device::cpu();
//! let x = Tensor::from_slice(&device, &[2, 3], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0])?;
//! let total = ops::sum(&ops::mul(&x, &x)?, &[0, 1])?;
//! assert_eq!(total.item::<f32>()?, 91.0);
//! # Ok(())
//! # }
//! ```

mod core;
mod cpu;
mod driver;
mod launch;
pub mod op_cases;
pub mod ops;
mod threads;

pub use meshgrad_error::{Error, Kind as ErrorKind, Result};

pub use crate::core::completion::Completion;
pub use crate::core::device::{Device, Properties, Work};
pub use crate::core::dtype::{Bool, DType, Element, Float, Wide};
pub use crate::core::gpu_slice::{GpuSlice, GpuSliceMut};
pub use crate::core::graph::{Graph, after_launches};
pub use crate::core::key::{Key, Region, RegionKey};
pub use crate::core::layout::Layout;
pub use crate::core::lent::{Lent, LentInPlace, LentMut};
pub use crate::core::number::{Function, Number, RowFunction};
pub use crate::core::op_trace::{OpSpan, OpTrace};
pub use crate::core::pinned::{PendingUpload, PinnedBuffer};
pub use crate::core::shape::{MAX_DIMS, Shape};
pub use crate::core::sharding::scope::{RankScope, with_mesh};
pub use crate::core::sharding::shape::ShardedShape;
pub use crate::core::signature::{Call, Signature};
pub use crate::core::storage::{Kind, ReadGuard, WriteGuard};
pub use crate::core::stream::{Pending, Stream, captured_graph, is_capturing, with_stream};
pub use crate::core::stream_work::{StreamEvent, StreamJoin, StreamWork};
pub use crate::core::tensor::{StorageView, Tensor, UninitTensor};
pub use crate::driver::{
    AllocatorStats, GpuProperties, IndexOutOfRange, MemoryStats, OutOfMemoryReport,
};
pub use crate::launch::Launcher;
pub use crate::launch::tree_reduce::TreeOp;
pub use crate::ops::accumulator::Accumulator;
pub use crate::ops::async_read::AsyncRead;
pub use crate::ops::row_blocks::RowBlocks;

#[cfg(test)]
#[path = "../tests/launches/mod.rs"]
mod launches;

/// Asserts that `result` is an error whose message contains `part`.
#[cfg(test)]
#[track_caller]
fn assert_error<T>(result: Result<T>, part: &str) {
    let error = result.err().expect("it is accepted").to_string();
    assert!(error.contains(part), "{error}");
}

/// Compiles and runs the examples of the guide.
#[cfg(doctest)]
#[doc = include_str!("../../docs/tensor.md")]
#[doc = include_str!("../../docs/gpu.md")]
struct Guide;
