//! What carries frames between ranks.

use std::sync::Arc;

use super::error::JoinError;
use super::frame::{Frame, FrameError};
use super::poll::Poll;
use super::shared::Shared;

/// Carries frames between ranks. It delivers what arrives to the rank's [`Shared`], and ends the
/// world there if it fails. One thread uses it; no call blocks. A frame without a payload may
/// overtake the one before it: parts say to which round they belong, and a rank that left says how
/// many frames it has sent.
pub(super) trait DataPlane: Send {
    /// Queues a frame for a rank.
    fn send(&mut self, rank: usize, frame: Frame) -> Result<(), FrameError>;

    /// Sends what can be sent.
    fn flush(&mut self);

    /// Receives what has arrived.
    fn receive(&mut self);

    /// Whether frames wait to be sent.
    fn is_writing(&self) -> bool;

    /// Adds what its thread has to wait for.
    fn watch<'a>(&'a mut self, poll: &mut Poll<'a>);
}

/// A library that carries the data of a world.
pub(super) trait Engine: Send + Sync {
    /// The data plane of this rank.
    ///
    /// # Errors
    /// The library has only one, and it was returned before.
    fn data_plane(&self, shared: Arc<Shared>) -> Result<Box<dyn DataPlane>, JoinError>;

    /// Ends the library's use, when the data plane is gone.
    fn finish(self: Box<Self>, has_failed: bool);
}
