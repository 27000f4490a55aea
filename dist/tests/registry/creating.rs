//! CreationState communicators: at once and lazily, whatever the interleaving.

use std::collections::BTreeSet;

use meshgrad_mesh::{Channel, Group};
use proptest::prelude::*;

use crate::world::{NOW, Shared, World, group};

/// Which rank goes on next.
#[derive(Debug, Clone)]
enum Interleaving {
    Ascending,
    Descending,
    /// One rank as far as it gets, while all others stand still; then the next.
    OneAhead,
    /// Any.
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

/// A world and groups in it: any subsets, in any order, on a few channels, some of them twice.
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

/// Each rank asks for its groups in an order of its own.
fn ask_in_any_order(world: &World, groups: &[Group], seed: u64) -> Vec<Vec<Shared>> {
    let ranks = 0..world.registries.len();
    let ask = |rank: usize| {
        let order = shuffled(
            groups.len(),
            seed.wrapping_mul(31).wrapping_add(rank as u64),
        );
        let share = |at: usize| world.share(rank, "any", &groups[at]);
        order.into_iter().filter_map(share).collect()
    };
    ranks.map(ask).collect()
}

fn distinct_of(rank: usize, groups: &[Group]) -> BTreeSet<&Group> {
    let of_rank = groups.iter().filter(|group| group.index_of(rank).is_some());
    of_rank.filter(|group| !group.is_singleton()).collect()
}

fn all_are_made_once(world: &World, groups: &[Group]) {
    for rank in 0..world.registries.len() {
        let counts = world.recording.counts(rank);
        let begun: BTreeSet<&Group> = counts.started.iter().collect();
        assert_eq!(begun, distinct_of(rank, groups), "rank {rank}");
        assert_eq!(counts.started.len(), begun.len(), "rank {rank}");
        assert_eq!(counts.created, begun.len(), "rank {rank}");
    }
    assert_eq!(world.recording.pending(), []);
}

proptest! {
    /// However ranks asked, however many creations each has in flight (one: as if it blocked in
    /// each) and whoever goes on first, a plan that the ranks agree on is made.
    #[test]
    fn at_once_never_stands_still(
        (ranks, groups) in worlds(),
        seed: u64,
        at_most in 1..4usize,
        interleaving in interleavings(),
    ) {
        let world = World::of(ranks);
        let handles = ask_in_any_order(&world, &groups, seed);
        world.materialize(at_most);
        prop_assert!(world.run(|round| interleaving.round(ranks, round)));

        all_are_made_once(&world, &groups);
        prop_assert!(handles.iter().flatten().all(|handle| handle.get().is_some()));
    }

    /// One order of all groups, of which each rank's is a part, independent of who asks and how.
    #[test]
    fn the_order_of_creation_follows_from_the_groups((ranks, groups) in worlds(), seed: u64) {
        let orders = [seed, seed.wrapping_add(1)].map(|seed| {
            let world = World::of(ranks);
            let handles = ask_in_any_order(&world, &groups, seed);
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

    /// Lazily, ranks ask in any order, each time going on before it is there.
    #[test]
    fn lazily_never_stands_still((ranks, groups) in worlds(), seed: u64) {
        let world = World::of(ranks);
        let handles = ask_in_any_order(&world, &groups, seed);
        let longest = handles.iter().map(Vec::len).max().unwrap_or(0);
        for step in 0..longest {
            for rank in shuffled(ranks, seed.wrapping_add(step as u64)) {
                if let Some(handle) = handles[rank].get(step) {
                    handle.connect(NOW).unwrap();
                }
            }
        }
        prop_assert!(world.run_in_order());
        all_are_made_once(&world, &groups);
    }

    /// Part of it used before the plan is made.
    #[test]
    fn lazily_and_at_once_go_together(
        (ranks, groups) in worlds(),
        seed: u64,
        interleaving in interleavings(),
    ) {
        let world = World::of(ranks);
        let handles = ask_in_any_order(&world, &groups, seed);
        for handle in handles.iter().filter_map(|of_rank| of_rank.first()) {
            handle.connect(NOW).unwrap();
        }
        world.materialize(1);
        for handle in handles.iter().filter_map(|of_rank| of_rank.last()) {
            handle.connect(NOW).unwrap();
        }
        prop_assert!(world.run(|round| interleaving.round(ranks, round)));
        all_are_made_once(&world, &groups);
    }
}

/// Ranks that block in each creation, in the order in which they ask. Returns whether all were
/// made.
fn blocking_in_the_order_asked(asked: &[Vec<Shared>]) -> bool {
    let mut done = vec![0; asked.len()];
    loop {
        let before = done.clone();
        for (rank, handles) in asked.iter().enumerate() {
            while let Some(handle) = handles.get(done[rank])
                && handle.connect(NOW).unwrap().is_some()
            {
                done[rank] += 1;
            }
        }
        if asked
            .iter()
            .zip(&done)
            .all(|(all, done)| all.len() == *done)
        {
            return true;
        }
        if done == before {
            return false;
        }
    }
}

/// Three ranks in a ring: each has a group with the next and one with the previous.
fn ring() -> [Group; 3] {
    [group(&[0, 1]), group(&[1, 2]), group(&[0, 2])]
}

/// Rank r asks for its group with the next rank first, or second.
fn ask_around(world: &World, next_first: [bool; 3]) -> Vec<Vec<Shared>> {
    let ask = |rank: usize| {
        let (next, previous) = (&ring()[rank], &ring()[(rank + 2) % 3]);
        let order = match next_first[rank] {
            true => [next, previous],
            false => [previous, next],
        };
        order
            .map(|group| world.share(rank, "ring", group).unwrap())
            .into()
    };
    (0..3).map(ask).collect()
}

/// The fault that the canonical order is there for, seen: blocking in the order of asking stands
/// still when all begin around the ring in one direction, and the recording says who waits for
/// whom.
#[test]
fn the_order_of_asking_would_deadlock() {
    for at in 0..8 {
        let next_first = [at & 1 != 0, at & 2 != 0, at & 4 != 0];
        let world = World::of(3);
        let asked = ask_around(&world, next_first);
        let is_circle = next_first == [true; 3] || next_first == [false; 3];
        assert_eq!(
            blocking_in_the_order_asked(&asked),
            !is_circle,
            "{next_first:?}"
        );
    }

    let world = World::of(3);
    let asked = ask_around(&world, [true; 3]);
    assert!(!blocking_in_the_order_asked(&asked));
    let open = world.recording.pending();
    let waits: Vec<_> = open
        .iter()
        .map(|open| (&open.started[..], &open.missing[..]))
        .collect();
    assert_eq!(waits, [(&[0][..], &[1][..]), (&[2], &[0]), (&[1], &[2])]);
}

#[test]
fn the_canonical_order_and_the_lazy_path_do_not() {
    for at in 0..8 {
        let next_first = [at & 1 != 0, at & 2 != 0, at & 4 != 0];
        let world = World::of(3);
        let _asked = ask_around(&world, next_first);
        world.materialize(1);
        assert!(world.run_in_order());

        let world = World::of(3);
        for handle in ask_around(&world, next_first).iter().flatten() {
            handle.connect(NOW).unwrap();
        }
        assert!(world.run_in_order());
    }
}

#[test]
fn no_more_are_in_flight_than_allowed() {
    let world = World::of(2);
    let channels = (0..5).map(|channel| group(&[0, 1]).with_channel(Channel::Own(channel)));
    let handles = world.share_all("channels", &channels.collect::<Vec<_>>());
    world.materialize(2);

    let turn = world.poll(0);
    assert_eq!((turn.in_flight, turn.queued), (2, 3));
    assert_eq!(world.poll(0), turn);
    assert_eq!(world.recording.counts(0).started.len(), 2);
    assert!(world.run_in_order());
    assert!(handles.iter().all(|handle| handle.get().is_some()));
}
