//! Limits on inputs: a malicious file must not cost much memory.

/// The format's limit on the size of a header, in bytes.
pub const MAX_HEADER_BYTES: usize = 100_000_000;

/// More dims than any tensor has; limits the memory that a malicious header costs in every reader.
pub const MAX_DIMS: usize = 64;

/// The maximum number of tensors of a model; limits the memory that a malicious index costs.
///
/// A single file needs no such limit: its header has no room for that many.
pub const MAX_TENSORS: usize = 10_000_000;
const _: () = assert!(MAX_HEADER_BYTES / SMALLEST_ENTRY.len() < MAX_TENSORS);
const SMALLEST_ENTRY: &str = r#""w":{"dtype":"U8","shape":[],"data_offsets":[0,1]},"#;

/// The largest index that is read, in bytes: the same as the largest header.
pub(crate) const MAX_INDEX_BYTES: u64 = MAX_HEADER_BYTES as u64;

/// The maximum nesting of objects and arrays, including the outermost; a tensor's entry needs 3.
pub const MAX_DEPTH: usize = 8;
