//! Getters with the names that code ported from Megatron-LM or DeepSpeed calls.
//!
//! Megatron-LM and DeepSpeed pass around an `mpu` (model parallel unit), an object or module for
//! the current process. [`Mpu`] is one for an explicit rank and state, so a process can have
//! several.
//!
//! Some names are ambiguous in the originals. `get_model_parallel_world_size` and `_rank` refer to
//! tp, as in DeepSpeed, although `get_model_parallel_group` is tp and pp.
//! `get_tensor_model_parallel_src_rank` is the first rank of the tp group for any order.
//! `get_sequence_data_parallel_group` equals the dp group if sp is 1.

use std::collections::BTreeMap;

use meshgrad_error::{Result, ensure};
use meshgrad_mesh::Group;

use super::members::{ACROSS_HOSTS, SAME_HOST};
use super::state::ParallelState;
use super::text;

/// The getters of Megatron-LM and DeepSpeed for a rank of a state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mpu {
    state: ParallelState,
    rank: usize,
}

/// Defines three getters per group: the group, its size, and the index of this rank. Every rank
/// must be in such a group.
macro_rules! getters {
    ($($name:literal: $group:ident, $size:ident, $at:ident;)*) => {
        $(
            #[doc = concat!("The group `", $name, "` of this rank.")]
            pub fn $group(&self) -> Group {
                self.own($name)
            }

            #[doc = concat!("The number of ranks in the group `", $name, "` of this rank.")]
            pub fn $size(&self) -> usize {
                self.own($name).len()
            }

            #[doc = concat!("The index of this rank in its group `", $name, "`.")]
            pub fn $at(&self) -> usize {
                self.index($name)
            }
        )*
    };
}

impl ParallelState {
    /// Getters with the names of Megatron-LM's and DeepSpeed's `mpu`, for ported code.
    ///
    /// # Errors
    /// When the state does not have the rank.
    pub fn mpu(&self, rank: usize) -> Result<Mpu> {
        ensure!(
            self.contains(rank),
            Invalid,
            "rank {rank} is not in the state (ranks {})",
            text::ranks(self.ranks())
        );
        Ok(Mpu { state: self.clone(), rank })
    }
}

impl Mpu {
    /// The state.
    pub fn state(&self) -> &ParallelState {
        &self.state
    }

    /// The rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    getters! {
        "tp": get_tensor_model_parallel_group,
            get_tensor_model_parallel_world_size, get_tensor_model_parallel_rank;
        "pp": get_pipeline_model_parallel_group,
            get_pipeline_model_parallel_world_size, get_pipeline_model_parallel_rank;
        "dp": get_data_parallel_group,
            get_data_parallel_world_size, get_data_parallel_rank;
        "dp_cp": get_data_parallel_group_with_context_parallel,
            get_data_parallel_world_size_with_context_parallel,
            get_data_parallel_rank_with_context_parallel;
        "intra_dp_cp": get_partial_data_parallel_group_with_context_parallel,
            get_partial_data_parallel_world_size_with_context_parallel,
            get_partial_data_parallel_rank_with_context_parallel;
        "cp": get_context_parallel_group,
            get_context_parallel_world_size, get_context_parallel_rank;
        "sp": get_sequence_parallel_group,
            get_sequence_parallel_world_size, get_sequence_parallel_rank;
        "sp_dp": get_sequence_data_parallel_group,
            get_sequence_data_parallel_world_size, get_sequence_data_parallel_rank;
        "ep": get_expert_model_parallel_group,
            get_expert_model_parallel_world_size, get_expert_model_parallel_rank;
        "ep_tp": get_expert_tensor_parallel_group,
            get_expert_tensor_parallel_world_size, get_expert_tensor_parallel_rank;
        "ep_dp": get_expert_data_parallel_group,
            get_expert_data_parallel_world_size, get_expert_data_parallel_rank;
    }

    /// tp and pp: the ranks over which one replica of the parameters is sharded.
    pub fn get_model_parallel_group(&self) -> Group {
        self.own("mp")
    }

    /// The size of tp: DeepSpeed's ZeRO uses this name for tp.
    pub fn get_model_parallel_world_size(&self) -> usize {
        self.get_tensor_model_parallel_world_size()
    }

    /// The index of this rank in tp: DeepSpeed's ZeRO uses this name for tp.
    pub fn get_model_parallel_rank(&self) -> usize {
        self.get_tensor_model_parallel_rank()
    }

    /// The first rank of this rank's tp group.
    pub fn get_tensor_model_parallel_src_rank(&self) -> usize {
        self.own("tp").ranks()[0]
    }

    /// The ranks of this rank's dp group.
    pub fn get_data_parallel_group_ranks(&self) -> Vec<usize> {
        self.own("dp").ranks().to_vec()
    }

    /// The first and last stage of this rank's pipeline, if the rank is in one of them.
    pub fn get_embedding_group(&self) -> Option<Group> {
        self.group("embd")
    }

    /// The first stage of this rank's pipeline, if the rank is in it.
    pub fn get_position_embedding_group(&self) -> Option<Group> {
        self.group("pos_embd")
    }

    /// tp and dp.
    pub fn get_tensor_and_data_parallel_group(&self) -> Group {
        self.own("tp_dp")
    }

    /// tp, dp and cp.
    pub fn get_tensor_and_data_parallel_group_with_context_parallel(&self) -> Group {
        self.own("tp_dp_cp")
    }

    /// tp and cp.
    pub fn get_tensor_and_context_parallel_group(&self) -> Group {
        self.own("tp_cp")
    }

    /// Expert tp and ep.
    pub fn get_expert_tensor_and_model_parallel_group(&self) -> Group {
        self.own("tp_ep_mp")
    }

    /// Expert tp, ep and pp.
    pub fn get_expert_tensor_model_pipeline_parallel_group(&self) -> Group {
        self.own("tp_ep_pp")
    }

    /// ZeRO++'s groups of all hosts: `local_0`, `local_1`, ..., and with several hosts also
    /// `global_0`, `global_1`, ...
    ///
    /// # Errors
    /// When the hosts are unknown, or have different numbers of ranks.
    pub fn get_all_to_all_groups(&self) -> Result<BTreeMap<String, Group>> {
        let numbered = |kind: &str, groups: Vec<Group>| {
            let named = |(at, group)| (format!("{kind}_{at}"), group);
            groups.into_iter().enumerate().map(named).collect::<Vec<_>>()
        };
        let local = self.state.groups(SAME_HOST)?;
        let global = match local.len() {
            1 => Vec::new(),
            _ => self.state.groups(ACROSS_HOSTS)?,
        };
        let named = numbered("local", local).into_iter();
        Ok(named.chain(numbered("global", global)).collect())
    }

    /// A group that need not contain this rank.
    fn group(&self, name: &str) -> Option<Group> {
        self.state.group(name, self.rank).expect("a built-in group")
    }

    fn own(&self, name: &str) -> Group {
        self.group(name).expect("every rank is in one")
    }

    fn index(&self, name: &str) -> usize {
        let index = self.own(name).index_of(self.rank);
        index.expect("a rank is in its own group")
    }
}
