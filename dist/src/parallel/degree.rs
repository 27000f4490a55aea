//! The kinds of parallelism.

use std::fmt;

use meshgrad_error::{Error, error};
use meshgrad_mesh::Size;

use super::source::Source;

/// A kind of parallelism. The degrees of all but the two expert kinds multiply to the world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Parallelism {
    /// Pipeline stages.
    Pp,
    /// Replicas of the parameters, with different data.
    DpReplicate,
    /// Shards of the parameters, with different data.
    DpShard,
    /// Parts of a sequence; the ranks share one copy of the parameters.
    CpShard,
    /// Parts of a sequence; each rank has a replica of the parameters.
    CpReplicate,
    /// Parts of a sequence, exchanged for attention heads (Ulysses).
    Sp,
    /// Shards of every matrix.
    Tp,
    /// Sets of experts; regroups the ranks of a stage.
    Ep,
    /// Shards of every expert's matrices.
    Etp,
}

impl Parallelism {
    /// All kinds, from slowest to fastest in the default order; expert kinds last.
    pub const ALL: [Parallelism; 9] = [
        Parallelism::Pp,
        Parallelism::DpReplicate,
        Parallelism::DpShard,
        Parallelism::CpShard,
        Parallelism::CpReplicate,
        Parallelism::Sp,
        Parallelism::Tp,
        Parallelism::Ep,
        Parallelism::Etp,
    ];

    /// The name in settings and messages.
    pub fn name(self) -> &'static str {
        match self {
            Parallelism::Pp => "pp",
            Parallelism::DpReplicate => "dp_replicate",
            Parallelism::DpShard => "dp_shard",
            Parallelism::CpShard => "cp_shard",
            Parallelism::CpReplicate => "cp_replicate",
            Parallelism::Sp => "sp",
            Parallelism::Tp => "tp",
            Parallelism::Ep => "ep",
            Parallelism::Etp => "etp",
        }
    }

    /// The kind with this name.
    pub fn from_name(name: &str) -> Option<Parallelism> {
        Parallelism::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Whether it regroups ranks for experts instead of multiplying to the world.
    pub fn is_expert(self) -> bool {
        matches!(self, Parallelism::Ep | Parallelism::Etp)
    }
}

impl fmt::Display for Parallelism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// `8` or `auto`.
pub(crate) fn size_text(size: Size) -> String {
    match size {
        Size::Ranks(ranks) => ranks.to_string(),
        Size::Auto => "auto".to_owned(),
    }
}

/// Parses a degree.
pub(crate) fn parse_size(text: &str) -> Option<Size> {
    match text.trim() {
        "auto" => Some(Size::Auto),
        number => number.parse().ok().map(Size::Ranks),
    }
}

/// The error for text that is not a degree.
pub(crate) fn not_a_degree(kind: Parallelism, text: impl fmt::Display, location: &Source) -> Error {
    error!(Invalid, "{kind} is `{text}` ({location}): expected an integer of at least 1, or `auto`")
}
