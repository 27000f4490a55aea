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

use meshgrad_mesh::{Fingerprint, agree};
use serde::{Deserialize, Serialize};
use twox_hash::{XxHash3_64, XxHash3_128};

use super::error::{RegistryError, Result};
use super::plan::{Need, Plan};

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
pub struct Statement {
    /// Its part of the sum.
    balance: u128,
    /// A digest of its mesh, or 0.
    mesh: u64,
}

impl Statement {
    pub(super) fn of(plan: &Plan) -> Statement {
        let parts = plan.needs.iter().map(|need| part(need, plan.rank));
        Statement {
            balance: parts.fold(0, u128::wrapping_add),
            mesh: plan.mesh.as_ref().map_or(0, mesh_digest),
        }
    }

    /// Whether the statements of all ranks fit.
    pub fn fit(all: &[Statement]) -> bool {
        let balances = all.iter().map(|statement| statement.balance);
        let is_balanced = balances.fold(0, u128::wrapping_add) == 0;
        is_balanced && all.windows(2).all(|pair| pair[0].mesh == pair[1].mesh)
    }

    fn to_bytes(self) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes[..16].copy_from_slice(&self.balance.to_le_bytes());
        bytes[16..].copy_from_slice(&self.mesh.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Statement> {
        let (balance, mesh) = bytes.split_first_chunk()?;
        Some(Statement {
            balance: u128::from_le_bytes(*balance),
            mesh: u64::from_le_bytes(mesh.try_into().ok()?),
        })
    }
}

fn part(need: &Need, rank: usize) -> u128 {
    let digest = digest(need) | 1;
    match need.group.ranks() {
        [first, others @ ..] if *first == rank => {
            digest.wrapping_mul(others.len() as u128).wrapping_neg()
        }
        _ => digest,
    }
}

/// The same on every machine.
fn digest(need: &Need) -> u128 {
    let mut hash = XxHash3_128::new();
    let mut put = |bytes: &[u8]| {
        hash.write(&(bytes.len() as u64).to_le_bytes());
        hash.write(bytes);
    };
    for rank in need.group.ranks() {
        put(&(*rank as u64).to_le_bytes());
    }
    put(need.group.lane().to_string().as_bytes());
    for (option, value) in need.group.options().stated() {
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
    let statements: Vec<Statement> = plans.iter().map(Plan::statement).collect();
    match Statement::fit(&statements) {
        true => Ok(()),
        false => Err(difference(plans.iter().map(Spelled::of).collect())),
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
                "the exchange brought {} messages, and its own is not at its place",
                all.len()
            ))),
        }
    };

    let statements = gather(&plan.statement().to_bytes())?;
    let read = |(rank, bytes): (usize, &Vec<u8>)| {
        let wrong = || failed(format!("rank {rank} said {} bytes of 24", bytes.len()));
        Statement::from_bytes(bytes).ok_or_else(wrong)
    };
    let statements: Result<Vec<Statement>> = statements.iter().enumerate().map(read).collect();
    let statements = statements?;
    if Statement::fit(&statements) {
        return Ok(());
    }

    let unreadable = |error: serde_json::Error| failed(format!("a plan cannot be read: {error}"));
    let mine = serde_json::to_vec(&Spelled::of(plan)).map_err(unreadable)?;
    let plans = gather(&mine)?;
    let plans: serde_json::Result<Vec<Spelled>> = plans
        .iter()
        .map(|bytes| serde_json::from_slice(bytes))
        .collect();
    Err(difference(plans.map_err(unreadable)?))
}

/// A plan for others to read.
#[derive(Serialize, Deserialize)]
struct Spelled {
    mesh: Option<(u64, String)>,
    needs: Vec<SpelledNeed>,
}

#[derive(Serialize, Deserialize)]
struct SpelledNeed {
    key: SpelledKey,
    askers: Vec<String>,
}

/// In the order of creation.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct SpelledKey {
    size: Reverse<usize>,
    ranks: Vec<usize>,
    /// Ranks, lane and options, for people.
    group: String,
    generation: u64,
}

impl Spelled {
    fn of(plan: &Plan) -> Spelled {
        let spelled = |need: &Need| SpelledNeed {
            key: SpelledKey {
                size: Reverse(need.group.len()),
                ranks: need.group.ranks().to_vec(),
                group: need.group.to_string(),
                generation: need.generation,
            },
            askers: need.askers.clone(),
        };
        Spelled {
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

impl SpelledKey {
    fn text(&self) -> String {
        match self.generation {
            1 => self.group.clone(),
            nth => format!("{} (its communicator no. {nth})", self.group),
        }
    }

    fn has_members_of(&self, other: &SpelledKey) -> bool {
        let sorted = |key: &SpelledKey| {
            let mut ranks = key.ranks.clone();
            ranks.sort_unstable();
            ranks
        };
        self.size == other.size && sorted(self) == sorted(other)
    }
}

const ASK_ALIKE: &str = "All members of a group have to ask for the same ranks in the same \
    order, with the same lane and options";
const DROP_ALL: &str = "Where one member drops its last handle and asks anew, all have to";

/// Who needs what.
type Holders<'a> = BTreeMap<&'a SpelledKey, BTreeMap<usize, &'a [String]>>;

/// What plans that do not fit disagree on: the mesh, or the first group in the order of creation
/// that some of its members lack.
fn difference(plans: Vec<Spelled>) -> RegistryError {
    let meshes: Vec<Fingerprint> = plans.iter().map(Spelled::fingerprint).collect();
    if let Err(error) = agree(&meshes) {
        return RegistryError::MeshesDiffer(error);
    }

    let mut holders: Holders<'_> = BTreeMap::new();
    for (rank, plan) in plans.iter().enumerate() {
        for need in &plan.needs {
            let of_key = holders.entry(&need.key).or_default();
            of_key.insert(rank, &need.askers);
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
fn lacking(key: &SpelledKey, incomplete: &Holders<'_>, world: usize) -> RegistryError {
    let holders = &incomplete[key];
    let mut askers: Vec<String> = holders.values().copied().flatten().cloned().collect();
    askers.sort_unstable();
    askers.dedup();

    let is_lacking = |rank: &usize| !holders.contains_key(rank);
    let mut lacking: Vec<usize> = key.ranks.iter().copied().filter(is_lacking).collect();
    lacking.sort_unstable();
    let outside: Vec<usize> = lacking.iter().copied().filter(|r| *r >= world).collect();
    if !outside.is_empty() {
        return RegistryError::OutsideWorld {
            group: key.text(),
            askers,
            outside,
            world,
        };
    }

    let is_instead = |(other, holders): &(&&SpelledKey, &BTreeMap<usize, &[String]>)| {
        other.has_members_of(key) && holders.contains_key(&lacking[0])
    };
    let instead = incomplete.iter().find(is_instead);
    let instead = instead.map(|(other, _)| *other);
    let was_dropped = instead.is_some_and(|other| other.group == key.group);
    RegistryError::PlansDiffer {
        need: key.text(),
        needed_by: holders.keys().copied().collect(),
        askers,
        not_by: lacking,
        instead: instead.map(SpelledKey::text),
        way_out: if was_dropped { DROP_ALL } else { ASK_ALIKE },
    }
}
