//! Checkpoints on disk: bytes, names and shapes, without a tensor library.
//!
//! - [`TensorFile`] and [`FileWriter`]: one safetensors file, parsed strictly, written
//!   reproducibly.
//! - [`Folder`] and [`FolderWriter`]: a Hugging Face folder with one file or several;
//!   [`FolderLayout`] for ranks that write one together.
//! - [`graph`]: expressions over tensors, compiled to the copies that produce a part of them.
//! - [`mapping`] and [`layout`]: names in different layouts of a model, and the regions that ranks
//!   own.
//! - [`plan`]: the reads for a load, their sizes and memory, before any read.
//! - [`source`] and [`exec`]: the files, and reads directly into the final destination.
//! - [`torch`] and [`Assembly`]: models that PyTorch wrote, and other models stored in parts.
//! - [`Staging`], [`newest`], [`keep_last`]: atomic checkpoints, which exist completely or not at
//!   all whenever the process or the machine stops; [`Writer`] for ranks that write parts of a
//!   checkpoint.
//! - [`ranks`]: ranks that save one checkpoint together, each with its shards.
//! - [`Saver`] and [`Snapshot`]: saving in the background of training.
//! - [`vfs`]: the file system interface. The crate `meshgrad-ckpt-crash` implements it with
//!   simulated power cuts and also kills real processes, to test the atomicity.
//!
//! ```
//! use meshgrad_ckpt::{Dtype, Error, Folder, FolderWriter, Staging, newest, step_name};
//!
//! let run = tempfile::tempdir()?;
//! let weight = [1.0f32, 2.0, 3.0, 4.0].map(f32::to_le_bytes).concat();
//!
//! let mut staging = Staging::new(run.path(), &step_name(123))?;
//! staging.write("config.json", b"{}")?;
//!
//! let mut model = FolderWriter::new();
//! model.add("weight", Dtype::F32, &[2, 2])?;
//! model.write(&mut staging, "", |_tensor, data| data.append(&weight))?;
//! staging.commit()?;
//!
//! let newest = newest(run.path())?.committed.ok_or("no checkpoint")?;
//! newest.verify()?;
//! assert_eq!(newest.step(), Some(123));
//! assert_eq!(Folder::open(newest.path())?.read("weight")?, weight);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod assembly;
mod blocks;
mod committed;
mod confined;
mod coverage;
mod discover;
mod disk;
mod disk_failure;
mod dtype;
mod error;
pub mod exec;
mod file_writer;
mod float8;
mod folder;
mod folder_layout;
mod folder_writer;
#[doc(hidden)]
pub mod fuzzing;
mod gc;
pub mod graph;
mod header;
mod header_canonical;
mod header_entry;
mod header_json;
mod index;
mod index_json;
mod integrity;
mod json;
pub mod layout;
mod leftovers;
mod limits;
mod manifest;
pub mod mapping;
mod merged_blocks;
mod name_list;
mod names;
mod no_links;
mod output_file;
pub mod plan;
pub mod ranks;
mod region;
mod saver;
mod seal;
mod shared_file;
mod snapshot;
pub mod source;
mod space;
mod staging;
mod staging_folder;
mod step_name;
mod temp_name;
mod tensor_file;
mod tensor_info;
pub mod torch;
mod verify;
pub mod vfs;
mod write_report;
mod writer;

pub use assembly::{Assembly, Part};
pub use blocks::{Block, Digest, MAX_BLOCK_BYTES};
pub use committed::Committed;
pub use confined::Links;
pub use discover::{Newest, Scan, discover, newest, newest_in, scan, scan_in};
pub use disk::available_bytes;
pub use disk_failure::is_disk_failure;
pub use dtype::Dtype;
pub use error::{NoSpace, io_error, path_of};
pub use file_writer::{FileWriter, PlannedFile, TensorSink};
pub use folder::{Folder, SizeMismatch};
pub use folder_layout::FolderLayout;
pub use folder_writer::FolderWriter;
pub use gc::{keep_last, keep_last_in, sweep, sweep_in};
pub use header::Header;
pub use integrity::{Incomplete, IntegrityError};
pub use leftovers::{Leftover, LeftoverKind, leftovers, surplus};
pub use limits::{MAX_DEPTH, MAX_DIMS, MAX_HEADER_BYTES, MAX_TENSORS};
pub use manifest::About;
pub use meshgrad_error::{Error, FailedRank, Kind, Result};
pub use names::Listed;
pub use output_file::{OutputFile, replace_file, replace_file_in};
pub use region::write_region;
pub use saver::{Saver, Submitted, Task, WhenBusy};
pub use shared_file::SharedFile;
pub use snapshot::Snapshot;
pub use staging::Staging;
pub use step_name::step_name;
pub use tensor_file::TensorFile;
pub use tensor_info::TensorInfo;
pub use write_report::WriteReport;
pub use writer::Writer;

/// Compiles and runs the examples of the guide.
#[cfg(doctest)]
#[doc = include_str!("../../docs/checkpoint.md")]
struct Guide;
