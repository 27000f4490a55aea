//! The CUDA back end: contexts, memory, streams, kernels and graphs of a GPU, or of the emulator in
//! the place of one; and the plans of ops, family by family as on the CPU ([`elementwise`],
//! [`matmul`], [`norm`]). But for the plans it knows no tensor and no op.
//!
//! cudarc is used for the driver's types and functions only; who owns what is decided here.

mod allocator;
pub(crate) mod attention;
mod context;
mod driver;
pub(crate) mod elementwise;
mod error;
mod faults;
mod gpu;
mod graph;
pub(crate) mod matmul;
mod memory;
mod module;
pub(crate) mod norm;
mod stream;
mod streams;

pub use allocator::{CacheUse, Exhausted};
pub use context::GpuProperties;
pub use driver::Library;
pub use error::CudaError;

pub(crate) use allocator::{Allocator, Block, Imagined, NoBlock, Pool};
pub(crate) use context::Context;
pub(crate) use driver::emulator_is_built;
pub(crate) use gpu::Gpu;
pub(crate) use graph::{Capture, RawGraph};
pub(crate) use memory::{Part, Pinned, Upload, clear, copy};
pub(crate) use stream::{Event, RawStream};
