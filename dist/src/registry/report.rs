//! What communicators a rank has, for people and for programs.

use std::collections::BTreeMap;
use std::fmt;

use meshgrad_mesh::{Group, Hosts};
use serde::Serialize;

use super::connect::Connect;
use super::key::Key;
use super::slot::{Making, Slot};
use super::text;

/// The communicators of a rank, in the order of creation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The rank.
    pub rank: usize,
    /// What it shares.
    pub communicators: Vec<Reported>,
}

/// A communicator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Reported {
    /// Its members, in order.
    pub ranks: Vec<usize>,
    /// Its lane.
    pub lane: String,
    /// The options that differ from the default.
    pub options: BTreeMap<&'static str, String>,
    /// The names of those who share it, each once.
    pub shared_by: Vec<String>,
    /// How many hosts its members are on.
    pub hosts: usize,
    /// How far it is.
    pub stage: Stage,
    /// Why it failed, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    #[serde(skip)]
    group: Group,
}

/// How far a communicator is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// Asked for; nothing was sent.
    Declared,
    /// In the midst of being made.
    Begun,
    /// There.
    Made,
    /// Not to be had.
    Failed,
}

impl Reported {
    pub(super) fn of<C: Connect>(key: &Key, slot: &Slot<C>, hosts: &Hosts) -> Reported {
        let group = &key.0;
        Reported {
            ranks: group.ranks().to_vec(),
            lane: group.lane().to_string(),
            options: group.options().stated().into_iter().collect(),
            shared_by: slot.askers(),
            hosts: hosts.crossed(group.ranks()),
            stage: match slot.making {
                Making::Declared => Stage::Declared,
                Making::Begun { .. } => Stage::Begun,
                Making::Made => Stage::Made,
                Making::Failed(_) => Stage::Failed,
            },
            failure: slot.failure().map(ToString::to_string),
            group: group.clone(),
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Stage::Declared => "declared",
            Stage::Begun => "begun",
            Stage::Made => "made",
            Stage::Failed => "failed",
        })
    }
}

/// A line a communicator.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |of: usize, what: &str| match of {
            1 => format!("1 {what}"),
            _ => format!("{of} {what}s"),
        };
        let of_stage = |stage| {
            let of_stage = self.communicators.iter().filter(|one| one.stage == stage);
            of_stage.count()
        };
        writeln!(
            f,
            "rank {}: {}, {} made",
            self.rank,
            count(self.communicators.len(), "communicator"),
            of_stage(Stage::Made)
        )?;
        for one in &self.communicators {
            writeln!(
                f,
                "  {:<8}  {:>10}  {:>8}  {}  for {}",
                one.stage,
                count(one.ranks.len(), "rank"),
                count(one.hosts, "host"),
                one.group,
                text::names(&one.shared_by)
            )?;
            if let Some(failure) = &one.failure {
                writeln!(f, "            {failure}")?;
            }
        }
        Ok(())
    }
}
