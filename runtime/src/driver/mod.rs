//! The CUDA driver: contexts, memory, streams, modules and graphs of a GPU or of the emulator. This
//! module depends on no tensor and no op.
//!
//! cudarc provides the raw types and functions. This module adds ownership.

mod allocator;
mod context;
mod faults;
mod gpu;
mod graph;
mod library;
mod memory;
mod module;
mod stats;
mod stream;
mod streams;

pub use context::GpuProperties;
pub use faults::IndexOutOfRange;
pub use stats::{AllocatorStats, MemoryStats, OutOfMemoryReport};

pub(crate) use allocator::{Allocator, Block, MetaSegments, NoBlock, Pool};
pub(crate) use context::{Context, gpus};
pub(crate) use gpu::Gpu;
pub(crate) use graph::{Capture, RawGraph};
pub(crate) use library::{Library, emulator, emulator_is_built, open};
pub(crate) use memory::{Part, Pinned, PinnedCopy, copy, copy_from_peer, fill_zero};
pub(crate) use stream::{Event, RawStream};
