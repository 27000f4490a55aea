//! What errors of collectives have as [details](Error::details).

use std::fmt;
use std::time::Duration;

use meshgrad_error::{Error, FailedRank, Kind};
use meshgrad_mesh::Group;
use serde::{Deserialize, Serialize};

use crate::source_line::SourceLine;
use crate::ticket::Ticket;

/// One rank's call of a collective, for messages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallSite {
    /// The rank in the world.
    pub rank: usize,
    /// The call, such as `all_reduce(f32 x 12, sum)`.
    pub call: String,
    /// The number of the collective in its communicator.
    pub number: u64,
    /// The source line.
    pub at: SourceLine,
}

impl CallSite {
    /// The call with this ticket.
    pub fn new(rank: usize, ticket: &Ticket) -> CallSite {
        CallSite {
            rank,
            call: ticket.request.fingerprint.to_string(),
            number: ticket.number,
            at: ticket.request.caller.into(),
        }
    }
}

impl fmt::Display for CallSite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} called {} at {}", self.rank, self.call, self.at)
    }
}

/// One step of an [order inversion](CommError::OrderInversion): a rank waits for another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wait {
    /// The group.
    pub group: Group,
    /// The call that waits.
    pub call: CallSite,
    /// The rank that it waits for.
    pub waits_for: usize,
}

/// `rank 0 waits in collective 3 of [0, 1] for rank 1 (all_reduce(f32 x 4, sum) at src/a.rs:1:2)`
impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CallSite { rank, call, number, at } = &self.call;
        let (group, other) = (&self.group, self.waits_for);
        write!(
            f,
            "rank {rank} waits in collective {number} of {group} for rank {other} ({call} at {at})"
        )
    }
}

/// Why a collective cannot complete: the kind of an error that all waiting ranks share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Verdict {
    /// A rank did not start the collective, and does not wait in another one.
    MissingRank,
    /// Ranks started different collectives.
    Mismatch,
    /// Ranks wait for each other in different collectives.
    OrderInversion,
    /// A rank started the collective after the time limit.
    Straggler,
    /// A rank returned, failed or panicked.
    DeadPeer,
    /// A rank did not create the communicator.
    BootstrapStuck,
}

impl Verdict {
    /// The verdict, if an error of a collective is one.
    pub fn of(error: &Error) -> Option<Verdict> {
        if error.details::<FailedRank>().is_some() {
            return Some(Verdict::DeadPeer);
        }
        match error.details::<CommError>()? {
            CommError::Timeout { .. } => Some(Verdict::MissingRank),
            CommError::Mismatch { .. } | CommError::PairCounts { .. } => Some(Verdict::Mismatch),
            CommError::OrderInversion { .. } => Some(Verdict::OrderInversion),
            CommError::Straggler { .. } => Some(Verdict::Straggler),
            CommError::Returned { .. } => Some(Verdict::DeadPeer),
            CommError::BootstrapStuck { .. } => Some(Verdict::BootstrapStuck),
            CommError::Interrupted { .. } | CommError::Corrupt { .. } => None,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verdict::MissingRank => "missing rank",
            Verdict::Mismatch => "mismatch",
            Verdict::OrderInversion => "order inversion",
            Verdict::Straggler => "straggler",
            Verdict::DeadPeer => "dead peer",
            Verdict::BootstrapStuck => "bootstrap stuck",
        })
    }
}

/// Why a collective cannot complete, as details of an error that all waiting ranks share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum CommError {
    /// Members started different collectives under one number.
    Mismatch {
        /// The group.
        group: Group,
        /// The call that arrived first.
        first: CallSite,
        /// A call that differs from it.
        second: CallSite,
    },

    /// Two members disagree on the elements that one sends to the other.
    PairCounts {
        /// The group.
        group: Group,
        /// The sender's call.
        sender: CallSite,
        /// The receiver's call.
        receiver: CallSite,
        /// The elements that the sender sends.
        sent: usize,
        /// The elements that the receiver expects.
        expected: usize,
    },

    /// Some members did not start a collective in time.
    Timeout {
        /// The group.
        group: Group,
        /// The call that waited.
        call: CallSite,
        /// The ranks that did not start it. Empty if all did, but transfers are not complete.
        missing: Vec<usize>,
        /// The time limit.
        waited: Duration,
    },

    /// Ranks wait for each other, each in another collective.
    OrderInversion {
        /// The smallest cycle: each rank waits for the rank of the next step, and the last for the
        /// first.
        cycle: Vec<Wait>,
    },

    /// A member started a collective after the time limit of another had passed.
    Straggler {
        /// The group.
        group: Group,
        /// A call that waited.
        first: CallSite,
        /// The call of the last member.
        late: CallSite,
        /// The time between the first call and the last.
        after: Duration,
        /// The time limit.
        limit: Duration,
    },

    /// Some members never created the communicator that others wait in.
    BootstrapStuck {
        /// The group.
        group: Group,
        /// The call that waited.
        call: CallSite,
        /// The ranks without the communicator.
        missing: Vec<usize>,
    },

    /// A member returned from its main function without starting a collective.
    Returned {
        /// The group.
        group: Group,
        /// The call that waited.
        call: CallSite,
        /// The ranks that returned.
        missing: Vec<usize>,
    },

    /// The thread that performed a collective panicked.
    Interrupted {
        /// The group.
        group: Group,
        /// The number of the collective.
        number: u64,
    },

    /// A member sent a different number of bytes than its call says.
    Corrupt {
        /// The group.
        group: Group,
        /// The number of the collective.
        number: u64,
        /// The sender.
        rank: usize,
        /// The bytes that it sent.
        bytes: usize,
        /// The bytes that were expected.
        expected: usize,
    },
}

impl fmt::Display for CommError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CommError::Mismatch { group, first, second } => write!(
                f,
                "collective {} of {group} differs between ranks: {first}, but {second}; all \
                 members must start the same collectives in the same order, with equal dtype, \
                 counts, reduction and root",
                first.number
            ),
            CommError::PairCounts { group, sender, receiver, sent, expected } => write!(
                f,
                "collective {} of {group}: {sender} and sends {sent} elements to rank {}, but \
                 {receiver} and expects {expected}; both ranks must pass the same count",
                sender.number, receiver.rank
            ),
            CommError::Timeout { group, call, missing, waited } => {
                let number = call.number;
                write!(
                    f,
                    "collective {number} of {group} timed out after {waited:?}: {call}, but "
                )?;
                match missing[..] {
                    [] => f.write_str(
                        "its transfers are not complete, although all members have started it; \
                         raise the group option `timeout`",
                    ),
                    _ => write!(
                        f,
                        "{} did not start it; find where it waits instead, or raise the group \
                         option `timeout`",
                        ranks(missing)
                    ),
                }
            }
            CommError::OrderInversion { cycle } => {
                let waits: Vec<String> = cycle.iter().map(Wait::to_string).collect();
                write!(
                    f,
                    "deadlock: {}; start these collectives in the same order on all ranks, or \
                     start all of them before waiting for any",
                    waits.join(", ")
                )
            }
            CommError::Straggler { group, first, late, after, limit } => write!(
                f,
                "collective {} of {group}: {late}, {after:?} after {first}; the time limit is \
                 {limit:?}: divide the work more evenly, or raise the group option `timeout`",
                first.number
            ),
            CommError::BootstrapStuck { group, call, missing } => write!(
                f,
                "collective {} of {group}: {call}, but {} did not create this communicator; \
                 request the group on all its members, with the same order, channel and options",
                call.number,
                ranks(missing)
            ),
            CommError::Returned { group, call, missing } => write!(
                f,
                "collective {} of {group}: {call}, but {} returned without starting it; start it \
                 on all members",
                call.number,
                ranks(missing)
            ),
            CommError::Interrupted { group, number } => {
                write!(f, "the thread that performed collective {number} of {group} panicked")
            }
            CommError::Corrupt { group, number, rank, bytes, expected } => write!(
                f,
                "collective {number} of {group}: rank {rank} sent {bytes} bytes instead of \
                 {expected}; use one version of meshgrad on all ranks"
            ),
        }
    }
}

impl From<CommError> for Error {
    fn from(error: CommError) -> Error {
        let kind = match error {
            CommError::Mismatch { .. }
            | CommError::PairCounts { .. }
            | CommError::Corrupt { .. } => Kind::Mismatch,
            CommError::Returned { .. } | CommError::Interrupted { .. } => Kind::PeerFailed,
            _ => Kind::Stuck,
        };
        Error::with_details(kind, error)
    }
}

/// `rank 3` or `ranks [1, 2]`.
fn ranks(ranks: &[usize]) -> String {
    match ranks {
        [one] => format!("rank {one}"),
        several => format!("ranks {several:?}"),
    }
}
