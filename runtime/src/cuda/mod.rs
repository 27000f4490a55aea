//! The CUDA back end: contexts, memory, streams, kernels and graphs of a GPU, or of the emulator in
//! the place of one. Knows no tensor and no op.
//!
//! cudarc is used for the driver's types and functions only; who owns what is decided here.

mod allocator;
mod context;
mod driver;
mod error;
mod gpu;
mod graph;
pub(crate) mod kernel;
mod memory;
mod module;
mod stream;

pub use allocator::{CacheUse, Exhausted};
pub use context::GpuProperties;
pub use driver::Library;
pub use error::CudaError;

pub(crate) use allocator::{Allocator, Block, Imagined, Pool};
pub(crate) use context::Context;
pub(crate) use driver::emulator_is_built;
pub(crate) use gpu::Gpu;
pub(crate) use graph::RawGraph;
pub(crate) use stream::{Event, RawStream};
