//! The generic address space: windows for shared and local memory; all other addresses are global.

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
