//! All groups that Megatron-LM creates for a configuration.
//!
//! These are the lists of ranks that `initialize_model_parallel` passes to `new_group`, grouped by
//! kind. Kinds are in the order in which their first groups are created, and lists in Megatron-LM's
//! order. Most lists are groups of its two rank generators; the others are parts of such lists.

use meshgrad_error::{Result, ensure};

use super::config::ParallelConfig;
use super::degree::Parallelism;
use super::order::Token;
use super::rank_generator::lists;

/// Options of Megatron-LM besides degrees and order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MegatronExtras {
    /// `num_distributed_optimizer_instances`: replicas of the optimizer's shards.
    pub instances: usize,
    /// `hierarchical_context_parallel_sizes`: levels of cp, fastest first; empty for none.
    pub context_levels: Vec<usize>,
    /// `hybrid_context_parallel`: dp x cp split into groups of every power of two.
    pub hybrid: bool,
    /// `create_all_gather_group`: a second dp x cp group, so that gathers can overlap with
    /// reductions.
    pub gather: bool,
}

impl Default for MegatronExtras {
    fn default() -> MegatronExtras {
        MegatronExtras { instances: 1, context_levels: Vec::new(), hybrid: false, gather: false }
    }
}

/// All groups of a kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MegatronGroups {
    /// Megatron-LM's name: `DATA_PARALLEL_GROUP_WITH_CP`.
    pub kind: String,
    /// The name under which Megatron-LM looks up the group's options: `dp_cp`.
    pub options: &'static str,
    /// The ranks of each group.
    pub lists: Vec<Vec<usize>>,
}

type Lists = Vec<Vec<usize>>;

/// The rank generator that a kind uses.
#[derive(Clone, Copy)]
enum Side {
    Dense,
    Expert,
}

/// Kind, options name, generator and tokens, in creation order.
const KINDS: [(&str, &str, Side, &[Token]); 14] = {
    use Side::{Dense, Expert};
    use Token::{Cp, Dp, Ep, Pp, Tp};
    [
        ("DATA_PARALLEL_GROUP_WITH_CP", "dp_cp", Dense, &[Dp, Cp]),
        ("DATA_PARALLEL_GROUP", "dp", Dense, &[Dp]),
        ("CONTEXT_PARALLEL_GROUP", "cp", Dense, &[Cp]),
        ("MODEL_PARALLEL_GROUP", "mp", Dense, &[Tp, Pp]),
        ("TENSOR_MODEL_PARALLEL_GROUP", "tp", Dense, &[Tp]),
        ("PIPELINE_MODEL_PARALLEL_GROUP", "pp", Dense, &[Pp]),
        ("TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP", "tp_dp_cp", Dense, &[Tp, Dp, Cp]),
        ("TENSOR_AND_DATA_PARALLEL_GROUP", "tp_dp", Dense, &[Tp, Dp]),
        ("TENSOR_AND_CONTEXT_PARALLEL_GROUP", "tp_cp", Dense, &[Tp, Cp]),
        ("EXPERT_MODEL_PARALLEL_GROUP", "ep", Expert, &[Ep]),
        ("EXPERT_TENSOR_PARALLEL_GROUP", "ep_tp", Expert, &[Tp]),
        ("EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP", "tp_ep_mp", Expert, &[Tp, Ep]),
        ("EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP", "tp_ep_pp", Expert, &[Tp, Ep, Pp]),
        ("EXPERT_DATA_PARALLEL_GROUP", "ep_dp", Expert, &[Dp]),
    ]
};

/// The kinds of sequence parallelism, which DeepSpeed creates last.
const SEQUENCE: [(&str, &str, Side, &[Token]); 2] = [
    ("SEQUENCE_PARALLEL_GROUP", "sp", Side::Dense, &[Token::Sp]),
    ("SEQUENCE_AND_DATA_PARALLEL_GROUP", "sp_dp", Side::Dense, &[Token::Sp, Token::Dp]),
];

impl ParallelConfig {
    /// All groups that Megatron-LM creates, by kind. If sp is more than 1, the groups of sp come
    /// last, as in DeepSpeed's parallel state.
    ///
    /// # Errors
    /// Extras that Megatron-LM also rejects.
    pub fn megatron_groups(&self, extras: &MegatronExtras) -> Result<Vec<MegatronGroups>> {
        self.check(extras)?;
        let sequence = match self.degree(Parallelism::Sp) {
            1 => &[][..],
            _ => &SEQUENCE,
        };
        let mut groups = Vec::new();
        for (kind, options, side, tokens) in KINDS.iter().chain(sequence) {
            let lists = self.lists(*side, tokens);
            let parts = match *options {
                "dp_cp" => data_parts(&lists, extras),
                "cp" => context_parts(&lists, extras),
                "pp" => ends(&lists),
                "ep_dp" => self.expert_parts(&lists, extras),
                _ => Vec::new(),
            };
            groups.push(of_kind(kind, options, lists));
            groups.extend(parts);
        }
        Ok(groups)
    }

    /// The expert replicas within and across optimizer instances, and all expert ranks of an
    /// instance.
    fn expert_parts(&self, replicas: &Lists, extras: &MegatronExtras) -> Vec<MegatronGroups> {
        let within = replicas[0].len() / extras.instances;
        let names = [
            ("HIERARCHICAL_EXPERT_DATA_PARALLEL_GROUP_L0", "intra_ep_dp"),
            ("HIERARCHICAL_EXPERT_DATA_PARALLEL_GROUP_L1", "inter_ep_dp"),
        ];
        let lists = match extras.instances {
            1 => Vec::new(),
            instances => levels(replicas, &[within, instances]),
        };
        let named = names.into_iter().zip(lists);
        let mut groups: Vec<_> =
            named.map(|((kind, options), lists)| of_kind(kind, options, lists)).collect();

        let models = self.lists(Side::Expert, &[Token::Tp, Token::Ep, Token::Pp]);
        let instances = models.chunks(within).map(<[Vec<usize>]>::concat).collect();
        let kind = "INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP";
        groups.push(of_kind(kind, "intra_dist_opt_instance", instances));
        groups
    }

    fn check(&self, extras: &MegatronExtras) -> Result<()> {
        let dp_cp = self.dense_generator().of(&[Token::Dp, Token::Cp]).len();
        let edp = self.expert_generator().of(&[Token::Dp]).len();
        for (what, ranks) in [("dp x cp", dp_cp), ("the replicas of experts", edp)] {
            let instances = extras.instances;
            ensure!(
                instances > 0 && ranks.is_multiple_of(instances),
                Invalid,
                "{instances} optimizer instances do not divide {what}, which has {ranks} ranks: \
                 choose a divisor of {ranks}"
            );
        }
        let cp = self.degree(Parallelism::CpShard) * self.degree(Parallelism::CpReplicate);
        let levels = &extras.context_levels;
        let product = levels.iter().fold(1, |product: usize, size| product.saturating_mul(*size));
        ensure!(
            levels.is_empty() || product == cp,
            Invalid,
            "levels {levels:?} of context parallelism multiply to {product}, but cp is {cp}"
        );
        ensure!(
            !extras.hybrid || dp_cp.is_multiple_of(2),
            Invalid,
            "hybrid context parallelism needs an even dp x cp, got {dp_cp} ranks"
        );
        Ok(())
    }

    fn lists(&self, side: Side, tokens: &[Token]) -> Lists {
        let generator = match side {
            Side::Dense => self.dense_generator(),
            Side::Expert => self.expert_generator(),
        };
        lists(&generator.of(tokens), self.world())
    }
}

/// The powers of two above 1 that are at most half of `ranks`.
fn hybrid_sizes(ranks: usize) -> impl Iterator<Item = usize> {
    (1..ranks.ilog2()).map(|power| 1 << power)
}

/// Each list in chunks of `size`.
fn chunks(lists: &Lists, size: usize) -> Lists {
    let chunks = lists.iter().flat_map(|list| list.chunks(size));
    chunks.map(<[usize]>::to_vec).collect()
}

/// Treats each list as a mesh of `sizes`, fastest first, and returns the groups along each axis.
fn levels(lists: &Lists, sizes: &[usize]) -> Vec<Lists> {
    let along = |level: usize| {
        let stride: usize = sizes[..level].iter().product();
        let block = stride * sizes[level];
        let groups = lists.iter().flat_map(|list| list.chunks(block)).flat_map(|block| {
            (0..stride)
                .map(move |first| block.iter().skip(first).step_by(stride).copied().collect())
        });
        groups.collect()
    };
    (0..sizes.len()).map(along).collect()
}

/// The groups of first and last stages (`embd`), and the groups of first stages (`pos_embd`).
fn ends(pipelines: &Lists) -> Vec<MegatronGroups> {
    let both = |stages: &Vec<usize>| {
        let mut ends = vec![stages[0], stages[stages.len() - 1]];
        ends.dedup();
        ends
    };
    let first = |stages: &Vec<usize>| vec![stages[0]];
    vec![
        of_kind("EMBEDDING_GROUP", "embd", pipelines.iter().map(both).collect()),
        of_kind("POSITION_EMBEDDING_GROUP", "pos_embd", pipelines.iter().map(first).collect()),
    ]
}

/// The additional groups of dp x cp: for concurrent gathers, of each power of two, and within
/// optimizer instances.
fn data_parts(dp_cp: &Lists, extras: &MegatronExtras) -> Vec<MegatronGroups> {
    let mut groups = Vec::new();
    if extras.gather {
        let kind = "DATA_PARALLEL_GROUP_WITH_CP_AG";
        groups.push(of_kind(kind, "dp_cp", dp_cp.clone()));
    }
    if extras.hybrid {
        groups.extend(hybrid_sizes(dp_cp[0].len()).map(|size| {
            let kind = format!("HYBRID_DP_CP_GROUP_{size}");
            of_kind(&kind, "dp_cp", chunks(dp_cp, size))
        }));
    }
    if extras.instances > 1 {
        let within = chunks(dp_cp, dp_cp[0].len() / extras.instances);
        let kind = "INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP";
        groups.push(of_kind(kind, "intra_dp_cp", within));
    }
    groups
}

/// The groups of each level of hierarchical context parallelism.
fn context_parts(cp: &Lists, extras: &MegatronExtras) -> Vec<MegatronGroups> {
    let levels = levels(cp, &extras.context_levels).into_iter().enumerate();
    let named = levels.map(|(level, lists)| {
        let kind = format!("HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L{level}");
        of_kind(&kind, "hcp", lists)
    });
    named.collect()
}

fn of_kind(kind: &str, options: &'static str, lists: Lists) -> MegatronGroups {
    MegatronGroups { kind: kind.to_owned(), options, lists }
}
