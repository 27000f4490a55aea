//! Ranks compare their plans before any communicator is created.

use std::sync::{Barrier, Mutex};
use std::time::Duration;

use meshgrad_collectives::registry::{AgreedPlan, Exchange, GroupPlan, PlanDigest};
use meshgrad_collectives::{Error, Kind, Result};
use meshgrad_mesh::{Channel, Group, GroupOptions, Mesh};
use proptest::prelude::*;

use crate::registry::world::{Shared, World, folded, group};

fn pairs_and_all() -> Vec<Group> {
    let mesh = Mesh::new(&[2, 2, 2], &["pp", "dp", "tp"]).unwrap();
    let of = |names: &[&str]| mesh.groups(names).unwrap();
    [of(&["pp"]), of(&["dp"]), of(&["tp"]), of(&["dp", "tp"])].concat()
}

fn plans_agree(plans: &[GroupPlan]) -> bool {
    let digests: Vec<PlanDigest> = plans.iter().map(GroupPlan::digest).collect();
    PlanDigest::agree(&digests)
}

/// `rank 3` or `ranks [0, 1]`.
fn text(ranks: &[usize]) -> String {
    match ranks {
        [rank] => format!("rank {rank}"),
        _ => format!("ranks {ranks:?}"),
    }
}

/// How a rank's request differs from those of the other members.
#[derive(Debug, Clone, Copy)]
enum Fault {
    Missing,
    OtherChannel,
    OtherOptions,
    OtherOrder,
}

fn faulty(group: &Group, fault: Fault) -> Option<Group> {
    let mut ranks = group.ranks().to_vec();
    let mut options = GroupOptions::default();
    match fault {
        Fault::Missing => None,
        Fault::OtherChannel => Some(group.clone().with_channel(Channel::Gather)),
        Fault::OtherOptions => {
            options.timeout = Some(Duration::from_secs(10));
            Some(group.clone().with_options(options))
        }
        Fault::OtherOrder => {
            ranks.reverse();
            Some(crate::registry::world::group(&ranks))
        }
    }
}

/// The requests of all ranks. Each fault is a rank, the index of a group, and how its request
/// differs.
fn plans_with(faults: &[(usize, usize, Fault)]) -> (World, Vec<Shared>) {
    let world = World::of(8);
    let mut handles = Vec::new();
    for (at, group) in pairs_and_all().iter().enumerate() {
        for rank in group.ranks() {
            let is_at = |fault: &&(usize, usize, Fault)| (fault.0, fault.1) == (*rank, at);
            let requested = match faults.iter().find(is_at) {
                Some((_, _, fault)) => faulty(group, *fault),
                None => Some(group.clone()),
            };
            handles.extend(requested.and_then(|requested| world.share(*rank, "actor", &requested)));
        }
    }
    (world, handles)
}

fn faults() -> impl Strategy<Value = Fault> {
    use Fault::{Missing, OtherChannel, OtherOptions, OtherOrder};
    prop::sample::select(vec![Missing, OtherChannel, OtherOptions, OtherOrder])
}

proptest! {
    /// Any single fault is detected, and the error lists the ranks.
    #[test]
    fn one_fault_is_detected_and_named(
        (at, member) in (0..pairs_and_all().len(), any::<prop::sample::Index>()),
        fault in faults(),
    ) {
        let expected = &pairs_and_all()[at];
        let rank = expected.ranks()[member.index(expected.len())];
        let (world, _handles) = plans_with(&[(rank, at, fault)]);
        prop_assert!(!plans_agree(&world.plans()));

        let error = GroupPlan::agree_all(world.plans()).unwrap_err();
        let others: Vec<usize> =
            expected.ranks().iter().copied().filter(|other| *other != rank).collect();
        let (one, others) = (format!("rank {rank}"), text(&others));
        let (needs, lacks) = (format!("{one} needs "), format!("but {others} do"));
        let (need, lack) = (format!("{others} need"), format!("but {one} does not"));
        let names = |needs: &str, lacks: &str| {
            let text = error.to_string();
            text.contains(&format!("the plans differ: {needs}")) && text.contains(lacks)
        };
        prop_assert!(names(&needs, &lacks) || names(&need, &lack), "{}", error);
        prop_assert_eq!(world.recording.counts(rank).started.len(), 0);
    }

    /// Several faults do not cancel out in the sum of the digests.
    #[test]
    fn several_faults_are_detected(
        several in prop::collection::vec((0..8usize, 0..pairs_and_all().len(), faults()), 1..6),
    ) {
        let groups = pairs_and_all();
        let (world, _handles) = plans_with(&several);
        let is_any = several.iter().any(|(rank, at, _)| groups[*at].index_of(*rank).is_some());
        let all_alike = |at: usize| {
            let of_member = |rank: &usize| {
                let found = several.iter().find(|fault| (fault.0, fault.1) == (*rank, at));
                found.map_or(Some(groups[at].clone()), |fault| faulty(&groups[at], fault.2))
            };
            let requested: Vec<_> = groups[at].ranks().iter().map(of_member).collect();
            requested.windows(2).all(|pair| pair[0] == pair[1])
        };
        let are_consistent = (0..groups.len()).all(all_alike);
        prop_assert_eq!(GroupPlan::agree_all(world.plans()).is_ok(), are_consistent);
        prop_assert!(is_any || are_consistent);
    }
}

#[test]
fn a_disagreement_names_the_group_the_ranks_and_the_remedy() {
    let error = |faults: &[(usize, usize, Fault)]| {
        let (world, _handles) = plans_with(faults);
        GroupPlan::agree_all(world.plans()).unwrap_err().to_string()
    };
    insta::assert_snapshot!(folded(error(&[(2, 12, Fault::Missing)])), @r"
    no communicator was created because the plans differ: ranks [0, 1, 3] need [0, 1, 2, 3]
    (for `actor`), but rank 2 does not. All members of a group must request the same ranks in
    the same order, with the same channel and options
    ");
    insta::assert_snapshot!(folded(error(&[(2, 12, Fault::OtherChannel)])), @r"
    no communicator was created because the plans differ: ranks [0, 1, 3] need [0, 1, 2, 3]
    (for `actor`), but rank 2 does not; it needs [0, 1, 2, 3] on channel gather instead. All
    members of a group must request the same ranks in the same order, with the same channel
    and options
    ");
    let missing_and_other_options = [(1, 0, Fault::Missing), (1, 1, Fault::OtherOptions)];
    insta::assert_snapshot!(folded(error(&missing_and_other_options)), @r"
    no communicator was created because the plans differ: rank 5 needs [1, 5] (for `actor`),
    but rank 1 does not; it needs [1, 5] with timeout 10s instead. All members of a group must
    request the same ranks in the same order, with the same channel and options
    ");
    let missing_and_other_order = [(3, 13, Fault::Missing), (4, 13, Fault::OtherOrder)];
    insta::assert_snapshot!(folded(error(&missing_and_other_order)), @r"
    no communicator was created because the plans differ: ranks [5, 6, 7] need [4, 5, 6, 7]
    (for `actor`), but rank 4 does not; it needs [7, 6, 5, 4] instead. All members of a group
    must request the same ranks in the same order, with the same channel and options
    ");

    let world = World::of(2);
    let both = group(&[0, 1]);
    let handles = world.share_all("actor.tp", std::slice::from_ref(&both));
    world.materialize(1);
    assert!(world.run_in_order());
    let [kept, dropped] = handles.try_into().ok().unwrap();
    drop(dropped);
    let _again = world.share(1, "critic.tp", &both);
    insta::assert_snapshot!(folded(GroupPlan::agree_all(world.plans()).unwrap_err()), @r"
    no communicator was created because the plans differ: rank 0 needs [0, 1] (for
    `actor.tp`), but rank 1 does not; it needs [0, 1] (communicator no. 2) instead. If one
    member drops its last handle and requests the group again, all members must
    ");
    drop(kept);

    let world = World::of(2);
    let _too_far = world.share(0, "actor.dp", &group(&[0, 2, 4]));
    insta::assert_snapshot!(folded(GroupPlan::agree_all(world.plans()).unwrap_err()), @r"
    ranks [2, 4] of [0, 2, 4] (for `actor.dp`) are outside the world of 2 ranks: start more
    ranks, or request a group within the world
    ");
}

/// A rank with a transposed mesh has the same groups under different names.
#[test]
fn meshes_with_the_same_groups_are_distinguished() {
    let world = World::of(4);
    let meshes = [["dp", "tp"], ["tp", "dp"]].map(|names| Mesh::new(&[2, 2], &names).unwrap());
    let of_rank = |rank: usize| &meshes[usize::from(rank == 3)];
    let mut handles = Vec::new();
    for rank in 0..4 {
        for axis in ["dp", "tp"] {
            let group = of_rank(rank).group([axis], rank).unwrap().unwrap();
            handles.push(world.share(rank, axis, &group));
        }
    }
    assert!(plans_agree(&world.plans()));

    let with_mesh = |plan: GroupPlan| {
        let mesh = of_rank(plan.rank());
        plan.with_mesh(mesh)
    };
    let plans: Vec<GroupPlan> = world.plans().into_iter().map(with_mesh).collect();
    assert!(!plans_agree(&plans));
    insta::assert_snapshot!(folded(GroupPlan::agree_all(plans).unwrap_err()), @r"
    no communicator was created: ranks have different meshes: ranks [0, 1, 2] have dp 2 x tp 2
    (digest 8bc9ce67188f003d); ranks [3] have tp 2 x dp 2 (digest 3cb9d1f4d5b65acd)
    ");

    let mut plans = world.plans();
    plans[1] = plans[1].clone().with_mesh(&meshes[0]);
    insta::assert_snapshot!(folded(GroupPlan::agree_all(plans).unwrap_err()), @r"
    no communicator was created: ranks have different meshes: ranks [0, 2, 3] have no mesh
    (digest 0000000000000000); ranks [1] have dp 2 x tp 2 (digest 8bc9ce67188f003d)
    ");
}

/// An exchange between threads.
struct Lobby {
    messages: Mutex<Vec<Vec<u8>>>,
    barrier: Barrier,
}

struct Seat<'a> {
    lobby: &'a Lobby,
    rank: usize,
    /// The bytes of each message.
    sent: Vec<usize>,
    /// Whether the first messages of other ranks arrive corrupted.
    is_bad: bool,
}

impl Exchange for Seat<'_> {
    fn all_gather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.sent.push(mine.len());
        self.lobby.messages.lock().unwrap()[self.rank] = mine.to_vec();
        self.lobby.barrier.wait();
        let mut all = self.lobby.messages.lock().unwrap().clone();
        self.lobby.barrier.wait();
        if self.is_bad && self.sent.len() == 1 {
            let others = all.iter_mut().enumerate().filter(|(rank, _)| *rank != self.rank);
            others.for_each(|(_, message)| message[0] ^= 1);
        }
        Ok(all)
    }
}

/// Each rank's result, and the sizes of the messages that it sent.
fn agree_by_exchange(plans: Vec<GroupPlan>, is_bad: bool) -> Vec<(Result<AgreedPlan>, Vec<usize>)> {
    let lobby = Lobby {
        messages: Mutex::new(vec![Vec::new(); plans.len()]),
        barrier: Barrier::new(plans.len()),
    };
    std::thread::scope(|scope| {
        let agree = |plan: GroupPlan| {
            let mut seat = Seat { lobby: &lobby, rank: plan.rank(), sent: Vec::new(), is_bad };
            (plan.agree(&mut seat), seat.sent)
        };
        let threads: Vec<_> =
            plans.into_iter().map(|plan| scope.spawn(move || agree(plan))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn agreement_takes_one_exchange_of_24_bytes() {
    let (world, _handles) = plans_with(&[]);
    for (rank, (agreed, sent)) in agree_by_exchange(world.plans(), false).into_iter().enumerate() {
        assert_eq!(agreed.unwrap().plan(), &world.plans()[rank]);
        assert_eq!(sent, [24]);
    }
}

#[test]
fn all_ranks_return_the_same_error() {
    let (world, _handles) = plans_with(&[(7, 3, Fault::OtherOptions)]);
    let expected = GroupPlan::agree_all(world.plans()).unwrap_err();
    for (agreed, sent) in agree_by_exchange(world.plans(), false) {
        assert_eq!(agreed.unwrap_err(), expected);
        assert_eq!(sent.len(), 2);
    }
}

/// If the exchange corrupts digests, equal plans are not reported as different.
#[test]
fn equal_plans_are_not_reported_as_different() {
    let (world, _handles) = plans_with(&[]);
    for (agreed, _) in agree_by_exchange(world.plans(), true) {
        let error = agreed.unwrap_err();
        assert_eq!(
            error.to_string(),
            "the plans of 8 ranks are equal but their digests differ: run the same version on all \
             ranks"
        );
    }
}

/// A broken control plane.
struct Broken(Vec<Vec<u8>>);

impl Exchange for Broken {
    fn all_gather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        match self.0.as_slice() {
            [] => Err(Error::new(Kind::PeerFailed, "rank 7 closed its connection")),
            others => Ok([&[mine.to_vec()], others].concat()),
        }
    }
}

#[test]
fn a_broken_exchange_is_an_error() {
    let world = World::of(2);
    let _handles = world.share_all("tp", &[group(&[0, 1])]);
    let error = |rank: usize, messages: &[&[u8]]| {
        let messages = messages.iter().map(|bytes| bytes.to_vec()).collect();
        let plan = world.registries[rank].plan();
        plan.agree(&mut Broken(messages)).unwrap_err().to_string()
    };
    let errors =
        [error(0, &[]), error(0, &[b"short"]), error(0, &[&[7; 24]]), error(1, &[&[7; 24]])];
    insta::assert_snapshot!(folded(errors.join("

")), @r"
    rank 0 could not compare its plan with other ranks: rank 7 closed its connection

    rank 0
    could not compare its plan with other ranks: rank 1 sent 5 bytes, expected 24

    rank 0
    could not compare its plan with other ranks: a plan cannot be read: expected value at line
    1 column 1

    rank 1 could not compare its plan with other ranks: the exchange returned 2
    messages, and this rank's own message is not at index 1
    ");
}
