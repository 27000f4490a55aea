//! The memories, and the generic address space: windows for shared and local memory; all other addresses
//! are global.

/// A memory that an access resolves to.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(crate) enum MemoryId {
    Shared,
    Local,
    Param,
    /// The allocation with this index.
    Global(usize),
}

/// Start of the shared window.
pub(crate) const SHARED: u64 = 1 << 40;

/// Start of the local window.
pub(crate) const LOCAL: u64 = 2 << 40;

/// Size of each window.
pub(crate) const BYTES: u64 = 1 << 32;

/// Whether a generic address is in the window that starts at `window`.
#[inline(always)]
pub(crate) fn is_in(address: u64, window: u64) -> bool {
    address.wrapping_sub(window) < BYTES
}
