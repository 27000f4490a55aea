//! Planned and lazy creation of communicators, with ranks interleaved in any way.

use std::collections::BTreeSet;

use meshgrad_mesh::{Channel, Group};
use proptest::prelude::*;

use crate::registry::world::{NOW, Shared, World, group};

/// The order in which ranks run.
#[derive(Debug, Clone)]
enum Interleaving {
    Ascending,
    Descending,
    /// Each rank runs as far as possible before the next one runs.
    OneAhead,
    /// Random order.
    Shuffled(u64),
}

impl Interleaving {
    fn round(&self, world: usize, round: usize) -> Vec<usize> {
        match self {
            Interleaving::Ascending => (0..world).collect(),
            Interleaving::Descending => (0..world).rev().collect(),
            Interleaving::OneAhead => (0..world).flat_map(|rank| [rank; 9]).collect(),
            Interleaving::Shuffled(seed) => shuffled(world, seed.wrapping_add(round as u64)),
        }
    }
}

fn shuffled(len: usize, seed: u64) -> Vec<usize> {
    let key = |at: &usize| twox_hash::XxHash3_64::oneshot_with_seed(seed, &at.to_le_bytes());
    let mut order: Vec<usize> = (0..len).collect();
    order.sort_by_key(key);
    order
}

fn interleavings() -> impl Strategy<Value = Interleaving> {
    prop_oneof![
        Just(Interleaving::Ascending),
        Just(Interleaving::Descending),
        Just(Interleaving::OneAhead),
        any::<u64>().prop_map(Interleaving::Shuffled),
    ]
}

/// The size of a world and random groups: any subsets in any order, on two channels, possibly
/// repeated.
fn worlds() -> impl Strategy<Value = (usize, Vec<Group>)> {
    (2..=10usize).prop_flat_map(|world| {
        let ranks = Just((0..world).collect::<Vec<_>>()).prop_shuffle();
        let of_ranks = |(ranks, len, channel): (Vec<usize>, usize, u16)| {
            group(&ranks[..len]).with_channel(Channel::Own(channel))
        };
        let one = (ranks, 1..=world, 0..2u16).prop_map(of_ranks);
        (Just(world), prop::collection::vec(one, 1..16))
    })
}

/// Each rank requests its groups in its own order.
fn request_in_any_order(world: &World, groups: &[Group], seed: u64) -> Vec<Vec<Shared>> {
    let ranks = 0..world.registries.len();
    let request = |rank: usize| {
        let order = shuffled(groups.len(), seed.wrapping_mul(31).wrapping_add(rank as u64));
        let share = |at: usize| world.share(rank, "any", &groups[at]);
        order.into_iter().filter_map(share).collect()
    };
    ranks.map(request).collect()
}

fn distinct_of(rank: usize, groups: &[Group]) -> BTreeSet<&Group> {
    let of_rank = groups.iter().filter(|group| group.index_of(rank).is_some());
    of_rank.filter(|group| !group.is_singleton()).collect()
}

fn assert_created_once(world: &World, groups: &[Group]) {
    for rank in 0..world.registries.len() {
        let counts = world.recording.counts(rank);
        let started: BTreeSet<&Group> = counts.started.iter().collect();
        assert_eq!(started, distinct_of(rank, groups), "rank {rank}");
        assert_eq!(counts.started.len(), started.len(), "rank {rank}");
        assert_eq!(counts.created, started.len(), "rank {rank}");
    }
    assert_eq!(world.recording.pending(), []);
}

proptest! {
    /// An agreed plan is always created completely, for any order of requests, any interleaving and
    /// any limit of creations in flight. A limit of 1 is like a transport that blocks.
    #[test]
    fn planned_creation_never_deadlocks(
        (ranks, groups) in worlds(),
        seed: u64,
        at_most in 1..4usize,
        interleaving in interleavings(),
    ) {
        let world = World::of(ranks);
        let handles = request_in_any_order(&world, &groups, seed);
        world.materialize(at_most);
        prop_assert!(world.run(|round| interleaving.round(ranks, round)));

        assert_created_once(&world, &groups);
        prop_assert!(handles.iter().flatten().all(|handle| handle.get().is_some()));
    }

    /// Each rank's creation order is a subsequence of one global order, which does not depend on
    /// the order of the requests.
    #[test]
    fn creation_order_depends_only_on_the_groups((ranks, groups) in worlds(), seed: u64) {
        let orders = [seed, seed.wrapping_add(1)].map(|seed| {
            let world = World::of(ranks);
            let handles = request_in_any_order(&world, &groups, seed);
            world.materialize(1);
            assert!(world.run_in_order());
            drop(handles);
            (0..ranks).map(|rank| world.recording.counts(rank).started).collect::<Vec<_>>()
        });
        prop_assert_eq!(&orders[0], &orders[1]);
        for order in &orders[0] {
            prop_assert!(order.is_sorted_by(|one, next| one.len() >= next.len()));
        }
        for (one, other) in orders[0].iter().flat_map(|a| orders[0].iter().map(move |b| (a, b))) {
            let common = |of: &[Group], with: &[Group]| -> Vec<Group> {
                of.iter().filter(|group| with.contains(group)).cloned().collect()
            };
            prop_assert_eq!(common(one, other), common(other, one));
        }
    }

    /// Ranks connect in any order and continue without waiting.
    #[test]
    fn lazy_creation_never_deadlocks((ranks, groups) in worlds(), seed: u64) {
        let world = World::of(ranks);
        let handles = request_in_any_order(&world, &groups, seed);
        let longest = handles.iter().map(Vec::len).max().unwrap_or(0);
        for step in 0..longest {
            for rank in shuffled(ranks, seed.wrapping_add(step as u64)) {
                if let Some(handle) = handles[rank].get(step) {
                    handle.connect(NOW).unwrap();
                }
            }
        }
        prop_assert!(world.run_in_order());
        assert_created_once(&world, &groups);
    }

    /// Some handles are connected before the plan is created.
    #[test]
    fn lazy_and_planned_creation_can_be_mixed(
        (ranks, groups) in worlds(),
        seed: u64,
        interleaving in interleavings(),
    ) {
        let world = World::of(ranks);
        let handles = request_in_any_order(&world, &groups, seed);
        for handle in handles.iter().filter_map(|of_rank| of_rank.first()) {
            handle.connect(NOW).unwrap();
        }
        world.materialize(1);
        for handle in handles.iter().filter_map(|of_rank| of_rank.last()) {
            handle.connect(NOW).unwrap();
        }
        prop_assert!(world.run(|round| interleaving.round(ranks, round)));
        assert_created_once(&world, &groups);
    }
}

/// Simulates ranks that block in each creation, in the order of their requests. Returns whether all
/// were created.
fn blocking_in_request_order(requested: &[Vec<Shared>]) -> bool {
    let mut done = vec![0; requested.len()];
    loop {
        let before = done.clone();
        for (rank, handles) in requested.iter().enumerate() {
            while let Some(handle) = handles.get(done[rank])
                && handle.connect(NOW).unwrap().is_some()
            {
                done[rank] += 1;
            }
        }
        if requested.iter().zip(&done).all(|(all, done)| all.len() == *done) {
            return true;
        }
        if done == before {
            return false;
        }
    }
}

/// Three ranks in a ring: each shares a group with the next and one with the previous rank.
fn ring() -> [Group; 3] {
    [group(&[0, 1]), group(&[1, 2]), group(&[0, 2])]
}

/// Rank r requests its group with the next rank first or second.
fn request_around(world: &World, next_first: [bool; 3]) -> Vec<Vec<Shared>> {
    let request = |rank: usize| {
        let (next, previous) = (&ring()[rank], &ring()[(rank + 2) % 3]);
        let order = match next_first[rank] {
            true => [next, previous],
            false => [previous, next],
        };
        order.map(|group| world.share(rank, "ring", group).unwrap()).into()
    };
    (0..3).map(request).collect()
}

/// The deadlock that the creation order prevents: if all ranks start in the same direction of the
/// ring and block in request order, none can continue. The recording lists the missing members.
#[test]
fn blocking_in_request_order_deadlocks() {
    for at in 0..8 {
        let next_first = [at & 1 != 0, at & 2 != 0, at & 4 != 0];
        let world = World::of(3);
        let requested = request_around(&world, next_first);
        let is_circle = next_first == [true; 3] || next_first == [false; 3];
        assert_eq!(blocking_in_request_order(&requested), !is_circle, "{next_first:?}");
    }

    let world = World::of(3);
    let requested = request_around(&world, [true; 3]);
    assert!(!blocking_in_request_order(&requested));
    let pending = world.recording.pending();
    let waits: Vec<_> =
        pending.iter().map(|pending| (&pending.started[..], &pending.missing[..])).collect();
    assert_eq!(waits, [(&[0][..], &[1][..]), (&[2], &[0]), (&[1], &[2])]);
}

#[test]
fn planned_and_lazy_creation_in_a_ring_do_not_deadlock() {
    for at in 0..8 {
        let next_first = [at & 1 != 0, at & 2 != 0, at & 4 != 0];
        let world = World::of(3);
        let _asked = request_around(&world, next_first);
        world.materialize(1);
        assert!(world.run_in_order());

        let world = World::of(3);
        for handle in request_around(&world, next_first).iter().flatten() {
            handle.connect(NOW).unwrap();
        }
        assert!(world.run_in_order());
    }
}

#[test]
fn creations_in_flight_are_limited() {
    let world = World::of(2);
    let channels = (0..5).map(|channel| group(&[0, 1]).with_channel(Channel::Own(channel)));
    let handles = world.share_all("channels", &channels.collect::<Vec<_>>());
    world.materialize(2);

    let status = world.poll(0);
    assert_eq!((status.in_flight, status.queued), (2, 3));
    assert_eq!(world.poll(0), status);
    assert_eq!(world.recording.counts(0).started.len(), 2);
    assert!(world.run_in_order());
    assert!(handles.iter().all(|handle| handle.get().is_some()));
}
