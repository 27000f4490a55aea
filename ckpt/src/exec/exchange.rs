//! How bytes travel between replicas.

use crate::plan::Digest;

/// Carries the bytes of chunks between replicas, which are numbered from 0. Called from several
/// threads, for several chunks at once.
pub trait Exchange: Sync {
    /// How many replicas there are.
    fn replicas(&self) -> usize;

    /// Which one this is.
    fn replica(&self) -> usize;

    /// Called once, before anything is read: waits for the others and compares what they are up to.
    ///
    /// # Errors
    /// [`ExchangeError::Differ`], for all of them; [`ExchangeError::Gone`].
    fn compare_plans(&self, plan: Digest) -> Result<(), ExchangeError>;

    /// Gives the bytes of a chunk to all others.
    ///
    /// # Errors
    /// [`ExchangeError::Gone`], and what the way they travel has.
    fn send(&self, chunk: usize, bytes: &[u8]) -> Result<(), ExchangeError>;

    /// Takes the bytes of a chunk from the replica that reads it: number `chunk % replicas`.
    ///
    /// # Errors
    /// As [`Exchange::give`].
    fn receive(&self, chunk: usize, bytes: &mut [u8]) -> Result<(), ExchangeError>;

    /// Called after an error: the others must not wait for this replica any more, nor other threads
    /// of this one for them.
    fn abort(&self);
}

/// Why replicas cannot read for each other.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExchangeError {
    /// Two replicas have different plans.
    #[error(
        "replica {replica} is to load by plan {plan}, replica {other} by {other_plan}: replicas \
         must want the same of the same files with the same options"
    )]
    PlansDiffer {
        /// One of them.
        replica: usize,
        /// Its plan.
        plan: Digest,
        /// The other.
        other: usize,
        /// The other one's plan.
        other_plan: Digest,
    },
    /// Another replica has failed, the first of all that did, or has gone away.
    #[error("replica {replica} has stopped: its own error says why")]
    Stopped {
        /// It.
        replica: usize,
    },
    /// An exchange that takes this replica for none of those that there are.
    #[error("replica {replica} of {replicas}: replicas are numbered from 0")]
    Number {
        /// What it is said to be.
        replica: usize,
        /// How many there are said to be.
        replicas: usize,
    },
    /// The way that the bytes travel failed.
    #[error("chunk {chunk} did not get from replica to replica: {message}")]
    Transport {
        /// The chunk.
        chunk: usize,
        /// What the way says.
        message: String,
    },
}
