//! Results of the library that are not success.

use super::world_id::WorldId;
use crate::driver::error::Error;

/// A code of `ncclResult_t` that is not success, and why.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    pub(crate) code: i32,
    pub(crate) message: String,
    /// The communicator whose program is at fault where the library would notice nothing.
    pub(crate) fault_of: Option<WorldId>,
}

pub(crate) type Result<T> = std::result::Result<T, Refusal>;

impl Refusal {
    /// What the library would not notice.
    pub(crate) fn fault(code: i32, message: impl Into<String>, of: WorldId) -> Refusal {
        Refusal { code, message: message.into(), fault_of: Some(of) }
    }
}

/// Codes of `ncclResult_t`.
pub(crate) const SUCCESS: i32 = 0;
pub(crate) const UNHANDLED_CUDA_ERROR: i32 = 1;
pub(crate) const SYSTEM_ERROR: i32 = 2;
pub(crate) const INTERNAL_ERROR: i32 = 3;
pub(crate) const INVALID_ARGUMENT: i32 = 4;
pub(crate) const INVALID_USAGE: i32 = 5;
/// A process of another rank has ended.
pub(crate) const REMOTE_ERROR: i32 = 6;
pub(crate) const IN_PROGRESS: i32 = 7;

pub(crate) fn refused<T>(code: i32, message: impl Into<String>) -> Result<T> {
    Err(Refusal { code, message: message.into(), fault_of: None })
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        Refusal { code: UNHANDLED_CUDA_ERROR, message: error.to_string(), fault_of: None }
    }
}
