//! Load plans: all reads, destinations and costs of a load, known before any data is read.
//!
//! A plan takes regions of a [graph](crate::graph)'s expressions ([`LoadRequest`]) and the headers
//! of the files ([`Catalog`]), and computes
//!
//! 1. the **copies**: strided loops from bytes of a file to bytes of a target. Loops are never
//!    expanded: a column shard of a million rows is three numbers;
//! 2. the **chunks**: the ranges of the files that copies need, merged where they are close
//!    (reading a gap is cheaper than another request), cut into windows, in the order of the files.
//!    Bytes that several targets need are in one chunk and read once;
//! 3. the **bound**: the memory that execution needs, checked against the budget. Execution cannot
//!    exceed it.
//!
//! Plans are pure: they do not depend on clocks, addresses or the order of hash maps. The same
//! requests give the same plan on every run and every rank, regardless of the order in which the
//! graph was built. Ranks compare [`LoadPlan::digest`] before they read.
//!
//! # Example: one sixteenth of the experts
//!
//! In the file, each expert's projections are separate tensors. Training needs them stacked. With 4
//! expert-parallel x 4 tensor-parallel ranks, rank 0 needs a quarter of the experts and a quarter
//! of each expert's features: one sixteenth of the bytes.
//!
//! ```
//! use meshgrad_ckpt::graph::Graph;
//! use meshgrad_ckpt::plan::{Catalog, LoadPlan, Options, LoadRequest};
//! use meshgrad_ckpt::source::{BackendChoice, Sources};
//! use meshgrad_ckpt::exec::{Slices, execute};
//! use meshgrad_ckpt::{Dtype, FileWriter, Folder};
//!
//! # let folder = tempfile::tempdir()?;
//! # let mut file = FileWriter::new();
//! let (experts, features, hidden) = (8, 16, 32);
//! # for expert in 0..experts {
//! #     file.add(&format!("experts.{expert}.up"), Dtype::BF16, &[features, hidden])?;
//! # }
//! # file.save(folder.path().join("model.safetensors"), |tensor, data| {
//! #     data.append(&vec![tensor.name.as_bytes()[8]; tensor.byte_len()])
//! # })?;
//! let mut graph = Graph::new();
//! let shape = [features as u64, hidden as u64];
//! let mut ups = Vec::new();
//! for expert in 0..experts {
//!     ups.push(graph.source(&format!("experts.{expert}.up"), Dtype::BF16, &shape)?);
//! }
//! let stacked = graph.stack(&ups, 0)?; // [experts, features, hidden]
//!
//! let request = LoadRequest::new("up", stacked, [0..2, 0..4, 0..32]);
//! let folder = Folder::open(folder.path())?;
//! let plan = LoadPlan::new(&graph, &Catalog::of(&folder), &[request], &Options::default())?;
//! let all: usize = folder.tensors().map(|tensor| tensor.byte_len()).sum();
//! assert_eq!(plan.needed_bytes() * 16, all as u64);
//!
//! // Nothing has been read so far. This reads the bytes into their destination.
//! let mut up = vec![0; plan.targets()[0].bytes as usize];
//! let sources = Sources::open(&folder, BackendChoice::Auto)?;
//! execute(&plan, &sources, &Slices::new([&mut up[..]]), &|_read| {})?;
//! # assert!(up[..256].iter().all(|byte| *byte == b'0'));
//! # assert!(up[256..].iter().all(|byte| *byte == b'1'));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! These tensors are so small that the plan also reads the gaps between them ([`Options::gap`],
//! [`LoadPlan::amplification`]). For experts of realistic size it reads only the rows that it
//! needs.

mod catalog;
mod chunk;
mod computed;
mod copy;
mod digest;
mod encode;
mod fill;
mod gather;
mod load_plan;
mod options;
mod request;
#[cfg(test)]
mod tests;

pub use catalog::Catalog;
pub(crate) use chunk::Chunk;
pub(crate) use computed::ComputedTensor;
pub(crate) use copy::{ByteLoop, Part};
pub use digest::Digest;
pub(crate) use fill::Fill;
pub(crate) use gather::{Conversion, loops_in_bytes};
pub(crate) use load_plan::ComputedChunk;
pub use load_plan::{Infeasible, LoadPlan, Memory, Reads};
pub use options::{LOCAL_GAP, Options, REMOTE_GAP, Targets};
pub use request::{LoadRequest, Target};
