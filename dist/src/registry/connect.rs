//! What a transport does to make a communicator.

use meshgrad_mesh::Group;

/// Makes communicators: what a transport implements, once, for one rank.
///
/// Nothing here waits. A transport that can only wait (one that has no way to ask whether it is
/// done) may do so in [`Connect::begin`], and is then safe on the path at once with one creation in
/// flight, and not on the lazy path. One that is faster when it makes several together collects them
/// in [`Connect::begin`] and starts at the next [`Connect::poll`].
pub trait Connect {
    /// What sends and receives. Dropping it ends it on this rank.
    type Communicator;
    /// A creation in flight. Dropping it gives the creation up on this rank.
    type Connecting;
    /// What can go wrong; its text goes to people.
    type Error: std::error::Error;

    /// Begins to make a communicator of several ranks, one of which is this. Its other members
    /// begin the same creation, in their own time.
    ///
    /// # Errors
    /// What is known to be wrong at once.
    fn begin(&mut self, creation: &Creation<'_>) -> Result<Self::Connecting, Self::Error>;

    /// How far a creation is. Not called again once it is made or has failed.
    ///
    /// # Errors
    /// What went wrong since.
    fn poll(
        &mut self,
        connecting: &mut Self::Connecting,
    ) -> Result<Progress<Self::Communicator>, Self::Error>;
}

/// Which communicator is to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Creation<'a> {
    /// Its members, channel and options.
    pub group: &'a Group,
    /// Counts the communicators of this group on this rank, from 1. Membership meet under the group
    /// *and* this number: one that has dropped its communicator and comes back never meets another
    /// that has not.
    pub generation: u64,
}

/// How far a creation is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress<Communicator> {
    /// Done.
    Ready(Communicator),
    /// Not done.
    Waiting {
        /// Membership that have not begun, as far as the transport knows; empty when it does not.
        missing: Vec<usize>,
    },
}
