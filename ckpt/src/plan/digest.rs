//! A number that stands for a plan.

use std::fmt;

/// What a plan does, as 128 bits: xxh3 over all of it, in an order that depends on nothing but the
/// names and places of things. Tells plans apart that differ by mistake, not by malice.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest(pub(super) u128);

impl Digest {
    /// Its bytes, the most significant first.
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
