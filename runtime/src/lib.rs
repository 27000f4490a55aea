//! Devices, memory, dtypes, tensors and the ops on them. No gradients: those are the `autograd`
//! crate's.
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

mod accumulator;
mod async_read;
mod cpu;
mod cuda;
mod device;
mod dtype;
mod error;
mod graph;
mod holds;
mod key;
mod layout;
mod memory;
mod number;
pub mod ops;
mod philox;
mod pinned;
mod plan;
mod shape;
mod signature;
mod storage;
mod stream;
mod symbol;
mod tensor;

pub use accumulator::Accumulator;
pub use async_read::AsyncRead;
pub use cpu::attention::AttentionError;
pub use cpu::elementwise::Function;
pub use cpu::gemm::GemmError;
pub use cuda::{AllocatorStats, CudaError, GpuProperties, Library, OutOfMemoryReport};
pub use device::{Device, Properties, Work};
pub use dtype::{Bool, DType, Element, Float, Wide};
pub use error::{Error, Result};
pub use graph::Graph;
pub use key::{Key, Region, RegionKey};
pub use layout::Layout;
pub use memory::MemoryStats;
pub use number::Number;
pub use pinned::{PendingUpload, PinnedBuffer};
pub use plan::Launcher;
pub use shape::{MAX_DIMS, Shape};
pub use signature::{Call, Signature};
pub use storage::{Kind, ReadGuard, WriteGuard};
pub use stream::{Pending, Stream, with_stream};
pub use tensor::{Tensor, UninitTensor};

/// Compiles and runs the examples of the guide.
#[cfg(doctest)]
#[doc = include_str!("../../docs/tensor.md")]
#[doc = include_str!("../../docs/gpu.md")]
#[doc = include_str!("../../docs/places.md")]
struct Guide;
