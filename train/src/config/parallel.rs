//! `[parallel]`: how the ranks of a run share its work.

use meshgrad_dist::parallel::{Parallelism, Settings, Source};
use meshgrad_mesh::Size;
use serde::{Deserialize, Serialize};

/// `[parallel]`: how the ranks of a run share its work. Degrees have the names of `meshgrad mesh` and
/// multiply to the number of ranks. Nothing here changes what is trained.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ParallelTable {
    /// Ranks of a pipeline, which have different layers; see `[pipeline]`.
    pub pp: Degree,
    /// Replicas of the parameters, with different sequences.
    pub dp_replicate: Degree,
    /// Shards of the parameters, with different sequences. `auto`: the ranks that the other degrees
    /// leave.
    pub dp_shard: Degree,
    /// Shards of the parameters, with different tokens of the same sequences.
    pub cp_shard: Degree,
    /// Replicas of the parameters, with different tokens of the same sequences.
    pub cp_replicate: Degree,
    /// Ulysses: ranks with different tokens of the same sequences, and in attention different heads.
    pub sp: Degree,
    /// Tensor parallelism: shards of each matrix.
    pub tp: Degree,
    /// Expert parallelism: experts are divided over this many of the ranks that the other degrees give,
    /// and tokens are sent to them.
    pub ep: Degree,
    /// Shards of the inner features of each expert, on ranks as for `ep`.
    pub etp: Degree,
    /// How `ep` and `etp` send tokens to experts.
    pub dispatch: DispatchChoice,
    /// How many tokens `all_to_all` keeps room for.
    pub capacity: CapacityChoice,
    /// How ranks of `cp_shard` and `cp_replicate` get the keys and values of others.
    pub attention: AttentionChoice,
    /// The order of ranks, fastest first, such as `tp-dp`; empty for the default.
    pub order: String,
    /// How the parameters of `dp_shard` are divided.
    pub home: HomeChoice,
    /// Whether `fsdp` frees gathered parameters between forward and backward.
    pub reshard_after_forward: bool,
    /// Whether rows are divided between matrices, for an optimizer of your own that updates whole
    /// matrices. For Muon they always are.
    pub whole_matrices: bool,
    /// Units that are gathered ahead of their use.
    pub prefetch: usize,
    /// Whether `tp` also shards activations between blocks, along the sequence.
    pub sequence_parallel: bool,
    /// Whether `tp` also shards the vocabulary, in the embedding and in the loss.
    pub loss_parallel: bool,
    /// Whether `tp` also shards the inner features of each expert. Otherwise experts are replicated.
    pub shard_experts: bool,
    /// Chunks in which the communication of `tp` runs beside matrix products; 1 is no overlap.
    pub overlap_chunks: usize,
}

/// A degree of parallelism.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "NumberOrText", into = "NumberOrText")]
pub enum Degree {
    /// This many ranks.
    Ranks(usize),
    /// The ranks that the other degrees leave.
    Auto,
}

/// `parallel.home`: how the parameters of `dp_shard` are divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HomeChoice {
    /// Values, gradients and optimizer state.
    Fsdp,
    /// Optimizer state and the values it updates; gathered once per step.
    Zero1,
}

/// `parallel.dispatch`: how tokens reach experts on other ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DispatchChoice {
    /// The one that sends fewer bytes.
    Auto,
    /// All ranks get all tokens of those that have the experts between them.
    AllGather,
    /// Each token is sent to the ranks of its experts.
    AllToAll,
}

/// `parallel.attention`: how ranks with different tokens get the keys and values of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttentionChoice {
    /// All at once. Results have the bits of one rank.
    Gather,
    /// Those of one rank after the other, so that no rank has all.
    Ring,
}

/// `parallel.capacity`: how many tokens `all_to_all` keeps room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CapacityChoice {
    /// As the last steps needed. A step that needs more is repeated with more.
    Auto,
    /// For all tokens to choose the experts of one rank.
    Worst,
}

impl HomeChoice {
    /// Its name in a configuration.
    pub fn name(self) -> &'static str {
        match self {
            HomeChoice::Fsdp => "fsdp",
            HomeChoice::Zero1 => "zero1",
        }
    }
}

impl Default for ParallelTable {
    fn default() -> ParallelTable {
        let one = Degree::Ranks(1);
        ParallelTable {
            pp: one,
            dp_replicate: one,
            dp_shard: Degree::Auto,
            cp_shard: one,
            cp_replicate: one,
            sp: one,
            tp: one,
            ep: one,
            etp: one,
            dispatch: DispatchChoice::Auto,
            capacity: CapacityChoice::Auto,
            attention: AttentionChoice::Gather,
            order: String::new(),
            home: HomeChoice::Fsdp,
            reshard_after_forward: true,
            whole_matrices: false,
            prefetch: 1,
            sequence_parallel: false,
            loss_parallel: true,
            shard_experts: false,
            overlap_chunks: 1,
        }
    }
}

impl ParallelTable {
    /// All degrees.
    pub(crate) fn degrees(&self) -> [(Parallelism, Degree); 9] {
        Parallelism::ALL.map(|kind| {
            let degree = match kind {
                Parallelism::Pp => self.pp,
                Parallelism::DpReplicate => self.dp_replicate,
                Parallelism::DpShard => self.dp_shard,
                Parallelism::CpShard => self.cp_shard,
                Parallelism::CpReplicate => self.cp_replicate,
                Parallelism::Sp => self.sp,
                Parallelism::Tp => self.tp,
                Parallelism::Ep => self.ep,
                Parallelism::Etp => self.etp,
            };
            (kind, degree)
        })
    }

    /// The settings of a world of `ranks` ranks, to be checked by
    /// [`ParallelConfig`](meshgrad_dist::parallel::ParallelConfig).
    pub fn settings(&self, ranks: usize) -> Settings {
        let mut settings = Settings::new();
        settings.world(ranks, Source::code("the number of ranks"));
        for (kind, degree) in self.degrees() {
            let source = Source::code(format!("parallel.{}", kind.name()));
            let size = match degree {
                Degree::Ranks(ranks) => Size::Ranks(ranks),
                Degree::Auto => Size::Auto,
            };
            settings.set(kind, size, source);
        }
        if !self.order.is_empty() {
            settings.order(self.order.clone(), Source::code("parallel.order"));
        }
        settings
    }
}

/// How a degree is written.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum NumberOrText {
    Number(i64),
    Text(String),
}

impl TryFrom<NumberOrText> for Degree {
    type Error = String;

    fn try_from(written: NumberOrText) -> Result<Degree, String> {
        let (text, ranks) = match written {
            NumberOrText::Number(number) => (number.to_string(), usize::try_from(number).ok()),
            NumberOrText::Text(text) if text == "auto" => return Ok(Degree::Auto),
            // `--set` passes a value as text if the default is text.
            NumberOrText::Text(text) => (text.clone(), text.parse().ok()),
        };
        match ranks.filter(|ranks| *ranks > 0) {
            Some(ranks) => Ok(Degree::Ranks(ranks)),
            None => Err(format!("`{text}` is not a degree; use 1 or more ranks, or \"auto\"")),
        }
    }
}

impl From<Degree> for NumberOrText {
    fn from(degree: Degree) -> NumberOrText {
        match degree {
            Degree::Ranks(ranks) => NumberOrText::Number(ranks as i64),
            Degree::Auto => NumberOrText::Text("auto".into()),
        }
    }
}
