//! Checks that all ranks need the same communicators before any is created.
//!
//! Each rank has only its own groups, so correct plans differ between ranks. The condition is: *if
//! one member needs a group, all members need it*. For a group with digest h and n members, each
//! member contributes h, except the first, which contributes -(n - 1) h. If all members need the
//! group, these contributions sum to zero. So a rank sends only the sum of its contributions,
//! whatever the number of groups. If a single group lacks members, the sum over all ranks is never
//! zero (h is odd, and n - 1 < 2^128). If several groups do, it is zero with probability 2^-127.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use meshgrad_error::{Error, Result, ensure, error};
use meshgrad_mesh::{Fingerprint, check_agreement};
use serde::{Deserialize, Serialize};
use twox_hash::{XxHash3_64, XxHash3_128};

use super::plan::{AgreedPlan, GroupPlan, PlannedGroup};
use super::text;

/// Exchanges bytes between all ranks: the control plane, before any communicator exists.
pub trait Exchange {
    /// Sends `mine` to all ranks and returns the messages of ranks 0, 1, ...
    ///
    /// # Errors
    /// When a rank is unreachable or a timeout expires.
    fn all_gather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>>;
}

/// A digest of a rank's plan: 24 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlanDigest {
    /// The rank's contribution to the sum.
    balance: u128,
    /// A digest of the mesh, or 0.
    mesh: u64,
}

impl PlanDigest {
    fn of(plan: &GroupPlan) -> PlanDigest {
        let parts = plan.needs.iter().map(|need| part(need, plan.rank));
        PlanDigest {
            balance: parts.fold(0, u128::wrapping_add),
            mesh: plan.mesh.as_ref().map_or(0, mesh_digest),
        }
    }

    /// Whether the plans with these digests agree.
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

/// A digest of a group and its generation, equal on every machine.
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

impl GroupPlan {
    /// The digest that ranks compare. Its size does not depend on the plan.
    pub fn digest(&self) -> PlanDigest {
        PlanDigest::of(self)
    }

    /// Compares the plans of all ranks; each rank must call this. Ranks exchange their
    /// [digests](GroupPlan::digest), and the whole plans only if the digests disagree. All ranks return
    /// the same error.
    ///
    /// Blocks until all ranks have called this. Finish earlier creations first, or
    /// [poll](super::Registry::poll) them from another thread: a rank that blocks here while
    /// another waits for it in an earlier creation deadlocks.
    ///
    /// # Errors
    /// When some members of a group need its communicator and others do not, a group has a rank
    /// outside the world, meshes differ, or the exchange fails.
    pub fn agree(self, exchange: &mut impl Exchange) -> Result<AgreedPlan> {
        let plans = exchanged(&self, exchange).map_err(|error| {
            error.context(format!("rank {} could not compare its plan with other ranks", self.rank))
        })?;
        match plans {
            None => Ok(AgreedPlan(self)),
            Some(plans) => Err(difference(plans)),
        }
    }

    /// Compares the plans of ranks 0, 1, ... within one process.
    ///
    /// # Errors
    /// As [`GroupPlan::agree`].
    pub fn agree_all(plans: Vec<GroupPlan>) -> Result<Vec<AgreedPlan>> {
        let digests: Vec<PlanDigest> = plans.iter().map(GroupPlan::digest).collect();
        match PlanDigest::agree(&digests) {
            true => Ok(plans.into_iter().map(AgreedPlan).collect()),
            false => Err(difference(plans.iter().map(PlanMessage::of).collect())),
        }
    }
}

/// The plans of all ranks, if their digests disagree.
fn exchanged(plan: &GroupPlan, exchange: &mut impl Exchange) -> Result<Option<Vec<PlanMessage>>> {
    let mut gather = |mine: &[u8]| {
        let all = exchange.all_gather(mine)?;
        ensure!(
            all.get(plan.rank).map(Vec::as_slice) == Some(mine),
            Invalid,
            "the exchange returned {} messages, and this rank's own message is not at index {}",
            all.len(),
            plan.rank
        );
        Ok(all)
    };

    let digests = gather(&plan.digest().to_bytes())?;
    let read = |(rank, bytes): (usize, &Vec<u8>)| {
        let wrong = || error!(Malformed, "rank {rank} sent {} bytes, expected 24", bytes.len());
        PlanDigest::from_bytes(bytes).ok_or_else(wrong)
    };
    let digests: Result<Vec<PlanDigest>> = digests.iter().enumerate().map(read).collect();
    if PlanDigest::agree(&digests?) {
        return Ok(None);
    }

    let unreadable = |error: serde_json::Error| error!(Malformed, "a plan cannot be read: {error}");
    let mine = serde_json::to_vec(&PlanMessage::of(plan)).map_err(unreadable)?;
    let plans = gather(&mine)?;
    let plans: serde_json::Result<_> =
        plans.iter().map(|bytes| serde_json::from_slice(bytes)).collect();
    plans.map(Some).map_err(unreadable)
}

/// The serialized form of a plan.
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

/// A group and its generation, ordered by size (largest first), ranks, the text of the group, and
/// generation.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct GroupKey {
    size: Reverse<usize>,
    ranks: Vec<usize>,
    /// Ranks, channel and options, for messages.
    group: String,
    generation: u64,
}

impl PlanMessage {
    fn of(plan: &GroupPlan) -> PlanMessage {
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
            mesh: plan.mesh.as_ref().map(|mesh| (mesh.digest, mesh.axes.clone())),
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
            nth => format!("{} (communicator no. {nth})", self.group),
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

const REQUEST_ALIKE: &str = "All members of a group must request the same ranks in the same \
    order, with the same channel and options";
const DROP_ALIKE: &str =
    "If one member drops its last handle and requests the group again, all members must";

/// The ranks that need each group, with their requesters.
type Holders<'a> = BTreeMap<&'a GroupKey, BTreeMap<usize, &'a [String]>>;

/// The first difference between plans: the mesh, or the largest group that some of its members
/// lack; ties are broken by ranks, then by text.
fn difference(plans: Vec<PlanMessage>) -> Error {
    let meshes: Vec<Fingerprint> = plans.iter().map(PlanMessage::fingerprint).collect();
    if let Err(error) = check_agreement(&meshes) {
        return error.context("no communicator was created");
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
        None => error!(
            Invalid,
            "the plans of {} ranks are equal but their digests differ: run the same version on all \
             ranks",
            plans.len()
        ),
    }
}

/// The error for a group that some members lack. `incomplete` holds all such groups, including
/// those that members requested instead.
fn lacking(key: &GroupKey, incomplete: &Holders<'_>, world: usize) -> Error {
    let holders = &incomplete[key];
    let mut requesters: Vec<String> = holders.values().copied().flatten().cloned().collect();
    requesters.sort_unstable();
    requesters.dedup();
    let requesters = text::names(&requesters);

    let is_lacking = |rank: &usize| !holders.contains_key(rank);
    let mut lacking: Vec<usize> = key.ranks.iter().copied().filter(is_lacking).collect();
    lacking.sort_unstable();
    let outside: Vec<usize> = lacking.iter().copied().filter(|r| *r >= world).collect();
    if !outside.is_empty() {
        return error!(
            Invalid,
            "{} of {} (for {requesters}) {} outside the world of {world} ranks: start more ranks, \
             or request a group within the world",
            text::ranks(&outside),
            key.text(),
            text::verb(&outside, "is", "are")
        );
    }

    let is_instead = |(other, holders): &(&&GroupKey, &BTreeMap<usize, &[String]>)| {
        other.has_members_of(key) && holders.contains_key(&lacking[0])
    };
    let instead = incomplete.iter().find(is_instead);
    let instead = instead.map(|(other, _)| *other);
    let help = match instead.is_some_and(|other| other.group == key.group) {
        true => DROP_ALIKE,
        false => REQUEST_ALIKE,
    };
    let instead = match (lacking.as_slice(), instead) {
        ([_], Some(need)) => format!("; it needs {} instead", need.text()),
        ([first, ..], Some(need)) => format!("; rank {first} needs {} instead", need.text()),
        _ => String::new(),
    };
    let holders: Vec<usize> = holders.keys().copied().collect();
    error!(
        Invalid,
        "no communicator was created because the plans differ: {} {} {} (for {requesters}), but {} \
         {} not{instead}. {help}",
        text::ranks(&holders),
        text::verb(&holders, "needs", "need"),
        key.text(),
        text::ranks(&lacking),
        text::verb(&lacking, "does", "do")
    )
}
