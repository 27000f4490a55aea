//! Models that PyTorch wrote, as sources: `pytorch_model.bin`, alone or in several files with an
//! index, and folders of `torch.distributed.checkpoint`.
//!
//! | file | content | source of the facts |
//! |---|---|---|
//! | `*.bin` | a zip without compression: `NAME/data.pkl`, `NAME/data/KEY` for each storage | `torch/serialization.py`, `caffe2/serialize/inline_container.cc`; PKWARE APPNOTE 6.3.10 |
//! | `data.pkl` | a pickle of protocol 2 to 5; tensors are views of storages | `torch/_utils.py`, `torch/_tensor.py`; CPython `Lib/pickletools.py` |
//! | `.metadata` | a pickle: tensors, their chunks, and where each chunk is | `torch/distributed/checkpoint/metadata.py` |
//! | `__*_*.distcp` | one after the other, a zip as above for each chunk | `torch/distributed/checkpoint/filesystem.py` |
//!
//! A pickle is a program for a stack machine that may call any Python function. The machine here
//! calls nothing: it knows the globals that tensors need by name and builds values. Any other
//! global is an error that names it. Opening a file compares the CRC-32 of its pickle;
//! [`TorchModel::checksums`] lists those of all zip entries.

mod archive;
mod bin;
mod checksums;
mod crc32;
mod dcp;
mod error;
mod failure;
mod globals;
mod model;
mod opcodes;
mod pickle;
mod tensor;
mod view;
mod zip;

use std::path::Path;

pub use checksums::{Checksum, Checksums};
pub use model::{Format, TorchModel};

use meshgrad_error::Result;

use crate::Links;
use crate::confined::ConfinedFolder;

/// Opens the model of a folder; `None` if it has neither `pytorch_model.bin`, nor its index, nor
/// the `.metadata` of `torch.distributed.checkpoint`. Reads no data of tensors.
///
/// # Errors
/// For files that are damaged ([`Kind::Malformed`](crate::Kind::Malformed)) or not supported
/// ([`Kind::Unsupported`](crate::Kind::Unsupported)); the errors of index and files that
/// [`Folder::open`](crate::Folder::open) returns.
pub fn open(path: impl AsRef<Path>, links: Links) -> Result<Option<TorchModel>> {
    let confined = ConfinedFolder::new(path.as_ref(), links)?;
    match bin::open(path.as_ref(), &confined)? {
        Some(model) => Ok(Some(model)),
        None => dcp::open(path.as_ref(), &confined),
    }
}

/// Opens one file of `torch.save`, of any name.
///
/// # Errors
/// As [`open`].
pub fn open_file(path: impl AsRef<Path>) -> Result<TorchModel> {
    bin::open_file(path.as_ref())
}
