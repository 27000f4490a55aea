//! What a function returns.

use meshgrad_error::Kind;

/// `ncclResult_t`. A number and not an enum, because newer libraries have codes that older ones lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Status(pub i32);

impl Status {
    /// It worked.
    pub const SUCCESS: Status = Status(0);
    /// An argument is wrong; nothing happened.
    pub const INVALID_ARGUMENT: Status = Status(4);
    /// A non-blocking call is not done yet.
    pub const IN_PROGRESS: Status = Status(7);

    /// What callers branch on.
    pub fn kind(self) -> Kind {
        match self.0 {
            1 => Kind::Device,
            4 | 5 => Kind::Invalid,
            6 => Kind::PeerFailed,
            7 | 8 => Kind::Stuck,
            _ => Kind::System,
        }
    }
}
