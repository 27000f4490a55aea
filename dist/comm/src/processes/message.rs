//! The messages between processes, as they are on the wire.

use std::net::SocketAddr;
use std::time::Duration;

use meshgrad_collectives::{
    CallSite, Collective, CommError, Counts, Fingerprint, Reduction, Request, SourceLine,
};
use meshgrad_mesh::Group;
use meshgrad_runtime::DType;
use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_128;

use super::handshake::Run;
use crate::members::{Key, Members};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) enum Message {
    // From a rank to the coordinator.
    /// This rank is ready. If data is sent over TCP, it accepts connections of other ranks here.
    Join { listener: Option<SocketAddr> },
    /// The payload is this rank's part of an exchange.
    Gather { number: u64 },
    /// This rank leaves. `sent` is the number of frames that it has sent to each rank, `failure`
    /// the rank whose failure ended the world for this rank, and the reason.
    Leave { sent: Vec<u64>, failure: Option<(usize, String)> },

    /// A collective that this rank waits in has reached its time limit.
    Expired { key: CallKey, limit: Duration, grace: Duration, is_control: bool },
    /// A communicator has to fail.
    Failed { communicator: GroupId, error: CommError },
    /// The payload is the answer to an inquiry, which may be longer than a message: an [`Answer`].
    Answer { number: u64 },

    // From the coordinator to a rank.
    /// The rank may not join.
    Refused { reason: String },
    /// These ranks have not joined.
    Waiting { missing: Vec<usize> },
    /// The world cannot start.
    Incomplete { reason: String },
    /// All ranks have joined. Has the addresses where they accept connections, if data is sent over
    /// TCP.
    Members { run: Run, listeners: Vec<SocketAddr> },
    /// The payload is the parts of all ranks, of these lengths.
    Gathered { number: u64, lengths: Vec<usize> },
    /// A rank left. It has sent `sent` frames to the receiver of this message.
    Left { rank: usize, sent: u64 },
    /// A rank failed, or its process ended.
    Died { rank: usize, reason: String },
    /// Which collectives has the rank started? Those of `late` may not complete any more.
    Inquiry { number: u64, late: Vec<CallKey> },
    /// Communicators failed.
    Verdict { communicators: Vec<GroupId>, error: CommError },

    // From a rank to another one.
    /// The payload is what the sender contributes for the receiver in a round of a collective.
    Part { key: CallKey, round: usize, call: WireCall },
}

/// What a rank has started.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Answer {
    /// The collectives that are not complete.
    pub(super) calls: Vec<StartedCall>,
    /// The communicators that the rank has.
    pub(super) communicators: Vec<GroupId>,
    /// The number of collectives that it has started in each, by the members that take part.
    pub(super) counts: Vec<(GroupId, Members, u64)>,
}

impl Answer {
    /// Whether the rank has started a collective, which may be complete.
    pub(super) fn has_started(&self, key: &CallKey) -> bool {
        let is_it =
            |count: &&(GroupId, Members, u64)| (count.0, count.1) == (key.group, key.key.between);
        let count = self.counts.iter().find(is_it);
        count.is_some_and(|(_, _, started)| key.key.number < *started)
    }
}

/// A collective that a rank has started and that is not complete.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StartedCall {
    pub(super) key: CallKey,
    pub(super) group: Group,
    pub(super) call: CallSite,
    /// Whether the rank waits for it.
    pub(super) is_waiting: bool,
    /// The ranks whose part has not arrived.
    pub(super) missing: Vec<usize>,
}

/// A digest of a communicator's group and generation, equal on all members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct GroupId(u64, u64);

impl GroupId {
    pub(super) fn of(group: &Group, generation: u64) -> GroupId {
        let mut hash = XxHash3_128::new();
        let mut put = |bytes: &[u8]| {
            hash.write(&(bytes.len() as u64).to_le_bytes());
            hash.write(bytes);
        };
        for rank in group.ranks() {
            put(&(*rank as u64).to_le_bytes());
        }
        put(group.channel().to_string().as_bytes());
        for (option, value) in group.options().non_default() {
            put(option.as_bytes());
            put(value.as_bytes());
        }
        put(&generation.to_le_bytes());
        let digest = hash.finish_128();
        GroupId((digest >> 64) as u64, digest as u64)
    }
}

/// Identifies a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CallKey {
    pub(super) group: GroupId,
    pub(super) key: Key,
}

/// A rank's call of a collective.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WireCall {
    collective: String,
    dtype: Option<String>,
    counts: WireCounts,
    reduction: Option<String>,
    root: Option<usize>,
    at: SourceLine,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum WireCounts {
    Even(usize),
    Ragged(Vec<usize>),
    Pairwise { send: Vec<usize>, recv: Vec<usize> },
}

impl WireCall {
    pub(super) fn new(request: &Request) -> WireCall {
        let call = &request.fingerprint;
        WireCall {
            collective: call.collective.name().to_owned(),
            dtype: call.dtype.map(|dtype| dtype.name().to_owned()),
            counts: match &call.counts {
                Counts::Even(count) => WireCounts::Even(*count),
                Counts::Ragged(counts) => WireCounts::Ragged(counts.to_vec()),
                Counts::Pairwise { send, recv } => {
                    WireCounts::Pairwise { send: send.to_vec(), recv: recv.to_vec() }
                }
            },
            reduction: call.reduction.map(|reduction| reduction.to_string()),
            root: call.root,
            at: request.caller.into(),
        }
    }

    /// The call; `None` if a name is unknown or there are not `size` counts.
    pub(super) fn read(self, size: usize) -> Option<RemoteCall> {
        let named = |name: &str| Collective::ALL.into_iter().find(|it| it.name() == name);
        let reduction = |name: &str| Reduction::ALL.into_iter().find(|it| it.to_string() == name);
        let listed = |counts: Vec<usize>| (counts.len() == size).then(|| counts.into());
        let fingerprint = Fingerprint {
            collective: named(&self.collective)?,
            dtype: match self.dtype {
                None => None,
                Some(name) => Some(DType::from_name(&name)?),
            },
            counts: match self.counts {
                WireCounts::Even(count) => Counts::Even(count),
                WireCounts::Ragged(counts) => Counts::Ragged(listed(counts)?),
                WireCounts::Pairwise { send, recv } => {
                    Counts::Pairwise { send: listed(send)?, recv: listed(recv)? }
                }
            },
            reduction: match self.reduction {
                None => None,
                Some(name) => Some(reduction(&name)?),
            },
            root: self.root,
        };
        Some(RemoteCall { fingerprint, at: self.at })
    }
}

/// A call of another process.
#[derive(Clone, Debug)]
pub(super) struct RemoteCall {
    pub(super) fingerprint: Fingerprint,
    pub(super) at: SourceLine,
}

impl RemoteCall {
    pub(super) fn site(&self, rank: usize, number: u64) -> CallSite {
        CallSite { rank, call: self.fingerprint.to_string(), number, at: self.at.clone() }
    }
}
