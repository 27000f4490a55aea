//! The interface of a transport.

use meshgrad_mesh::Group;

/// Creates communicators for one rank. Implemented by transports.
///
/// Methods do not block. A transport that cannot poll may block in [`Connect::begin`]; it is then
/// safe for planned creation with one creation in flight, but not for lazy creation. A transport that
/// benefits from batching collects creations in [`Connect::begin`] and starts them in the next
/// [`Connect::poll`].
pub trait Connect {
    /// A communicator. Dropping it destroys it on this rank.
    type Communicator;
    /// A creation in flight. Dropping it cancels the creation on this rank.
    type Connecting;
    /// The error type.
    type Error: std::error::Error;

    /// Begins to create a communicator of several ranks, including this one. The other members begin
    /// the same creation independently.
    ///
    /// # Errors
    /// Errors that are detected immediately.
    fn begin(&mut self, creation: &Creation<'_>) -> Result<Self::Connecting, Self::Error>;

    /// Polls a creation. Not called again after it is ready or has failed.
    ///
    /// # Errors
    /// Errors detected since.
    fn poll(
        &mut self,
        connecting: &mut Self::Connecting,
    ) -> Result<Progress<Self::Communicator>, Self::Error>;
}

/// A communicator to create.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Creation<'a> {
    /// Its members, channel and options.
    pub group: &'a Group,
    /// The number of this communicator among those of the group on this rank, from 1. The group *and*
    /// this number identify a creation, so a member that re-creates a communicator never joins one
    /// that still has the old one.
    pub generation: u64,
}

/// The progress of a creation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress<Communicator> {
    /// The communicator is ready.
    Ready(Communicator),
    /// Some members have not joined.
    Waiting {
        /// Members that have not begun, as far as the transport knows.
        missing: Vec<usize>,
    },
}
