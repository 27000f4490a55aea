//! A number that identifies a plan.

use std::fmt;

/// A 128-bit xxh3 of all that a plan does, in an order that depends only on names and offsets. It
/// distinguishes plans that differ by mistake, not by malice.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest(pub(super) u128);

impl Digest {
    /// Its bytes, most significant first.
    pub fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
