//! Exchanges of messages between all ranks.

use std::fmt;
use std::sync::mpsc::{Receiver, Sender, channel};

use meshgrad_error::{Error, FailedRank, Result, error};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Cause;

/// The error of all ranks when `rank` failed with `reason`. If several failed, it is the lowest.
pub(super) fn failed(step: &str, rank: usize, reason: String) -> Error {
    error!(PeerFailed, "rank {rank} failed to {step}: {reason}")
        .and_details(FailedRank { rank, reason })
}

/// The ranks that save together, as seen by one of them. Any exchange of bytes between threads or
/// processes can connect them.
///
/// ```
/// use meshgrad_ckpt::ranks::Ranks;
///
/// assert_eq!(Ranks::alone().all_gather(b"hello").unwrap(), [b"hello"]);
///
/// std::thread::scope(|scope| {
///     for mut rank in Ranks::threads(3) {
///         scope.spawn(move || {
///             let number = [rank.rank() as u8];
///             assert_eq!(rank.all_gather(&number).unwrap(), [[0], [1], [2]]);
///         });
///     }
/// });
/// ```
pub struct Ranks<'g> {
    rank: usize,
    world_size: usize,
    gather: Box<Gather<'g>>,
}

type Gather<'g> = dyn FnMut(&[u8]) -> Result<Vec<Vec<u8>>, Cause> + Send + 'g;

impl<'g> Ranks<'g> {
    /// Rank `rank` of `world_size`. `gather` sends a message to all ranks and returns those of ranks
    /// 0, 1, ... Ranks may arrive far apart: while one waits, another may still write its shards. If
    /// a rank has failed or exited, the error should name it.
    pub fn new(
        rank: usize,
        world_size: usize,
        gather: impl FnMut(&[u8]) -> Result<Vec<Vec<u8>>, Cause> + Send + 'g,
    ) -> Ranks<'g> {
        Ranks { rank, world_size, gather: Box::new(gather) }
    }

    /// A single rank.
    pub fn alone() -> Ranks<'static> {
        Ranks::new(0, 1, |mine| Ok(vec![mine.to_vec()]))
    }

    /// The number of this rank, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of ranks.
    pub fn world_size(&self) -> usize {
        self.world_size
    }

    /// Sends `mine` to all ranks and returns the messages of ranks 0, 1, ...
    ///
    /// # Errors
    /// Those of the function that gathers.
    pub fn all_gather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Cause> {
        (self.gather)(mine)
    }

    /// Exchanges the results of a step and returns those of ranks 0, 1, ...
    ///
    /// # Errors
    /// [`FailedRank`] if one of several ranks failed, on all of them; when the ranks cannot
    /// exchange messages, usually because one has exited, or a message is not one of this protocol.
    pub(super) fn agree<T: Serialize + DeserializeOwned>(
        &mut self,
        step: &'static str,
        mine: Result<T>,
    ) -> Result<Vec<T>> {
        if self.world_size == 1 {
            return Ok(vec![mine?]); // with the details of its error
        }
        let failed = |rank, reason| failed(step, rank, reason);
        let mine = mine.map_err(|error| error.to_string());
        let message = serde_json::to_vec(&mine);
        let message = message.map_err(|problem| bad_message(self.rank, problem))?;

        let messages = self.all_gather(&message).map_err(|cause| match &mine {
            // One may be the consequence of the other: rank 0 removes the folder when a rank exits.
            Err(own) => failed(self.rank, format!("{own}; {cause}")),
            Ok(_) => error!(System, "cannot {step} with the other ranks: {cause}"),
        })?;
        if messages.len() != self.world_size {
            let problem = format!("{} messages, not {}", messages.len(), self.world_size);
            return Err(bad_message(self.rank, problem));
        }
        let decoded = messages.iter().enumerate().map(|(rank, message)| {
            let result: Result<Result<T, String>, _> = serde_json::from_slice(message);
            result.map_err(|problem| bad_message(rank, problem))
        });
        let results = decoded.collect::<Result<Vec<_>>>()?;
        let results = results.into_iter().enumerate();
        results.map(|(rank, result)| result.map_err(|cause| failed(rank, cause))).collect()
    }
}

impl Ranks<'static> {
    /// Ranks that are threads of one process. A rank that is dropped has exited: the others stop
    /// waiting for it.
    pub fn threads(world_size: usize) -> Vec<Ranks<'static>> {
        let mut senders: Vec<Vec<Sender<Vec<u8>>>> = vec![Vec::new(); world_size];
        let mut receivers: Vec<Vec<Receiver<Vec<u8>>>> = Vec::new();
        for _ in 0..world_size {
            let (to_it, from_all) = senders.iter().map(|_| channel()).unzip::<_, _, Vec<_>, _>();
            receivers.push(from_all);
            for (senders, sender) in senders.iter_mut().zip(to_it) {
                senders.push(sender);
            }
        }
        let ranks = senders.into_iter().zip(receivers).enumerate();
        let connected = ranks.map(|(rank, (to, from))| {
            Ranks::new(rank, world_size, move |mine| {
                for receiver in &to {
                    let _ = receiver.send(mine.to_vec()); // it may have exited
                }
                let received = from.iter().enumerate().map(|(rank, from)| {
                    let exited = |_| Cause::from(format!("rank {rank} has exited"));
                    from.recv().map_err(exited)
                });
                received.collect()
            })
        });
        connected.collect()
    }
}

/// The error for a message of `rank` that is not one of this protocol.
pub(super) fn bad_message(rank: usize, problem: impl fmt::Display) -> Error {
    error!(
        Invalid,
        "rank {rank} sent an invalid message ({problem}); run the same version on all ranks"
    )
}

impl fmt::Debug for Ranks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ranks(rank {} of {})", self.rank, self.world_size)
    }
}
