//! Every group that Megatron-LM makes of a configuration, with its lists.
//!
//! Kinds come in the order in which the first group of each is made, and lists in that of
//! Megatron-LM, so they are what `initialize_model_parallel` passes to `new_group`, sorted by kind.
//! Nearly all are layouts of its two rank generators; the rest cut such lists.

use super::config::ParallelConfig;
use super::degree::Parallelism;
use super::order::Token;
use super::rank_generator::lists;

/// What Megatron-LM can be asked for beside degrees and order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MegatronExtras {
    /// `num_distributed_optimizer_instances`: replicas of the optimizer's shards.
    pub instances: usize,
    /// `hierarchical_context_parallel_sizes`: levels of cp, the fastest first; none for no levels.
    pub context_levels: Vec<usize>,
    /// `hybrid_context_parallel`: groups of every power of two within dp and cp.
    pub hybrid: bool,
    /// `create_all_gather_group`: dp and cp once more, for gathering beside reducing.
    pub gather: bool,
}

impl Default for MegatronExtras {
    fn default() -> MegatronExtras {
        MegatronExtras {
            instances: 1,
            context_levels: Vec::new(),
            hybrid: false,
            gather: false,
        }
    }
}

/// All groups of a kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MegatronGroups {
    /// What Megatron-LM calls it: `DATA_PARALLEL_GROUP_WITH_CP`.
    pub kind: String,
    /// Under which name it looks up the options: `dp_cp`.
    pub options: &'static str,
    /// Ranks of each group.
    pub lists: Vec<Vec<usize>>,
}

/// What Megatron-LM refuses of its extras.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MegatronError {
    /// Instances that do not divide what they cut.
    #[error(
        "{instances} optimizer instances do not divide {what}, which has {ranks} ranks: choose a \
         divisor of {ranks}"
    )]
    Instances {
        /// How many.
        instances: usize,
        /// What they cut.
        what: &'static str,
        /// Its ranks.
        ranks: usize,
    },

    /// Levels that do not multiply to cp.
    #[error("levels {levels:?} of context parallelism multiply to {product} and cp is {cp}")]
    ContextLevels {
        /// The levels.
        levels: Vec<usize>,
        /// Their product.
        product: usize,
        /// What they should multiply to.
        cp: usize,
    },

    /// An odd number of ranks, which has no half.
    #[error("hybrid context parallelism halves dp x cp, which has {ranks} ranks: make that even")]
    OddHybrid {
        /// Ranks of dp and cp.
        ranks: usize,
    },
}

type Lists = Vec<Vec<usize>>;

impl ParallelConfig {
    /// Every group that Megatron-LM makes, by kind. Groups of sp, which it does not have, come
    /// last, as in DeepSpeed's parallel state; they are there when sp is more than 1.
    ///
    /// # Errors
    /// What Megatron-LM refuses too.
    pub fn megatron_groups(
        &self,
        extras: &MegatronExtras,
    ) -> Result<Vec<MegatronGroups>, MegatronError> {
        let dp_cp = self.dense_lists(&[Token::Dp, Token::Cp]);
        self.check(extras, dp_cp[0].len())?;

        let mut groups = Vec::new();
        let mut add = |kind: &str, options, lists: Lists| {
            groups.push(MegatronGroups {
                kind: kind.to_owned(),
                options,
                lists,
            });
        };
        add("DATA_PARALLEL_GROUP_WITH_CP", "dp_cp", dp_cp.clone());
        if extras.gather {
            add("DATA_PARALLEL_GROUP_WITH_CP_AG", "dp_cp", dp_cp.clone());
        }
        if extras.hybrid {
            for size in hybrid_sizes(dp_cp[0].len()) {
                let kind = format!("HYBRID_DP_CP_GROUP_{size}");
                add(&kind, "dp_cp", chunks(&dp_cp, size));
            }
        }
        if extras.instances > 1 {
            let within = chunks(&dp_cp, dp_cp[0].len() / extras.instances);
            add(
                "INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP",
                "intra_dp_cp",
                within,
            );
        }
        add("DATA_PARALLEL_GROUP", "dp", self.dense_lists(&[Token::Dp]));
        let cp = self.dense_lists(&[Token::Cp]);
        add("CONTEXT_PARALLEL_GROUP", "cp", cp.clone());
        for (level, lists) in levels(&cp, &extras.context_levels).into_iter().enumerate() {
            add(
                &format!("HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L{level}"),
                "hcp",
                lists,
            );
        }

        let pp = self.dense_lists(&[Token::Pp]);
        add(
            "MODEL_PARALLEL_GROUP",
            "mp",
            self.dense_lists(&[Token::Tp, Token::Pp]),
        );
        add(
            "TENSOR_MODEL_PARALLEL_GROUP",
            "tp",
            self.dense_lists(&[Token::Tp]),
        );
        add("PIPELINE_MODEL_PARALLEL_GROUP", "pp", pp.clone());
        add(
            "EMBEDDING_GROUP",
            "embd",
            pp.iter().map(|stages| ends(stages)).collect(),
        );
        add(
            "POSITION_EMBEDDING_GROUP",
            "pos_embd",
            pp.iter().map(|stages| vec![stages[0]]).collect(),
        );

        let tp_dp_cp = self.dense_lists(&[Token::Tp, Token::Dp, Token::Cp]);
        add(
            "TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP",
            "tp_dp_cp",
            tp_dp_cp,
        );
        let tp_dp = self.dense_lists(&[Token::Tp, Token::Dp]);
        add("TENSOR_AND_DATA_PARALLEL_GROUP", "tp_dp", tp_dp);
        let tp_cp = self.dense_lists(&[Token::Tp, Token::Cp]);
        add("TENSOR_AND_CONTEXT_PARALLEL_GROUP", "tp_cp", tp_cp);

        add(
            "EXPERT_MODEL_PARALLEL_GROUP",
            "ep",
            self.expert_lists(&[Token::Ep]),
        );
        add(
            "EXPERT_TENSOR_PARALLEL_GROUP",
            "ep_tp",
            self.expert_lists(&[Token::Tp]),
        );
        let tp_ep = self.expert_lists(&[Token::Tp, Token::Ep]);
        add("EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP", "tp_ep_mp", tp_ep);
        let tp_ep_pp = self.expert_lists(&[Token::Tp, Token::Ep, Token::Pp]);
        add(
            "EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP",
            "tp_ep_pp",
            tp_ep_pp.clone(),
        );

        let edp = self.expert_lists(&[Token::Dp]);
        let within = edp[0].len() / extras.instances;
        add("EXPERT_DATA_PARALLEL_GROUP", "ep_dp", edp.clone());
        if extras.instances > 1 {
            let [intra, inter] = <[Lists; 2]>::try_from(levels(&edp, &[within, extras.instances]))
                .expect("a list of lists each level");
            add(
                "HIERARCHICAL_EXPERT_DATA_PARALLEL_GROUP_L0",
                "intra_ep_dp",
                intra,
            );
            add(
                "HIERARCHICAL_EXPERT_DATA_PARALLEL_GROUP_L1",
                "inter_ep_dp",
                inter,
            );
        }
        let instances = tp_ep_pp
            .chunks(within)
            .map(<[Vec<usize>]>::concat)
            .collect();
        add(
            "INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP",
            "intra_dist_opt_instance",
            instances,
        );

        if self.degree(Parallelism::Sp) > 1 {
            add(
                "SEQUENCE_PARALLEL_GROUP",
                "sp",
                self.dense_lists(&[Token::Sp]),
            );
            let sp_dp = self.dense_lists(&[Token::Sp, Token::Dp]);
            add("SEQUENCE_AND_DATA_PARALLEL_GROUP", "sp_dp", sp_dp);
        }
        Ok(groups)
    }

    fn check(&self, extras: &MegatronExtras, dp_cp: usize) -> Result<(), MegatronError> {
        let edp = self.expert_lists(&[Token::Dp])[0].len();
        for (what, ranks) in [("dp x cp", dp_cp), ("the replicas of experts", edp)] {
            if extras.instances == 0 || !ranks.is_multiple_of(extras.instances) {
                return Err(MegatronError::Instances {
                    instances: extras.instances,
                    what,
                    ranks,
                });
            }
        }
        let cp = self.degree(Parallelism::CpShard) * self.degree(Parallelism::CpReplicate);
        let levels = &extras.context_levels;
        let product = levels
            .iter()
            .fold(1, |product: usize, size| product.saturating_mul(*size));
        if !levels.is_empty() && product != cp {
            return Err(MegatronError::ContextLevels {
                levels: levels.clone(),
                product,
                cp,
            });
        }
        match extras.hybrid && !dp_cp.is_multiple_of(2) {
            true => Err(MegatronError::OddHybrid { ranks: dp_cp }),
            false => Ok(()),
        }
    }

    fn dense_lists(&self, tokens: &[Token]) -> Lists {
        lists(&self.dense_generator().of(tokens), self.world())
    }

    fn expert_lists(&self, tokens: &[Token]) -> Lists {
        lists(&self.expert_generator().of(tokens), self.world())
    }
}

/// The powers of two above 1 that are at most half of `ranks`.
fn hybrid_sizes(ranks: usize) -> impl Iterator<Item = usize> {
    (1..ranks.ilog2()).map(|power| 1 << power)
}

/// Each list in pieces of `size`.
fn chunks(lists: &Lists, size: usize) -> Lists {
    let pieces = lists.iter().flat_map(|list| list.chunks(size));
    pieces.map(<[usize]>::to_vec).collect()
}

/// Each list as a mesh of `sizes`, the fastest first: the groups along each of its axes.
fn levels(lists: &Lists, sizes: &[usize]) -> Vec<Lists> {
    let along = |level: usize| {
        let stride: usize = sizes[..level].iter().product();
        let block = stride * sizes[level];
        let groups = lists
            .iter()
            .flat_map(|list| list.chunks(block))
            .flat_map(|block| {
                (0..stride)
                    .map(move |first| block.iter().skip(first).step_by(stride).copied().collect())
            });
        groups.collect()
    };
    (0..sizes.len()).map(along).collect()
}

/// First and last, once if they are one.
fn ends(stages: &[usize]) -> Vec<usize> {
    let mut ends = vec![stages[0], stages[stages.len() - 1]];
    ends.dedup();
    ends
}
