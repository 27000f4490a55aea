//! Parallel states: the groups of every rank, states on arbitrary ranks, and several states in one
//! process.

use std::collections::BTreeSet;

use meshgrad_dist::Error;
use meshgrad_dist::parallel::{
    Domain, MegatronExtras, Member, Mpu, Order, ParallelConfig, ParallelState, Parallelism,
    Subgroup, View,
};
use meshgrad_mesh::{Channel, Group, GroupOptions, Mesh, Size};

use crate::table::{config, here, lists, number, ordered, settings, table};

fn ranks(group: Option<Group>) -> Vec<usize> {
    group.unwrap().ranks().to_vec()
}

fn all(state: &ParallelState, name: &str) -> Vec<Vec<usize>> {
    let groups = state.groups(name).unwrap();
    groups.iter().map(|group| group.ranks().to_vec()).collect()
}

/// Groups equal Megatron's groups of the same name, in the order of their first ranks.
#[test]
fn named_groups_match_megatron() {
    let given = [
        ("world", 32),
        ("tp", 2),
        ("pp", 2),
        ("cp_shard", 2),
        ("dp_replicate", 2),
        ("ep", 4),
        ("sp", 1),
    ];
    let config = ordered(&given, Order::MEGATRON).unwrap();
    let extras = MegatronExtras { instances: 2, ..MegatronExtras::default() };
    let groups = config.megatron_groups(&extras).unwrap();
    let state = ParallelState::new(config);
    for kind in &groups {
        let mut lists = kind.lists.clone();
        lists.sort_by_key(|ranks| ranks[0]);
        assert_eq!(all(&state, kind.options), lists, "{}", kind.kind);
    }
    assert!(groups.len() > 15);
}

/// `groups` equals `group` of each member, and a rank is in one group only.
#[test]
fn groups_equal_the_group_of_each_rank() {
    let mut settings = settings(&[("world", 24), ("pp", 3), ("tp", 2), ("sp", 2), ("ep", 4)]);
    settings.ranks_per_host(4, here());
    let config = ParallelConfig::new(&settings).unwrap();
    let odd: Vec<usize> = (0..24).map(|at| 7 * at % 24).collect();
    for state in
        [ParallelState::new(config.clone()), ParallelState::on_ranks(config, &odd).unwrap()]
    {
        for name in state.names() {
            let groups = state.groups(name).unwrap();
            let mut members = BTreeSet::new();
            for group in &groups {
                for rank in group.ranks() {
                    assert_eq!(state.group(name, *rank).unwrap().as_ref(), Some(group), "{name}");
                    assert!(members.insert(*rank), "{name}");
                }
            }
            for rank in state.ranks().iter().filter(|rank| !members.contains(rank)) {
                assert_eq!(state.group(name, *rank).unwrap(), None, "{name}");
            }
            if !["embd", "pos_embd"].contains(&name) {
                assert_eq!(members.len(), 24, "{name}");
            }
        }
    }
}

/// Meshes and groups agree, on any ranks.
#[test]
fn meshes_have_the_same_groups() {
    let config = config(&[("world", 24), ("pp", 3), ("cp_shard", 2), ("tp", 2), ("ep", 4)]);
    let shuffled: Vec<usize> = (0..24).map(|at| 100 + 5 * at % 24).collect();
    for state in [
        ParallelState::new(config.clone()),
        ParallelState::starting_at(config.clone(), 24).unwrap(),
        ParallelState::on_ranks(config, &shuffled).unwrap(),
    ] {
        for (domain, mesh) in state.meshes() {
            assert_eq!(state.mesh(domain).unwrap(), mesh);
            for axis in mesh.axes() {
                for rank in state.ranks() {
                    let ours = state.group(axis.name(), *rank).unwrap();
                    assert_eq!(ours, mesh.group([axis.name()], *rank).unwrap());
                }
            }
        }
    }
}

/// A group has the ranks of its axes in a domain, on any ranks.
#[test]
fn groups_are_products_of_axes() {
    let degrees = [("dp_replicate", 2), ("dp_shard", 3), ("cp_shard", 2), ("tp", 2), ("ep", 6)];
    let config = config(&[&[("world", 24)], &degrees[..]].concat());
    let reversed: Vec<usize> = (0..24).rev().collect();
    let table = [
        ("regular", "fsdp", &["dp_shard", "cp_shard"][..]),
        ("regular", "loss", &["dp_replicate", "dp_shard", "cp_shard"]),
        ("regular", "dp", &["dp_replicate", "dp_shard"]),
        ("regular", "tp", &["tp"]),
        ("regular", "pp", &[]),
        ("regular", "world", &["dp_replicate", "dp_shard", "cp_shard", "tp"]),
        ("dense", "fsdp", &["dp_cp_shard"]),
        ("expert", "ep", &["ep_shard"]),
    ];
    for state in [
        ParallelState::new(config.clone()),
        ParallelState::on_ranks(config.clone(), &reversed).unwrap(),
    ] {
        for (domain, group, axes) in table {
            assert_eq!(state.axes(domain, group).unwrap(), axes, "{domain} {group}");
            for rank in state.ranks() {
                let product = state.mesh(domain).unwrap().group(axes, *rank).unwrap();
                assert_eq!(product, state.group(group, *rank).unwrap(), "{domain} {group}");
            }
        }
        let error = state.axes("batch", "fsdp").unwrap_err().to_string();
        assert_eq!(error, "group `fsdp` is no product of axes of domain `batch`");
        assert!(state.axes("regular", "data").is_err() && state.axes("data", "tp").is_err());
    }
}

/// Actor and critic share ranks but have different degrees; the rollout has its own ranks. Groups
/// of the same ranks are equal.
#[test]
fn several_states_coexist() {
    let actor = ParallelState::new(config(&[("world", 8), ("tp", 2), ("pp", 2)]));
    let critic = ParallelState::new(config(&[("world", 8), ("tp", 2)]));
    let rollout = ParallelState::starting_at(config(&[("world", 4), ("tp", 4)]), 8).unwrap();

    assert_eq!(actor.group("tp", 5).unwrap(), critic.group("tp", 5).unwrap());
    assert_ne!(actor.group("dp", 5).unwrap(), critic.group("dp", 5).unwrap());
    assert_eq!(ranks(actor.group("dp", 5).unwrap()), [5, 7]);
    assert_eq!(ranks(critic.group("dp", 5).unwrap()), [1, 3, 5, 7]);
    assert_eq!(ranks(rollout.group("tp", 9).unwrap()), [8, 9, 10, 11]);
    assert_eq!(rollout.group("tp", 5).unwrap(), None);
    assert_eq!(rollout.ranks(), [8, 9, 10, 11]);

    let meshes = [&actor, &rollout].map(|state| state.mesh("regular").unwrap().clone());
    assert_eq!(Mesh::disjoint(&meshes).unwrap().part_of(9), Some(1));
    assert_eq!(actor.clone(), actor);
    assert_eq!(actor.config().world(), 8);
}

/// Compares with golden lists of Megatron's generator with an offset.
#[test]
fn states_can_start_at_any_rank() {
    let offset = &table("megatron.json")["offset"];
    let config = ordered(&[("world", 8), ("tp", 2), ("pp", 2)], Order::MEGATRON).unwrap();
    let state = ParallelState::starting_at(config, number(offset, "rank_offset").unwrap()).unwrap();
    let names = [
        ("tp", "tp"),
        ("dp", "dp"),
        ("pp", "pp"),
        ("dp-cp", "dp_cp"),
        ("tp-pp", "mp"),
        ("tp-dp", "tp_dp"),
    ];
    for (tokens, name) in names {
        assert_eq!(all(&state, name), lists(&offset["dense"][tokens]), "{name}");
    }
}

#[test]
fn channels_and_options_are_part_of_a_group() {
    let mut options = GroupOptions::default();
    options.max_ctas = Some(8);
    let mut settings = settings(&[("world", 8), ("tp", 8)]);
    settings.options("tp", options.clone(), here());
    let state = ParallelState::new(ParallelConfig::new(&settings).unwrap());

    let tp = state.group("tp", 3).unwrap().unwrap();
    let world = state.group("world", 3).unwrap().unwrap();
    assert_eq!(tp.ranks(), world.ranks());
    assert_eq!(tp.options(), &options);
    assert_ne!(tp, world);
    let gather = state.group_on_channel("world", 3, Channel::Gather).unwrap().unwrap();
    assert_eq!(gather, world.clone().with_channel(Channel::Gather));
    assert_ne!(gather, world);
}

#[test]
fn domains_views_and_subgroups_can_be_declared() {
    let mut settings = settings(&[("world", 16), ("pp", 2), ("tp", 2)]);
    let vision = [("pp", Size::Ranks(2)), ("vision_dp", Size::Auto), ("vision_tp", Size::Ranks(4))];
    settings.domain(Domain::new("vision", vision), here());
    settings.view(View::new("vision_stage", "vision", ["vision_tp", "vision_dp"]), here());
    settings.subgroup(Subgroup::new("ends", "vision_stage", [Member::Last, Member::First]), here());
    settings.subgroup(Subgroup::new("second", "pp", [Member::At(1), Member::At(1)]), here());
    let state = ParallelState::new(ParallelConfig::new(&settings).unwrap());

    assert_eq!(state.mesh("vision").unwrap().to_string(), "pp 2 x vision_dp 2 x vision_tp 4");
    assert_eq!(ranks(state.group("vision_dp", 6).unwrap()), [2, 6]);
    assert_eq!(ranks(state.group("vision_stage", 6).unwrap()), [0, 4, 1, 5, 2, 6, 3, 7]);
    assert_eq!(ranks(state.group("ends", 7).unwrap()), [7, 0]);
    assert_eq!(state.group("ends", 6).unwrap(), None);
    assert_eq!(ranks(state.group("second", 11).unwrap()), [11]);
    assert_eq!(state.group("second", 3).unwrap(), None);
}

/// The first and last stage hold a tied embedding. With one stage, the group has one rank.
#[test]
fn the_embedding_group_has_the_first_and_last_stage() {
    let state = ParallelState::new(config(&[("world", 8), ("pp", 4)]));
    assert_eq!(all(&state, "embd"), [[0, 6], [1, 7]]);
    assert_eq!(all(&state, "pos_embd"), [[0], [1]]);
    assert_eq!(state.group("embd", 2).unwrap(), None);
    assert_eq!(ranks(state.group("embd", 7).unwrap()), [1, 7]);

    let one = ParallelState::new(config(&[("world", 2)]));
    assert_eq!(all(&one, "embd"), [[0], [1]]);
}

#[test]
fn views_flatten_axes() {
    let given = [
        ("dp_replicate", 2),
        ("dp_shard", 2),
        ("cp_shard", 2),
        ("sp", 2),
        ("tp", 2),
        ("ep", 4),
        ("etp", 2),
    ];
    let state = ParallelState::new(config(&given));
    let dense = state.mesh("dense").unwrap();
    for rank in 0..32 {
        let of = |name: &str| state.group(name, rank).unwrap();
        assert_eq!(of("fsdp"), dense.group(["dp_cp_shard"], rank).unwrap());
        let loss = ["dp_replicate", "dp_shard", "cp_shard", "cp_replicate", "sp"];
        assert_eq!(of("loss"), state.mesh("regular").unwrap().group(loss, rank).unwrap());
        assert_eq!(of("sp"), dense.group(["sp"], rank).unwrap());
        assert_eq!(of("ep"), state.mesh("expert").unwrap().group(["ep_shard"], rank).unwrap());
    }
    assert_eq!(ranks(state.group("fsdp", 0).unwrap()), [0, 4, 8, 12]);
}

/// ZeRO++'s groups, as in DeepSpeed for hosts with equal numbers of ranks.
#[test]
fn all_to_all_groups_follow_hosts() {
    let mut several = 0;
    for row in table("deepspeed.json")["all_to_all"].as_array().unwrap() {
        let Some(expected) = row["groups"].as_object() else {
            continue;
        };
        let (world, per_host) =
            (number(row, "world").unwrap(), number(row, "devices_per_host").unwrap());
        let mut settings = settings(&[("world", world)]);
        settings.ranks_per_host(per_host, here());
        let state = ParallelState::new(ParallelConfig::new(&settings).unwrap());
        let ours = state.mpu(0).unwrap().get_all_to_all_groups();
        if world > per_host && world % per_host != 0 {
            let error = ours.unwrap_err().to_string();
            assert!(error.ends_with("needs the same number on each host"), "{error}: {row}");
            continue;
        }
        let ours = ours.unwrap();
        assert_eq!(ours.len(), expected.len());
        for (name, ranks) in expected {
            assert_eq!(serde_json::json!(ours[name].ranks()), *ranks, "{name} of {row}");
        }
        several += usize::from(world > per_host);
    }
    assert!(several > 0);
}

/// Hosts depend on the rank, not on its position in a state.
#[test]
fn hosts_follow_ranks_not_positions() {
    let mut settings = settings(&[("world", 4)]);
    settings.ranks_per_host(4, here());
    let config = ParallelConfig::new(&settings).unwrap();
    let half_and_half = ParallelState::starting_at(config.clone(), 2).unwrap();
    assert_eq!(all(&half_and_half, "all_to_all_local"), [[2, 3], [4, 5]]);
    assert_eq!(all(&half_and_half, "all_to_all_global"), [[2, 4], [3, 5]]);

    let uneven = ParallelState::starting_at(config, 3).unwrap();
    assert_eq!(all(&uneven, "all_to_all_local"), [vec![3], vec![4, 5, 6]]);
    let error = uneven.group("all_to_all_global", 3).unwrap_err();
    assert_eq!(
        error.to_string(),
        "host 0 has 1 ranks of the state and host 1 has 3: `all_to_all_global` needs the same \
         number on each host"
    );
}

/// As in DeepSpeed, the ranks of a sequence are consecutive, and `sp_dp` combines sp and dp.
#[test]
fn sequence_groups_match_deepspeed() {
    for row in table("deepspeed.json")["sequence"].as_array().unwrap() {
        let given = [("world", number(row, "world").unwrap()), ("sp", number(row, "sp").unwrap())];
        let state = ParallelState::new(ordered(&given, "sp-dp").unwrap());
        assert_eq!(all(&state, "sp"), lists(&row["sequence"]));
        assert_eq!(all(&state, "sp_dp"), lists(&row["sequence_data"]));
    }
}

#[test]
fn mpu_getters_return_the_named_groups() {
    let given =
        [("world", 32), ("tp", 2), ("pp", 2), ("cp_shard", 2), ("dp_replicate", 2), ("ep", 4)];
    let state = ParallelState::new(config(&given));
    for rank in 0..32 {
        let mpu = state.mpu(rank).unwrap();
        let of = |name: &str| state.group(name, rank).unwrap();
        let location = |name: &str| of(name).unwrap().index_of(rank).unwrap();
        type Getter = fn(&Mpu) -> Group;
        let getters: [(&str, Getter); 16] = [
            ("mp", Mpu::get_model_parallel_group),
            ("tp", Mpu::get_tensor_model_parallel_group),
            ("pp", Mpu::get_pipeline_model_parallel_group),
            ("dp", Mpu::get_data_parallel_group),
            ("dp_cp", Mpu::get_data_parallel_group_with_context_parallel),
            ("intra_dp_cp", Mpu::get_partial_data_parallel_group_with_context_parallel),
            ("cp", Mpu::get_context_parallel_group),
            ("sp_dp", Mpu::get_sequence_data_parallel_group),
            ("tp_dp", Mpu::get_tensor_and_data_parallel_group),
            ("tp_dp_cp", Mpu::get_tensor_and_data_parallel_group_with_context_parallel),
            ("tp_cp", Mpu::get_tensor_and_context_parallel_group),
            ("ep", Mpu::get_expert_model_parallel_group),
            ("ep_tp", Mpu::get_expert_tensor_parallel_group),
            ("ep_dp", Mpu::get_expert_data_parallel_group),
            ("tp_ep_mp", Mpu::get_expert_tensor_and_model_parallel_group),
            ("tp_ep_pp", Mpu::get_expert_tensor_model_pipeline_parallel_group),
        ];
        for (name, getter) in getters {
            assert_eq!(Some(getter(&mpu)), of(name), "{name}");
        }
        assert_eq!(mpu.get_embedding_group(), of("embd"));
        assert_eq!(mpu.get_position_embedding_group(), of("pos_embd"));
        assert_eq!(mpu.get_tensor_model_parallel_rank(), location("tp"));
        assert_eq!(mpu.get_model_parallel_rank(), location("tp"));
        assert_eq!(mpu.get_expert_model_parallel_rank(), location("ep"));
        assert_eq!(mpu.get_tensor_model_parallel_src_rank(), rank - location("tp"));
        assert_eq!(mpu.get_data_parallel_group_ranks(), ranks(of("dp")));
    }

    let mpu = state.mpu(9).unwrap();
    let sizes = [
        mpu.get_tensor_model_parallel_world_size(),
        mpu.get_model_parallel_world_size(),
        mpu.get_pipeline_model_parallel_world_size(),
        mpu.get_data_parallel_world_size(),
        mpu.get_data_parallel_world_size_with_context_parallel(),
        mpu.get_context_parallel_world_size(),
        mpu.get_sequence_parallel_world_size(),
        mpu.get_sequence_data_parallel_world_size(),
        mpu.get_expert_model_parallel_world_size(),
        mpu.get_expert_tensor_parallel_world_size(),
        mpu.get_expert_data_parallel_world_size(),
    ];
    assert_eq!(sizes, [2, 2, 2, 4, 8, 2, 1, 4, 4, 1, 4]);
    assert_eq!((mpu.rank(), mpu.state()), (9, &state));
}

/// The dp sizes that the tests of DeepSpeed's pull request 7726 expect: experts do not shrink the
/// dp group.
#[test]
fn dp_sizes_match_the_tests_of_the_pull_request() {
    let dp = |given: &[(&str, usize)]| {
        let state = ParallelState::new(ordered(given, Order::DEEPSPEED).unwrap());
        state.mpu(0).unwrap().get_data_parallel_world_size()
    };
    assert_eq!(dp(&[("world", 4), ("tp", 2)]), 2);
    assert_eq!(dp(&[("world", 4)]), 4);
    assert_eq!(dp(&[("world", 4), ("tp", 2), ("ep", 2), ("etp", 2)]), 2);
}

#[test]
fn invalid_queries_are_errors() {
    let state = ParallelState::starting_at(config(&[("world", 4), ("tp", 2)]), 4).unwrap();
    let message = |error: Error| error.to_string();
    assert_eq!(
        message(state.group("fsdpp", 4).unwrap_err()),
        "unknown group `fsdpp`; did you mean `fsdp`?"
    );
    assert_eq!(
        message(state.mesh("experts").unwrap_err()),
        "unknown domain `experts`; did you mean `expert`?"
    );
    assert_eq!(
        message(state.group("all_to_all_local", 4).unwrap_err()),
        "group `all_to_all_local` depends on hosts: set ranks_per_host"
    );
    assert_eq!(
        message(state.mpu(3).unwrap_err()),
        "rank 3 is not in the state (ranks [4, 5, 6, 7])"
    );
    let config = config(&[("world", 4)]);
    for (wrong, part) in [
        (&[1, 2, 3][..], "needs 4 ranks, got 3"),
        (&[1, 2, 3, 1], "rank 1 is at position 0 and again at position 3"),
    ] {
        let error = ParallelState::on_ranks(config.clone(), wrong).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    }
    for far in [usize::MAX, meshgrad_mesh::MAX_RANKS, meshgrad_mesh::MAX_RANKS - 2] {
        let error = ParallelState::starting_at(config.clone(), far).unwrap_err();
        assert!(error.to_string().contains(" is not below the limit of "), "{error}");
    }
    assert_eq!(config.degree(Parallelism::Tp), 1);
    assert_eq!(state.groups_of(4).len(), state.names().count());
    assert_eq!(state.groups_of(3), []);
}
