//! The interface through which replicas exchange bytes.

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
    /// [`ExchangeError::PlansDiffer`], in all replicas; [`ExchangeError::Stopped`].
    fn compare_plans(&self, plan: Digest) -> Result<(), ExchangeError>;

    /// Sends the bytes of a chunk to all other replicas.
    ///
    /// # Errors
    /// [`ExchangeError::Stopped`]; errors of the transport.
    fn send(&self, chunk: usize, bytes: &[u8]) -> Result<(), ExchangeError>;

    /// Receives the bytes of a chunk from the replica that reads it: number `chunk % replicas`.
    ///
    /// # Errors
    /// As [`Exchange::send`].
    fn receive(&self, chunk: usize, bytes: &mut [u8]) -> Result<(), ExchangeError>;

    /// Stops the exchange after an error: other replicas, and other threads of this one, stop
    /// waiting for each other.
    fn abort(&self);
}

/// Why replicas cannot exchange chunks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExchangeError {
    /// Two replicas have different plans.
    #[error(
        "replica {replica} has plan {plan}, but replica {other} has plan {other_plan}: replicas \
         must make the same requests of the same files with the same options"
    )]
    PlansDiffer {
        /// One replica.
        replica: usize,
        /// Its plan.
        plan: Digest,
        /// The other replica.
        other: usize,
        /// The other replica's plan.
        other_plan: Digest,
    },
    /// Another replica has failed or exited. If several have, this is the first that failed.
    #[error("replica {replica} has stopped: see its own error")]
    Stopped {
        /// The replica.
        replica: usize,
    },
    /// The exchange returned an invalid number for this replica.
    #[error("there is no replica {replica} of {replicas}: replicas are numbered from 0")]
    Number {
        /// The invalid number.
        replica: usize,
        /// The number of replicas.
        replicas: usize,
    },
    /// The transport failed.
    #[error("cannot exchange chunk {chunk} between replicas: {message}")]
    Transport {
        /// The chunk.
        chunk: usize,
        /// The transport's message.
        message: String,
    },
}
