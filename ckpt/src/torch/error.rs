//! Errors of several modules: why a file is not one that PyTorch wrote, or has no plain tensors.
//!
//! Their kind is [`Malformed`](crate::Kind::Malformed) if the file is damaged, or no file of
//! PyTorch at all. It is [`Unsupported`](crate::Kind::Unsupported) if PyTorch can read the file,
//! but this program cannot.

use meshgrad_error::{Error, error};

use crate::limits::MAX_HEADER_BYTES;
use crate::names::Listed;

/// The maximum nesting of dicts and lists, and of parameters in parameters.
pub(super) const MAX_NESTED: usize = 16;

pub(super) fn not_a_zip() -> Error {
    error!(Malformed, "it is not a zip archive of torch.save: it is truncated, or another format")
}

/// The zip archive breaks a rule of its format.
pub(super) fn bad_zip(problem: &str) -> Error {
    error!(Malformed, "its zip archive is damaged: {problem}")
}

pub(super) fn no_entry(name: &str) -> Error {
    error!(Malformed, "its zip archive has no entry `{}`", name.escape_debug())
}

/// The content of a zip entry, which stores `tensors`, differs from its CRC-32.
pub(super) fn wrong_checksum(entry: &str, listed: u32, found: u32, tensors: &[String]) -> Error {
    let stored = match tensors {
        [] => String::new(),
        tensors => format!("; it stores {}", Listed(tensors)),
    };
    error!(
        Malformed,
        "its zip entry `{}` is damaged: the content has CRC-32 {found:08x}, but the archive lists \
         {listed:08x}{stored}",
        entry.escape_debug()
    )
}

/// A part of the file is larger than any real one.
pub(super) fn too_large(what: &str, bytes: u64) -> Error {
    error!(
        Unsupported,
        "its {what} has {bytes} bytes, but at most {MAX_HEADER_BYTES} are supported"
    )
}

/// The pickle has another structure than PyTorch writes.
pub(super) fn lacks(what: &str) -> Error {
    error!(Malformed, "its pickle has no {what}")
}

/// A value of a distributed checkpoint is neither a tensor nor bytes.
pub(super) fn not_a_tensor(name: &str) -> Error {
    error!(Unsupported, "`{}` is not a tensor; save only the state_dict", name.escape_debug())
}

/// Dicts and lists that are nested too deeply, or contain each other.
pub(super) fn nested(name: &str) -> Error {
    error!(
        Unsupported,
        "its values are nested more than {MAX_NESTED} deep at `{}`; save only the state_dict: \
         torch.save(model.state_dict(), ..)",
        name.escape_debug()
    )
}

/// A tensor is damaged.
pub(super) fn damaged(name: &str, problem: &str) -> Error {
    error!(Malformed, "tensor `{}` cannot be read: {problem}", name.escape_debug())
}

/// A tensor that PyTorch can read, but this program cannot; `problem` says what to save instead.
pub(super) fn unsupported(name: &str, problem: &str) -> Error {
    error!(Unsupported, "tensor `{}` cannot be read: {problem}", name.escape_debug())
}

/// The metadata does not say where a chunk is, or the place is outside the file.
pub(super) fn no_chunk(name: &str, offsets: &[u64], problem: &str) -> Error {
    error!(Malformed, "the chunk of `{}` at {offsets:?} {problem}", name.escape_debug())
}
