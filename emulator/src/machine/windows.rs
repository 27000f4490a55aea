//! The generic address space: windows for what each CTA and each thread has of its own, everything
//! else being global memory.

/// Where shared memory begins in generic addresses.
pub(crate) const SHARED: u64 = 1 << 40;

/// Where local memory begins in generic addresses.
pub(crate) const LOCAL: u64 = 2 << 40;

/// How long each window is.
pub(crate) const BYTES: u64 = 1 << 32;

/// Whether a generic address lies in the window at `window`.
#[inline(always)]
pub(crate) fn is_in(address: u64, window: u64) -> bool {
    address.wrapping_sub(window) < BYTES
}
