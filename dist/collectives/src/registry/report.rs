//! Reports of a rank's communicators, as text and JSON.

use std::collections::BTreeMap;
use std::fmt;

use meshgrad_mesh::{Group, Hosts};
use serde::Serialize;

use super::connect::Connect;
use super::key::Key;
use super::slot::{CreationState, Slot};
use super::text;

/// The communicators of a rank, in creation order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The rank.
    pub rank: usize,
    /// Its communicators.
    pub communicators: Vec<CommunicatorReport>,
}

/// A communicator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CommunicatorReport {
    /// Its members, in order.
    pub ranks: Vec<usize>,
    /// Its channel.
    pub channel: String,
    /// The options that differ from the default.
    pub options: BTreeMap<&'static str, String>,
    /// The distinct names of its requesters.
    pub shared_by: Vec<String>,
    /// The number of hosts that its members span.
    pub hosts: usize,
    /// Its stage.
    pub stage: Stage,
    /// The error, if the creation failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    #[serde(skip)]
    group: Group,
}

/// The stage of a communicator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// Requested; nothing has been sent.
    Declared,
    /// Its creation is in flight.
    Creating,
    /// Ready for use.
    Ready,
    /// Its creation failed.
    Failed,
}

impl CommunicatorReport {
    pub(super) fn of<C: Connect>(key: &Key, slot: &Slot<C>, hosts: &Hosts) -> CommunicatorReport {
        let group = &key.0;
        CommunicatorReport {
            ranks: group.ranks().to_vec(),
            channel: group.channel().to_string(),
            options: group.options().non_default().into_iter().collect(),
            shared_by: slot.requesters(),
            hosts: hosts.spanned_by(group.ranks()),
            stage: match slot.state {
                CreationState::Declared => Stage::Declared,
                CreationState::Creating { .. } => Stage::Creating,
                CreationState::Ready => Stage::Ready,
                CreationState::Failed(_) => Stage::Failed,
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
            Stage::Creating => "creating",
            Stage::Ready => "ready",
            Stage::Failed => "failed",
        })
    }
}

/// One line per communicator.
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
            "rank {}: {}, {} ready",
            self.rank,
            count(self.communicators.len(), "communicator"),
            of_stage(Stage::Ready)
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
