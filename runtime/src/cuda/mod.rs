//! The CUDA back end: contexts, memory, streams, kernels and graphs of a GPU, or of the emulator in
//! the place of one; and the plans of ops, family by family as on the CPU ([`elementwise`],
//! [`matmul`], [`norm`] and so on). But for the plans it knows no tensor and no op.
//!
//! cudarc is used for the driver's types and functions only; who owns what is decided here.

mod allocator;
pub(crate) mod attention;
mod context;
pub(crate) mod copies;
pub(crate) mod cross_entropy;
mod driver;
pub(crate) mod elementwise;
mod error;
mod faults;
pub(crate) mod global_norm;
mod gpu;
mod graph;
pub(crate) mod grouped_matmul;
pub(crate) mod index_sums;
pub(crate) mod indexing;
pub(crate) mod matmul;
mod memory;
mod module;
pub(crate) mod moe;
pub(crate) mod norm;
pub(crate) mod norm_rope;
pub(crate) mod optimizer;
pub(crate) mod random;
pub(crate) mod rank;
pub(crate) mod reduce;
pub(crate) mod rope;
pub(crate) mod softmax;
mod stream;
mod streams;
pub(crate) mod swiglu;

pub use allocator::{AllocatorStats, OutOfMemoryReport};
pub use context::GpuProperties;
pub use driver::Library;
pub use error::CudaError;

pub(crate) use allocator::{Allocator, Block, Imagined, NoBlock, Pool};
pub(crate) use context::Context;
pub(crate) use driver::emulator_is_built;
pub(crate) use gpu::Gpu;
pub(crate) use graph::{Capture, RawGraph};
pub(crate) use memory::{Part, Pinned, PinnedCopy, clear, copy};
pub(crate) use stream::{Event, RawStream};
