//! Versions of the library.

use std::fmt;

/// A version, such as 2.30.7; ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// The first number.
    pub major: u32,
    /// The second.
    pub minor: u32,
    /// The third.
    pub patch: u32,
}

impl Version {
    /// The oldest that is supported.
    pub const OLDEST: Version = Version { major: 2, minor: 19, patch: 0 };

    /// From the number that `ncclGetVersion` reports: major x 10,000 + minor x 100 + patch.
    pub fn of_code(code: i32) -> Version {
        let code = code.max(0) as u32;
        Version { major: code / 10_000, minor: code / 100 % 100, patch: code % 100 }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}
