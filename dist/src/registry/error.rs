//! Errors of the registry.

use std::time::Duration;

use meshgrad_mesh::Error;

use super::text;

/// An error of a requested group, of a comparison of plans, or of a creation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// The group has invalid options.
    #[error("`{requester}` requests {group}: {source}")]
    InvalidGroup {
        /// The requester's name.
        requester: String,
        /// The group.
        group: String,
        /// The invalid option.
        source: Error,
    },

    /// Ranks have different meshes.
    #[error("no communicator was created: {0}")]
    MeshesDiffer(Error),

    /// Some members of a group need its communicator and others do not.
    #[error(
        "no communicator was created because the plans differ: {} {} {need} (for {}), but {} {} \
         not{}. {help}",
        text::ranks(.needed_by), verb(.needed_by, "needs", "need"), text::names(.requesters),
        text::ranks(.missing_from), verb(.missing_from, "does", "do"), but_has(.missing_from, .instead)
    )]
    PlansDiffer {
        /// The first such group in creation order.
        need: String,
        /// The members that need it.
        needed_by: Vec<usize>,
        /// The names of the requesters.
        requesters: Vec<String>,
        /// The members that do not need it.
        missing_from: Vec<usize>,
        /// The group of the same ranks that the first of `missing_from` needs instead.
        instead: Option<String>,
        /// The remedy.
        help: &'static str,
    },

    /// A group has a rank outside the world.
    #[error(
        "{} of {group} (for {}) {} outside the world of {world} ranks: start more ranks, or \
         request a group within the world",
        text::ranks(.outside), text::names(.requesters),
        verb(.outside, "is", "are")
    )]
    OutsideWorld {
        /// The group.
        group: String,
        /// The names of the requesters.
        requesters: Vec<String>,
        /// The ranks outside the world.
        outside: Vec<usize>,
        /// The size of the world.
        world: usize,
    },

    /// The plans are equal but their digests differ.
    #[error(
        "the plans of {world} ranks are equal but their digests differ: run the same version on \
         all ranks"
    )]
    DigestsDiffer {
        /// The number of ranks.
        world: usize,
    },

    /// The exchange of plans failed or returned invalid data.
    #[error("rank {rank} could not compare its plan with other ranks: {reason}")]
    Exchange {
        /// The rank that reports it.
        rank: usize,
        /// The reason.
        reason: String,
    },

    /// The plan belongs to another rank.
    #[error("the plan of rank {plan} was passed to the registry of rank {registry}")]
    WrongRank {
        /// The plan's rank.
        plan: usize,
        /// The registry's rank.
        registry: usize,
    },

    /// All handles of a planned group were dropped.
    #[error(
        "{group} is in the agreed plan, but rank {rank} has dropped its handles since: keep them \
         until the communicators are created"
    )]
    Released {
        /// The group.
        group: String,
        /// The rank.
        rank: usize,
    },

    /// A creation timed out.
    #[error(
        "rank {rank} waited {waited:?} for the communicator of {group} (for {}): {}. If they only \
         need more time, raise the group option `bootstrap_timeout`",
        text::names(.requesters), missing_text(.missing)
    )]
    Timeout {
        /// The rank that waited.
        rank: usize,
        /// The group.
        group: String,
        /// The names of the requesters.
        requesters: Vec<String>,
        /// How long it waited.
        waited: Duration,
        /// The members that did not join; empty if the transport cannot list them.
        missing: Vec<usize>,
    },

    /// The transport failed to create a communicator.
    #[error(
        "rank {rank} could not create the communicator of {group} (for {}): {reason}",
        text::names(.requesters)
    )]
    Transport {
        /// The rank.
        rank: usize,
        /// The group.
        group: String,
        /// The names of the requesters.
        requesters: Vec<String>,
        /// The transport's message.
        reason: String,
    },
}

/// A result with a [`RegistryError`].
pub type Result<T, E = RegistryError> = std::result::Result<T, E>;

fn verb(ranks: &[usize], of_one: &'static str, of_several: &'static str) -> &'static str {
    match ranks.len() {
        1 => of_one,
        _ => of_several,
    }
}

fn but_has(ranks: &[usize], instead: &Option<String>) -> String {
    match (ranks, instead) {
        ([_], Some(need)) => format!("; it needs {need} instead"),
        ([first, ..], Some(need)) => format!("; rank {first} needs {need} instead"),
        _ => String::new(),
    }
}

fn missing_text(missing: &[usize]) -> String {
    match missing {
        [] => "some members did not join, and the transport cannot list them".to_owned(),
        _ => format!(
            "{} did not join; {} terminated, or {} not request this group with the same order, \
             channel and options",
            text::ranks(missing),
            verb(missing, "it has", "they have"),
            verb(missing, "does", "do")
        ),
    }
}
