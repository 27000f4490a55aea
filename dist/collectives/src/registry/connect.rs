//! The interface of a transport.

use meshgrad_error::Result;
use meshgrad_mesh::Group;

/// Creates communicators for one rank. Implemented by transports.
///
/// Methods do not block. A transport that cannot poll may block in [`Connect::begin`]. Planned
/// creation with one creation in flight is then safe, but lazy creation is not. A transport that
/// benefits from batching can collect creations in [`Connect::begin`] and start them in the next
/// [`Connect::poll`].
pub trait Connect {
    /// A communicator. Dropping it destroys it on this rank.
    type Communicator;
    /// A creation in flight. Dropping it cancels the creation on this rank.
    type Connecting;

    /// Begins to create a communicator of several ranks, including this one. The other members
    /// begin the same creation independently.
    ///
    /// # Errors
    /// Errors that are detected immediately.
    fn begin(&mut self, creation: &Creation<'_>) -> Result<Self::Connecting>;

    /// Polls a creation. Not called again after it is ready or has failed.
    ///
    /// # Errors
    /// Errors that were detected since [`Connect::begin`].
    fn poll(&mut self, connecting: &mut Self::Connecting) -> Result<Progress<Self::Communicator>>;
}

/// A communicator to create.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Creation<'a> {
    /// Its members, channel and options.
    pub group: &'a Group,
    /// The number of creations that this rank has begun for the group, including this one. The
    /// group *and* this number identify a creation, so a member that re-creates a communicator
    /// never joins members that still have the old one.
    pub generation: u64,
}

/// The progress of a creation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress<Communicator> {
    /// The communicator is ready.
    Ready(Communicator),
    /// Some members have not joined.
    Waiting {
        /// Members that have not begun, if the transport can list them.
        missing: Vec<usize>,
    },
}
