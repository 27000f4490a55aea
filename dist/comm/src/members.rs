//! Which members take part in a collective, and which collective of the communicator it is.

use meshgrad_collectives::Peer;
use meshgrad_error::{Error, Result, bail, error};
use meshgrad_mesh::Group;
use serde::{Deserialize, Serialize};

/// Identifies a collective in its communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Key {
    pub(crate) between: Members,
    pub(crate) number: u64,
}

/// The members that take part, by their indices in the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Members {
    All,
    /// Sender and receiver.
    Two(usize, usize),
}

impl Key {
    /// The collective that member `index` calls.
    pub(crate) fn of(index: usize, peer: Option<Peer>, number: u64) -> Key {
        let between = Members::of(index, peer);
        Key { between, number }
    }
}

impl Members {
    /// The members of a call of member `index`.
    pub(crate) fn of(index: usize, peer: Option<Peer>) -> Members {
        match peer {
            None => Members::All,
            Some(Peer::To(receiver)) => Members::Two(index, receiver),
            Some(Peer::From(sender)) => Members::Two(sender, index),
        }
    }

    /// The indices in a group of `size` ranks, in the order of places.
    pub(crate) fn indices(self, size: usize) -> Vec<usize> {
        match self {
            Members::All => (0..size).collect(),
            Members::Two(sender, receiver) => vec![sender, receiver],
        }
    }

    /// The ranks, in the order of places.
    pub(crate) fn ranks(self, group: &Group) -> Vec<usize> {
        let ranks = group.ranks();
        match self {
            Members::All => ranks.to_vec(),
            Members::Two(sender, receiver) => vec![ranks[sender], ranks[receiver]],
        }
    }
}

/// The index of `rank` in a group of its world of `world` ranks.
pub(crate) fn index_in(group: &Group, rank: usize, world: usize) -> Result<usize> {
    let index = group.index_of(rank).ok_or_else(|| not_member(rank, group))?;
    if let Some(rank) = group.ranks().iter().find(|rank| **rank >= world) {
        bail!(
            Invalid,
            "{group} has rank {rank}, but the world has {world} ranks; start more ranks"
        );
    }
    Ok(index)
}

pub(crate) fn not_member(rank: usize, group: &Group) -> Error {
    error!(
        Invalid,
        "rank {rank} is not a member of {group}; request the communicator on members only"
    )
}

/// The place of member `index` in a collective: its index, or 0 for a sender and 1 for a receiver.
pub(crate) fn place(index: usize, peer: Option<Peer>) -> usize {
    match peer {
        None => index,
        Some(Peer::To(_)) => 0,
        Some(Peer::From(_)) => 1,
    }
}
