//! Whether ranks need the same communicators, found out before any is made.
//!
//! Each rank knows its own groups only, so plans are different lists even when all is well. What
//! has to hold is: *a group that one member needs, all members need*. A sum tells. Each member of a
//! group with digest h and n members adds h, but the first, which adds -(n - 1) h: over all ranks
//! that is zero. One number a rank suffices, whatever the world and however many groups. A single
//! group that some members lack never sums to zero (h is odd, and n - 1 < 2^128), and several do so
//! by chance in one of 2^127 cases.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use meshgrad_mesh::{Fingerprint, check_agreement};
use serde::{Deserialize, Serialize};
use twox_hash::{XxHash3_64, XxHash3_128};

use super::error::{RegistryError, Result};
use super::plan::{Plan, PlannedGroup};

/// Carries some bytes between all ranks: the control plane, before there is a communicator.
pub trait Exchange {
    /// What can go wrong; its text goes to people.
    type Error: std::error::Error;

    /// Gives `mine` to all ranks and returns what ranks 0, 1, ... gave, which all ranks get alike.
    ///
    /// # Errors
    /// When a rank cannot be reached, or does not come in time: waiting has an end.
    fn all_gather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Self::Error>;
}

/// What a rank tells of its plan before anything is made: 24 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlanDigest {
    /// Its part of the sum.
    balance: u128,
    /// A digest of its mesh, or 0.
    mesh: u64,
}

impl PlanDigest {
    pub(super) fn of(plan: &Plan) -> PlanDigest {
        let parts = plan.needs.iter().map(|need| part(need, plan.rank));
        PlanDigest {
            balance: parts.fold(0, u128::wrapping_add),
            mesh: plan.mesh.as_ref().map_or(0, mesh_digest),
        }
    }

    /// Whether the digests of all ranks fit.
    pub fn agree(all: &[PlanDigest]) -> bool {
        let balances = all.iter().map(|digest| digest.balance);
        let is_balanced = balances.fold(0, u128::wrapping_add) == 0;
        is_balanced && all.windows(2).all(|pair| pair[0].mesh == pair[1].mesh)
    }

    fn to_bytes(self) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes[..16].copy_from_slice(&self.balance.to_le_bytes());
        bytes[16..].copy_from_slice(&self.mesh.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<PlanDigest> {
        let (balance, mesh) = bytes.split_first_chunk()?;
        Some(PlanDigest {
            balance: u128::from_le_bytes(*balance),
            mesh: u64::from_le_bytes(mesh.try_into().ok()?),
        })
    }
}

fn part(need: &PlannedGroup, rank: usize) -> u128 {
    let digest = digest(need) | 1;
    match need.group.ranks() {
        [first, others @ ..] if *first == rank => {
            digest.wrapping_mul(others.len() as u128).wrapping_neg()
        }
        _ => digest,
    }
}

/// The same on every machine.
fn digest(need: &PlannedGroup) -> u128 {
    let mut hash = XxHash3_128::new();
    let mut put = |bytes: &[u8]| {
        hash.write(&(bytes.len() as u64).to_le_bytes());
        hash.write(bytes);
    };
    for rank in need.group.ranks() {
        put(&(*rank as u64).to_le_bytes());
    }
    put(need.group.channel().to_string().as_bytes());
    for (option, value) in need.group.options().non_default() {
        put(option.as_bytes());
        put(value.as_bytes());
    }
    put(&need.generation.to_le_bytes());
    hash.finish_128()
}

fn mesh_digest(mesh: &Fingerprint) -> u64 {
    let digest = XxHash3_64::oneshot(mesh.axes.as_bytes()) ^ mesh.digest;
    digest.max(1)
}

/// Compares plans that are all at hand.
pub(super) fn among(plans: &[Plan]) -> Result<()> {
    let digests: Vec<PlanDigest> = plans.iter().map(Plan::digest).collect();
    match PlanDigest::agree(&digests) {
        true => Ok(()),
        false => Err(difference(plans.iter().map(PlanMessage::of).collect())),
    }
}

/// Compares a plan with those of other ranks.
pub(super) fn through(plan: &Plan, exchange: &mut impl Exchange) -> Result<()> {
    let failed = |reason: String| RegistryError::Exchange {
        rank: plan.rank,
        reason,
    };
    let mut gather = |mine: &[u8]| {
        let all = exchange
            .all_gather(mine)
            .map_err(|error| failed(error.to_string()))?;
        match all.get(plan.rank).map(Vec::as_slice) == Some(mine) {
            true => Ok(all),
            false => Err(failed(format!(
                "the exchange brought {} messages, and its own is not at its location",
                all.len()
            ))),
        }
    };

    let digests = gather(&plan.digest().to_bytes())?;
    let read = |(rank, bytes): (usize, &Vec<u8>)| {
        let wrong = || failed(format!("rank {rank} said {} bytes of 24", bytes.len()));
        PlanDigest::from_bytes(bytes).ok_or_else(wrong)
    };
    let digests: Result<Vec<PlanDigest>> = digests.iter().enumerate().map(read).collect();
    let digests = digests?;
    if PlanDigest::agree(&digests) {
        return Ok(());
    }

    let unreadable = |error: serde_json::Error| failed(format!("a plan cannot be read: {error}"));
    let mine = serde_json::to_vec(&PlanMessage::of(plan)).map_err(unreadable)?;
    let plans = gather(&mine)?;
    let plans: serde_json::Result<Vec<PlanMessage>> = plans
        .iter()
        .map(|bytes| serde_json::from_slice(bytes))
        .collect();
    Err(difference(plans.map_err(unreadable)?))
}

/// A plan for others to read.
#[derive(Serialize, Deserialize)]
struct PlanMessage {
    mesh: Option<(u64, String)>,
    needs: Vec<GroupMessage>,
}

#[derive(Serialize, Deserialize)]
struct GroupMessage {
    key: GroupKey,
    requesters: Vec<String>,
}

/// In the order of creation.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct GroupKey {
    size: Reverse<usize>,
    ranks: Vec<usize>,
    /// Ranks, channel and options, for people.
    group: String,
    generation: u64,
}

impl PlanMessage {
    fn of(plan: &Plan) -> PlanMessage {
        let spelled = |need: &PlannedGroup| GroupMessage {
            key: GroupKey {
                size: Reverse(need.group.len()),
                ranks: need.group.ranks().to_vec(),
                group: need.group.to_string(),
                generation: need.generation,
            },
            requesters: need.requesters.clone(),
        };
        PlanMessage {
            mesh: plan
                .mesh
                .as_ref()
                .map(|mesh| (mesh.digest, mesh.axes.clone())),
            needs: plan.needs.iter().map(spelled).collect(),
        }
    }

    fn fingerprint(&self) -> Fingerprint {
        let (digest, axes) = self.mesh.clone().unwrap_or((0, "no mesh".to_owned()));
        Fingerprint { digest, axes }
    }
}

impl GroupKey {
    fn text(&self) -> String {
        match self.generation {
            1 => self.group.clone(),
            nth => format!("{} (its communicator no. {nth})", self.group),
        }
    }

    fn has_members_of(&self, other: &GroupKey) -> bool {
        let sorted = |key: &GroupKey| {
            let mut ranks = key.ranks.clone();
            ranks.sort_unstable();
            ranks
        };
        self.size == other.size && sorted(self) == sorted(other)
    }
}

const ASK_ALIKE: &str = "All members of a group have to ask for the same ranks in the same \
    order, with the same channel and options";
const DROP_ALL: &str = "Where one member drops its last handle and asks anew, all have to";

/// Who needs what.
type Holders<'a> = BTreeMap<&'a GroupKey, BTreeMap<usize, &'a [String]>>;

/// What plans that do not fit disagree on: the mesh, or the first group in the order of creation
/// that some of its members lack.
fn difference(plans: Vec<PlanMessage>) -> RegistryError {
    let meshes: Vec<Fingerprint> = plans.iter().map(PlanMessage::fingerprint).collect();
    if let Err(error) = check_agreement(&meshes) {
        return RegistryError::MeshesDiffer(error);
    }

    let mut holders: Holders<'_> = BTreeMap::new();
    for (rank, plan) in plans.iter().enumerate() {
        for need in &plan.needs {
            let of_key = holders.entry(&need.key).or_default();
            of_key.insert(rank, &need.requesters);
        }
    }
    holders.retain(|key, holders| holders.len() < key.ranks.len());
    match holders.keys().next() {
        Some(first) => lacking(first, &holders, plans.len()),
        None => RegistryError::DigestsDiffer { world: plans.len() },
    }
}

/// `incomplete` are all groups that some of their members lack: what those have instead is among
/// them.
fn lacking(key: &GroupKey, incomplete: &Holders<'_>, world: usize) -> RegistryError {
    let holders = &incomplete[key];
    let mut requesters: Vec<String> = holders.values().copied().flatten().cloned().collect();
    requesters.sort_unstable();
    requesters.dedup();

    let is_lacking = |rank: &usize| !holders.contains_key(rank);
    let mut lacking: Vec<usize> = key.ranks.iter().copied().filter(is_lacking).collect();
    lacking.sort_unstable();
    let outside: Vec<usize> = lacking.iter().copied().filter(|r| *r >= world).collect();
    if !outside.is_empty() {
        return RegistryError::OutsideWorld {
            group: key.text(),
            requesters,
            outside,
            world,
        };
    }

    let is_instead = |(other, holders): &(&&GroupKey, &BTreeMap<usize, &[String]>)| {
        other.has_members_of(key) && holders.contains_key(&lacking[0])
    };
    let instead = incomplete.iter().find(is_instead);
    let instead = instead.map(|(other, _)| *other);
    let was_dropped = instead.is_some_and(|other| other.group == key.group);
    RegistryError::PlansDiffer {
        need: key.text(),
        needed_by: holders.keys().copied().collect(),
        requesters,
        missing_from: lacking,
        instead: instead.map(GroupKey::text),
        help: if was_dropped { DROP_ALL } else { ASK_ALIKE },
    }
}
