//! Compares the number of communicators with the number of groups that Megatron and torchtitan
//! create.
//!
//! Their groups (Megatron-LM d98e8a6, torchtitan b5bcd76 on torch 2.15) were counted by running
//! their code with a stub in place of group creation.

use std::collections::BTreeSet;

use meshgrad_mesh::{Group, Mesh};

use crate::registry::generators::{Kind, Megatron, Titan};
use crate::registry::world::{Shared, World, group};

/// The number of calls that create a group (every rank makes the same calls), and the number of
/// those groups that contain rank 0.
#[derive(Debug, PartialEq, Eq)]
struct PeerCounts {
    calls: usize,
    of_rank_0: usize,
}

fn peer_counts(kinds: &[Kind]) -> PeerCounts {
    let lists = || kinds.iter().flat_map(|(_, lists)| lists);
    PeerCounts {
        calls: lists().count(),
        of_rank_0: lists().filter(|ranks| ranks.contains(&0)).count(),
    }
}

/// All ranks request all their groups and create them from a plan, one at a time.
fn create_all(world: usize, kinds: &[Kind]) -> (World, Vec<Shared>) {
    let world_of_ranks = World::of(world);
    let mut handles = Vec::new();
    for (name, lists) in kinds {
        let groups: Vec<Group> = lists.iter().map(|ranks| group(ranks)).collect();
        handles.extend(world_of_ranks.share_all(name, &groups));
    }
    world_of_ranks.materialize(1);
    assert!(world_of_ranks.run_in_order());
    (world_of_ranks, handles)
}

/// Every rank has one communicator per distinct group of several ranks.
fn all_ranks_share(world: &World, kinds: &[Kind]) {
    let mut distinct = vec![BTreeSet::new(); world.registries.len()];
    for ranks in kinds.iter().flat_map(|(_, lists)| lists).filter(|ranks| ranks.len() > 1) {
        for rank in ranks {
            distinct[*rank].insert(ranks);
        }
    }
    for (rank, distinct) in distinct.iter().enumerate() {
        assert_eq!(world.recording.counts(rank).created, distinct.len(), "rank {rank}");
    }
}

fn megatron(world: usize, [tp, pp, cp, ep, etp]: [usize; 5], instances: usize) -> Megatron {
    Megatron { world, tp, pp, cp, ep, etp, instances }
}

#[test]
fn megatron_creates_20_or_23_groups_per_rank_and_we_create_1_to_11() {
    let rows = [
        (megatron(8, [1, 1, 1, 1, 1], 1), 118, 20, 1),
        (megatron(8, [2, 2, 1, 1, 2], 1), 83, 20, 6),
        (megatron(8, [2, 1, 2, 4, 1], 1), 84, 20, 7),
        (megatron(16, [2, 2, 2, 2, 1], 2), 168, 23, 10),
        (megatron(256, [2, 8, 1, 32, 1], 1), 1_715, 20, 7),
        (megatron(1024, [8, 8, 2, 1, 8], 1), 4_745, 20, 11),
        (megatron(1024, [2, 8, 1, 64, 1], 1), 6_165, 20, 10),
    ];
    for (config, calls, of_rank_0, communicators) in rows {
        let kinds = config.kinds();
        assert_eq!(peer_counts(&kinds), PeerCounts { calls, of_rank_0 });

        let (world, handles) = create_all(config.world, &kinds);
        assert_eq!(world.recording.counts(0).created, communicators, "{calls} calls");
        all_ranks_share(&world, &kinds);
        drop(handles);
        assert_eq!(world.recording.counts(0).dropped, communicators);
    }
}

fn titan([pp, dp_replicate, dp_shard, cp, tp, ep]: [usize; 6]) -> Titan {
    Titan { pp, dp_replicate, dp_shard, cp, tp, ep }
}

/// The world group exists before torchtitan starts, so its creation is not counted as a call. If an
/// axis spans the world, we create one more communicator.
#[test]
fn torchtitan_creates_8_to_18_groups_per_rank_and_we_create_3_to_8() {
    let rows = [
        (titan([2, 1, 2, 1, 2, 1]), 94, 11, 3),
        (titan([1, 1, 4, 1, 2, 8]), 100, 8, 2),
        (titan([4, 1, 8, 1, 2, 8]), 552, 13, 5),
        (titan([8, 1, 16, 1, 2, 32]), 2_120, 13, 4),
        (titan([8, 2, 16, 2, 2, 64]), 5_792, 18, 8),
    ];
    for (config, calls, of_rank_0, distinct) in rows {
        let all = config.kinds();
        let is_world = |kind: &&Kind| kind.1.len() == 1;
        let is_real = |kind: &&Kind| config.is_real(kind.0, kind.1[0].len());
        let called: Vec<Kind> = all.iter().filter(|kind| !is_world(kind)).cloned().collect();
        let real: Vec<Kind> = all.iter().filter(is_real).cloned().collect();
        assert_eq!(peer_counts(&called).calls, calls);
        let is_made = |kind: &&Kind| !is_world(kind);
        let made_by_them: Vec<Kind> = real.iter().filter(is_made).cloned().collect();
        assert_eq!(peer_counts(&made_by_them).of_rank_0, of_rank_0, "{calls} calls");

        let (world, _handles) = create_all(config.world(), &real);
        let expected = distinct + usize::from(real.iter().any(|kind| is_world(&kind)));
        assert_eq!(world.recording.counts(0).created, expected, "{calls} calls");
        all_ranks_share(&world, &real);
    }
}

/// torch creates 6 groups per rank: one per axis of each mesh.
#[test]
fn two_equal_meshes_share_communicators() {
    let mesh = || Mesh::new(&[2, 2, 2], &["a", "b", "c"]).unwrap();
    let axes = ["a", "b", "c"];
    let kinds = [mesh(), mesh()].map(|mesh| axes.map(|axis| mesh.groups([axis]).unwrap()));
    let world = World::of(8);
    let handles = kinds.as_flattened().iter();
    let handles: Vec<Shared> = handles.flat_map(|groups| world.share_all("mesh", groups)).collect();
    assert_eq!(handles.len(), 8 * 6);
    world.materialize(1);
    assert!(world.run_in_order());
    assert!((0..8).all(|rank| world.recording.counts(rank).created == 3));
}
