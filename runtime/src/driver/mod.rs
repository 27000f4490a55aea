//! The CUDA driver: contexts, memory, streams, modules and graphs of a GPU, or of the emulator in
//! its place. Knows no tensor and no op.
//!
//! cudarc provides the driver's types and functions. Ownership is decided here.

mod allocator;
mod context;
mod error;
mod faults;
mod gpu;
mod graph;
mod library;
mod memory;
mod module;
mod stream;
mod streams;

pub use allocator::{AllocatorStats, MemoryStats, OutOfMemoryReport};
pub use context::GpuProperties;
pub use error::CudaError;
pub use library::Library;

pub(crate) use allocator::{Allocator, Block, Imagined, NoBlock, Pool};
pub(crate) use context::Context;
pub(crate) use gpu::Gpu;
pub(crate) use graph::{Capture, RawGraph};
pub(crate) use library::emulator_is_built;
pub(crate) use memory::{Part, Pinned, PinnedCopy, clear, copy};
pub(crate) use stream::{Event, RawStream};
