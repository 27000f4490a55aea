//! Errors of joining a world.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// Why a process could not join its world.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The secret is too short.
    #[error(
        "the secret has {length} bytes, but needs at least 16; set MESHGRAD_SECRET to a longer random string"
    )]
    ShortSecret {
        /// Its bytes.
        length: usize,
    },

    /// The operating system has no random bytes.
    #[error("the operating system returned no random bytes: {reason}")]
    NoRandomness {
        /// The reason.
        reason: String,
    },

    /// A rank outside the world.
    #[error(
        "rank {rank} is outside a world of {world} ranks; ranks are 0 to {}",
        world.saturating_sub(1)
    )]
    OutsideWorld {
        /// The rank.
        rank: usize,
        /// The number of ranks.
        world: usize,
    },

    /// Rank 0 could not listen.
    #[error("rank 0 cannot listen on {address}: {reason}; choose a free port")]
    Listen {
        /// The address.
        address: String,
        /// The reason.
        reason: String,
    },

    /// A rank could not reach rank 0 in time.
    #[error("rank {rank} could not join rank 0 at {address} within {waited:?}: {reason}")]
    Unreachable {
        /// The rank.
        rank: usize,
        /// The address.
        address: String,
        /// The time that passed.
        waited: Duration,
        /// The last error.
        reason: String,
    },

    /// The other side does not know the secret, or is another program.
    #[error(
        "{peer} did not prove that it knows the secret: {reason}; start all ranks with the same \
         MESHGRAD_SECRET"
    )]
    Secret {
        /// The other side.
        peer: String,
        /// What it did instead.
        reason: String,
    },

    /// Rank 0 refused this rank.
    #[error("rank 0 refused rank {rank}: {reason}")]
    Refused {
        /// The rank.
        rank: usize,
        /// The reason.
        reason: String,
    },

    /// The world could not start, for all ranks.
    #[error("rank {rank} waited in vain: {reason}")]
    Incomplete {
        /// This rank.
        rank: usize,
        /// The reason.
        reason: String,
    },

    /// The file with the meeting point cannot be used.
    #[error("{}: {problem}", path.display())]
    MeetingFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },

    /// MPI cannot be used.
    #[error("MPI cannot be used: {reason}")]
    Mpi {
        /// The reason.
        reason: String,
    },

    /// The operating system refused a thread or a socket.
    #[error("{what}: {reason}")]
    System {
        /// What failed.
        what: &'static str,
        /// The reason.
        reason: String,
    },
}

/// Prints the message, because an error that `main` returns is printed with `Debug`.
impl fmt::Debug for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl JoinError {
    /// What hinders a rank that waits for rank 0, and where.
    pub(super) fn shortly(&self) -> String {
        match self {
            JoinError::Unreachable { address, reason, .. } => format!("{address}: {reason}"),
            other => other.to_string(),
        }
    }

    pub(super) fn system(what: &'static str) -> impl FnOnce(std::io::Error) -> JoinError {
        move |error| JoinError::System { what, reason: error.to_string() }
    }
}
