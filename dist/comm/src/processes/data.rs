//! What carries frames between ranks.

use std::sync::Arc;

use meshgrad_error::Result;

use super::frame::{Frame, FrameError};
use super::poll::Poll;
use super::shared::Shared;

/// Carries frames between ranks. It delivers received frames to the rank's [`Shared`]; if it fails,
/// it ends the world there. One thread uses it; no call blocks. A frame without a payload may
/// overtake the one before it: parts state their round, and a rank that leaves states how many
/// frames it has sent.
pub(super) trait DataPlane: Send {
    /// Queues a frame for a rank.
    fn send(&mut self, rank: usize, frame: Frame) -> Result<(), FrameError>;

    /// Sends what can be sent.
    fn flush(&mut self);

    /// Receives what has arrived.
    fn receive(&mut self);

    /// Whether frames wait to be sent.
    fn is_writing(&self) -> bool;

    /// Adds what the data plane's thread has to wait for.
    fn watch<'a>(&'a mut self, poll: &mut Poll<'a>);
}

/// A library that carries the data of a world.
pub(super) trait Engine: Send + Sync {
    /// The data plane of this rank.
    ///
    /// # Errors
    /// The library has only one data plane, and it was returned before.
    fn data_plane(&self, shared: Arc<Shared>) -> Result<Box<dyn DataPlane>>;

    /// Ends the use of the library. Called after the data plane was dropped.
    fn finish(self: Box<Self>, has_failed: bool);
}
