//! What can be wrong about communicators, and the way out.

use std::time::Duration;

use meshgrad_mesh::MeshError;

use super::text;

/// What can be wrong with a group that is asked for, with the plans of ranks, or with a creation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// A group that no communicator can be made for.
    #[error("`{requester}` asks for {group}: {source}")]
    InvalidGroup {
        /// Who asks.
        requester: String,
        /// For what.
        group: String,
        /// What is wrong with it.
        source: MeshError,
    },

    /// Ranks whose groups come from different meshes.
    #[error("nothing was made: {0}")]
    MeshesDiffer(MeshError),

    /// A group that some of its members need and others do not.
    #[error(
        "the plans of ranks differ, and nothing was made: {} {} {need} (for {}), and {} {} not{}. \
         {help}",
        text::ranks(.needed_by), verb(.needed_by, "needs", "need"), text::names(.requesters),
        text::ranks(.missing_from), verb(.missing_from, "does", "do"), but_has(.missing_from, .instead)
    )]
    PlansDiffer {
        /// The first such group, in the order of creation.
        need: String,
        /// The members that need it.
        needed_by: Vec<usize>,
        /// Under which names.
        requesters: Vec<String>,
        /// The members that do not.
        missing_from: Vec<usize>,
        /// What the first of these has of the same ranks.
        instead: Option<String>,
        /// What makes it right.
        help: &'static str,
    },

    /// A group with a rank that there is not.
    #[error(
        "{} of {group} (for {}) {} outside of the world of {world} ranks: start more ranks, or ask \
         for a group within it",
        text::ranks(.outside), text::names(.requesters),
        verb(.outside, "is", "are")
    )]
    OutsideWorld {
        /// The group.
        group: String,
        /// Under which names it was asked for.
        requesters: Vec<String>,
        /// The ranks that there are not.
        outside: Vec<usize>,
        /// How many there are.
        world: usize,
    },

    /// Plans that differ and look the same: an exchange that changed what it carried.
    #[error(
        "the plans of {world} ranks are the same and their digests are not: do all ranks run the \
         same version?"
    )]
    DigestsDiffer {
        /// How many ranks.
        world: usize,
    },

    /// An exchange between ranks that failed, or that did not bring what ranks say.
    #[error("rank {rank} could not compare its plan with other ranks: {reason}")]
    Exchange {
        /// Who says so.
        rank: usize,
        /// Why.
        reason: String,
    },

    /// A plan of another rank.
    #[error("the plan of rank {plan} was given to the registry of rank {registry}")]
    WrongRank {
        /// Whose plan.
        plan: usize,
        /// Whose registry.
        registry: usize,
    },

    /// A group of a plan that has nobody left who wants it.
    #[error(
        "{group} is in the plan that the ranks agreed on and was let go since on rank {rank}: keep \
         its handles until the plan is made"
    )]
    Released {
        /// The group.
        group: String,
        /// Where.
        rank: usize,
    },

    /// A creation that took too long.
    #[error(
        "rank {rank} waited {waited:?} for the communicator of {group} (for {}): {}. Look there; \
         if they only need longer, set the group's option `bootstrap_timeout`",
        text::names(.requesters), who_lacks(.missing)
    )]
    Timeout {
        /// Who waited.
        rank: usize,
        /// For what.
        group: String,
        /// Under which names.
        requesters: Vec<String>,
        /// How long.
        waited: Duration,
        /// Who did not come, as far as it is known.
        missing: Vec<usize>,
    },

    /// A creation that the transport could not do.
    #[error(
        "rank {rank} could not make the communicator of {group} (for {}): {reason}",
        text::names(.requesters)
    )]
    Transport {
        /// Who.
        rank: usize,
        /// For what.
        group: String,
        /// Under which names.
        requesters: Vec<String>,
        /// What the transport says.
        reason: String,
    },
}

/// The result of what can be wrong about communicators.
pub type Result<T, E = RegistryError> = std::result::Result<T, E>;

fn verb(ranks: &[usize], of_one: &'static str, of_several: &'static str) -> &'static str {
    match ranks.len() {
        1 => of_one,
        _ => of_several,
    }
}

fn but_has(ranks: &[usize], instead: &Option<String>) -> String {
    match (ranks, instead) {
        ([_], Some(need)) => format!("; it has {need} instead"),
        ([first, ..], Some(need)) => format!("; rank {first} has {need} instead"),
        _ => String::new(),
    }
}

fn who_lacks(missing: &[usize]) -> String {
    match missing {
        [] => "not all members came, and the transport does not know who is missing".to_owned(),
        _ => format!(
            "{} did not come; {} gone, or {} not ask for this group in this order, with this channel \
             and these options",
            text::ranks(missing),
            verb(missing, "it is", "they are"),
            verb(missing, "does", "do")
        ),
    }
}
