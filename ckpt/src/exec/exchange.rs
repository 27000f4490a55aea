//! The interface through which replicas exchange bytes.

use meshgrad_error::Result;

use crate::plan::Digest;

/// Sends the bytes of chunks between replicas, which are numbered from 0. Several threads call it
/// at the same time for different chunks.
pub trait Exchange: Sync {
    /// The number of replicas.
    fn replicas(&self) -> usize;

    /// The number of this replica.
    fn replica(&self) -> usize;

    /// Waits for the other replicas and compares their plans. Called once, before any read.
    ///
    /// # Errors
    /// In all replicas when two plans differ; when another replica has stopped.
    fn compare_plans(&self, plan: Digest) -> Result<()>;

    /// Sends the bytes of a chunk to all other replicas.
    ///
    /// # Errors
    /// When another replica has stopped; errors of the transport.
    fn send(&self, chunk: usize, bytes: &[u8]) -> Result<()>;

    /// Receives the bytes of a chunk from the replica that reads it: number `chunk % replicas`.
    ///
    /// # Errors
    /// As [`Exchange::send`].
    fn receive(&self, chunk: usize, bytes: &mut [u8]) -> Result<()>;

    /// Stops the exchange after an error: other replicas, and other threads of this one, stop
    /// waiting for each other.
    fn abort(&self);
}
