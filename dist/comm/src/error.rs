//! Errors of collectives. [`Error::details`](meshgrad_runtime::Error::details) returns them.

use std::fmt;
use std::time::Duration;

use meshgrad_mesh::Group;
use meshgrad_runtime::{DType, Error, ErrorKind};
use serde::{Deserialize, Serialize};

use crate::source_line::SourceLine;
use crate::ticket::{Collective, Reduction, Ticket};

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
    pub(crate) fn new(rank: usize, ticket: &Ticket) -> CallSite {
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

/// The last call that a rank started before it failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastCall {
    /// The group.
    pub group: Group,
    /// The call.
    pub call: CallSite,
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

/// An error of a collective or of its arguments. Errors that ranks of several processes share can
/// be serialized.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum CommError {
    /// Members started different collectives under one number.
    #[error(
        "collective {} of {group} differs between ranks: {first}, but {second}; all members must \
         start the same collectives in the same order, with equal dtype, counts, reduction and \
         root", first.number
    )]
    Mismatch {
        /// The group.
        group: Group,
        /// The call that arrived first.
        first: CallSite,
        /// A call that differs from it.
        second: CallSite,
    },

    /// Two members disagree on the elements that one sends to the other.
    #[error(
        "collective {} of {group}: {sender} and sends {sent} elements to rank {}, but {receiver} \
         and expects {expected}; both ranks must pass the same count", sender.number,
         receiver.rank
    )]
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
    #[error(
        "collective {} of {group} timed out after {waited:?}: {call}, but {}", call.number,
        not_started(.missing)
    )]
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
    #[error(
        "deadlock: {}; start these collectives in the same order on all ranks, or start all of them \
         before waiting for any", waits(.cycle)
    )]
    OrderInversion {
        /// The smallest cycle: each rank waits for the rank of the next step, and the last for the
        /// first.
        cycle: Vec<Wait>,
    },

    /// A member started a collective after the time limit of another had passed.
    #[error(
        "collective {} of {group}: {late}, {after:?} after {first}; the time limit is {limit:?}: \
         divide the work more evenly, or raise the group option `timeout`", first.number
    )]
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
    #[error(
        "collective {} of {group}: {call}, but {} did not create this communicator; request the \
         group on all its members, with the same order, channel and options", call.number,
         ranks(.missing)
    )]
    BootstrapStuck {
        /// The group.
        group: Group,
        /// The call that waited.
        call: CallSite,
        /// The ranks without the communicator.
        missing: Vec<usize>,
    },

    /// A member returned from its main function without starting a collective.
    #[error(
        "collective {} of {group}: {call}, but {} returned without starting it; start it on all \
         members", call.number, ranks(.missing)
    )]
    Returned {
        /// The group.
        group: Group,
        /// The call that waited.
        call: CallSite,
        /// The ranks that returned.
        missing: Vec<usize>,
    },

    /// Another rank of the world failed.
    #[error("rank {rank} failed{}, so all ranks stop: {reason}", after(.last))]
    #[serde(skip)]
    RankFailed {
        /// The rank.
        rank: usize,
        /// Its error or panic message.
        reason: String,
        /// Its last call, if it is known.
        last: Option<LastCall>,
    },

    /// The process of a rank ended before it started a collective.
    #[error("collective {} of {group}: {call}, but rank {rank} died: {reason}", call.number)]
    #[serde(skip)]
    Died {
        /// The group.
        group: Group,
        /// The call that waited.
        call: CallSite,
        /// The rank.
        rank: usize,
        /// What is known about its end.
        reason: String,
    },

    /// This rank has left its world.
    #[error("rank {rank} has left its world; keep the world until its last collective is done")]
    #[serde(skip)]
    Left {
        /// The rank.
        rank: usize,
    },

    /// The thread that performed a collective panicked.
    #[error("the thread that performed collective {number} of {group} panicked")]
    Interrupted {
        /// The group.
        group: Group,
        /// The number of the collective.
        number: u64,
    },

    /// A member sent a different number of bytes than its call says.
    #[error(
        "collective {number} of {group}: rank {rank} sent {bytes} bytes instead of {expected}; \
         use one version of meshgrad on all ranks"
    )]
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

    /// A rank is not a member of a group.
    #[error("rank {rank} is not a member of {group}; request the communicator on members only")]
    #[serde(skip)]
    NotMember {
        /// The rank.
        rank: usize,
        /// The group.
        group: Group,
    },

    /// A rank that the world does not have.
    #[error("rank {rank} is not in a world of {world} ranks; pass a rank below {world}")]
    #[serde(skip)]
    NoRank {
        /// The rank.
        rank: usize,
        /// The size of the world.
        world: usize,
    },

    /// Two logs of one rank are checked together.
    #[error("there are two logs of rank {rank}; pass one log per rank")]
    #[serde(skip)]
    DuplicateLog {
        /// The rank.
        rank: usize,
    },

    /// A group with ranks outside the world.
    #[error("{group} has rank {rank}, but the world has {world} ranks; start more ranks")]
    #[serde(skip)]
    OutsideWorld {
        /// The group.
        group: Group,
        /// The rank.
        rank: usize,
        /// The size of the world.
        world: usize,
    },

    /// A communicator of one rank could not be created.
    #[error("the communicator could not be created: {reason}")]
    #[serde(skip)]
    Start {
        /// The reason.
        reason: String,
    },

    /// An index that is not in the group.
    #[error(
        "{collective}: {role} {index} is not an index in a group of {size} ranks; pass an \
         index below {size}"
    )]
    #[serde(skip)]
    Index {
        /// The collective.
        collective: Collective,
        /// What the index is: `root` or `peer`.
        #[serde(skip)] // the whole variant is, but the derive looks for lifetimes
        role: &'static str,
        /// The index.
        index: usize,
        /// The size of the group.
        size: usize,
    },

    /// An invalid shape or row count.
    #[error("{collective}: {problem}")]
    #[serde(skip)]
    Argument {
        /// The collective.
        collective: Collective,
        /// What is wrong with which argument, and the remedy if there is one.
        problem: String,
    },

    /// A reduction that is not defined for a dtype.
    #[error("{collective}: {reduction} is not defined for {dtype}; cast the tensor first")]
    #[serde(skip)]
    Reduction {
        /// The collective.
        collective: Collective,
        /// The reduction.
        reduction: Reduction,
        /// The dtype.
        dtype: DType,
    },

    /// A dtype that the transport cannot move.
    #[error("{dtype} is not supported by this transport; cast the tensor first")]
    #[serde(skip)]
    DType {
        /// The dtype.
        dtype: DType,
    },

    /// A transport returned no result although it was given a tensor for it.
    #[error("{collective}: the transport returned no result; this is a bug in the transport")]
    #[serde(skip)]
    NoResult {
        /// The collective.
        collective: Collective,
    },

    /// A wait for a collective whose fusing scope has not ended or has failed.
    #[error(
        "{collective} has not started: wait for it after the `fuse` closure has returned without an \
         error"
    )]
    #[serde(skip)]
    NotStarted {
        /// The collective.
        collective: Collective,
    },

    /// A value that is equal on the members of one group is used for another group.
    #[error(
        "the value is equal on {group}, but may differ on {other}; reduce or broadcast it over \
         that group"
    )]
    #[serde(skip)]
    NotUniform {
        /// The group of the value.
        group: Group,
        /// The other group.
        other: Group,
    },

    /// A tensor is not on the communicator's device.
    #[error(
        "{collective}: the tensor is on {actual}, but the communicator uses another device, \
         {expected}; copy the tensor there first (ops::to_device)"
    )]
    #[serde(skip)]
    Device {
        /// The collective.
        collective: Collective,
        /// The tensor's device.
        actual: String,
        /// The communicator's device.
        expected: String,
    },
}

impl CommError {
    /// The verdict, if this error is one.
    pub fn verdict(&self) -> Option<Verdict> {
        match self {
            CommError::Timeout { .. } => Some(Verdict::MissingRank),
            CommError::Mismatch { .. } | CommError::PairCounts { .. } => Some(Verdict::Mismatch),
            CommError::OrderInversion { .. } => Some(Verdict::OrderInversion),
            CommError::Straggler { .. } => Some(Verdict::Straggler),
            CommError::Returned { .. } | CommError::RankFailed { .. } | CommError::Died { .. } => {
                Some(Verdict::DeadPeer)
            }
            CommError::BootstrapStuck { .. } => Some(Verdict::BootstrapStuck),
            _ => None,
        }
    }
}

impl From<CommError> for Error {
    fn from(error: CommError) -> Error {
        let kind = match error.verdict() {
            None => ErrorKind::Invalid,
            Some(Verdict::DeadPeer) => ErrorKind::PeerFailed,
            Some(Verdict::Mismatch) => ErrorKind::Mismatch,
            Some(_) => ErrorKind::Stuck,
        };
        Error::with_details(kind, error)
    }
}

/// `rank 3` or `ranks [1, 2]`.
pub(crate) fn ranks(ranks: &[usize]) -> String {
    match ranks {
        [one] => format!("rank {one}"),
        several => format!("ranks {several:?}"),
    }
}

fn not_started(missing: &[usize]) -> String {
    match missing {
        [] => "its transfers are not complete, although all members have started it; raise the \
               group option `timeout`"
            .to_owned(),
        missing => format!(
            "{} did not start it; find where it waits instead, or raise the group option `timeout`",
            ranks(missing)
        ),
    }
}

fn waits(cycle: &[Wait]) -> String {
    let waits: Vec<String> = cycle.iter().map(Wait::to_string).collect();
    waits.join(", ")
}

fn after(last: &Option<LastCall>) -> String {
    last.as_ref().map_or_else(String::new, |last| {
        let CallSite { call, number, at, .. } = &last.call;
        format!(" after {call} at {at} (collective {number} of {})", last.group)
    })
}
