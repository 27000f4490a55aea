//! Failures during the creation of communicators, and their messages.

use std::num::NonZeroUsize;
use std::time::Duration;

use meshgrad_collectives::registry::{
    BOOTSTRAP_TIMEOUT, Connect, Creation, GroupPlan, Progress, Registry,
};
use meshgrad_collectives::{Error, Kind, Result};
use meshgrad_mesh::{GroupOptions, Hosts};

use crate::registry::world::{NOW, World, folded, group};

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn a_timeout_names_the_missing_members() {
    let world = World::of(4);
    let mut options = GroupOptions::default();
    options.bootstrap_timeout = Some(seconds(30));
    let all = group(&[0, 1, 2, 3]).with_options(options);
    let handles = [0, 2].map(|rank| world.share(rank, "actor.fsdp", &all).unwrap());
    for handle in &handles {
        assert!(handle.connect(seconds(100)).unwrap().is_none());
    }
    assert!(handles[0].connect(seconds(129)).unwrap().is_none());
    let status = world.registries[0].poll(seconds(131));
    assert!(status.is_idle());
    insta::assert_snapshot!(folded(&status.failed[0]), @r"
    rank 0 waited 31s for the communicator of [0, 1, 2, 3] with bootstrap_timeout 30s (for
    `actor.fsdp`): ranks [1, 3] did not join; they have terminated, or do not request this
    group with the same order, channel and options. If they only need more time, raise the
    group option `bootstrap_timeout`
    ");

    let again = handles[0].connect(seconds(140)).err().unwrap();
    assert_eq!(status.failed, [again], "the failure is permanent");
    assert_eq!(world.registries[0].poll(seconds(150)).failed, []);
    let report = world.registries[0].report(&Hosts::Uniform(2)).to_string();
    insta::assert_snapshot!(report.lines().nth(1).unwrap(), @r"  failed       4 ranks   2 hosts  [0, 1, 2, 3] with bootstrap_timeout 30s  for `actor.fsdp`");
    assert!(report.contains(&status.failed[0].to_string()));
}

#[test]
fn creation_has_a_default_time_limit() {
    let world = World::of(2);
    let handle = world.share(0, "tp", &group(&[0, 1])).unwrap();
    assert!(handle.connect(seconds(5)).unwrap().is_none());
    let late = seconds(5) + BOOTSTRAP_TIMEOUT;
    assert!(handle.connect(late - Duration::from_nanos(1)).unwrap().is_none());
    let error = handle.connect(late).err().unwrap();
    assert_eq!(error.kind(), Kind::Stuck, "{error}");
    assert!(error.to_string().starts_with("rank 0 waited 300s for "), "{error}");
}

/// Members that join later do not count a canceled creation as begun. A new request is a new
/// creation.
#[test]
fn a_failed_group_can_be_requested_again() {
    let world = World::of(2);
    let both = group(&[0, 1]);
    let early = world.share(0, "tp", &both).unwrap();
    assert!(early.connect(NOW).unwrap().is_none());
    assert!(early.connect(BOOTSTRAP_TIMEOUT).is_err());
    assert_eq!(world.recording.pending(), []);

    let joins = world.share(0, "other", &both).unwrap();
    assert!(joins.connect(NOW).is_err(), "the failure is shared");
    drop((early, joins));

    let late = world.share(1, "tp", &both).unwrap();
    assert!(late.connect(NOW).unwrap().is_none());
    assert!(late.connect(BOOTSTRAP_TIMEOUT).is_err());
    drop(late);

    let again = world.share_all("tp", &[both]);
    world.materialize(1);
    assert!(world.run_in_order());
    assert_eq!(again[0].get().unwrap().generation(), 2);
}

/// A member that re-creates its communicator does not join a member that still has the old one.
#[test]
fn generations_do_not_mix() {
    let world = World::of(2);
    let both = group(&[0, 1]);
    let [dropped, kept] =
        world.share_all("tp", std::slice::from_ref(&both)).try_into().ok().unwrap();
    world.materialize(1);
    assert!(world.run_in_order());
    drop(dropped);
    let back = world.share(0, "tp", &both).unwrap();
    assert!(back.connect(NOW).unwrap().is_none());
    assert!(kept.connect(NOW).unwrap().is_some());
    assert!(back.connect(NOW).unwrap().is_none());
    assert_eq!(world.recording.pending()[0].missing, [1]);
}

/// A transport that fails.
struct Unplugged {
    /// The number of successful calls. With 0, `begin` fails; otherwise, a later `poll` fails.
    fails_after: usize,
}

fn no_route() -> Error {
    Error::new(Kind::System, "no route to host 10.0.0.7")
}

impl Connect for Unplugged {
    type Communicator = ();
    type Connecting = usize;

    fn begin(&mut self, _: &Creation<'_>) -> Result<usize> {
        self.fails_after.checked_sub(1).ok_or_else(no_route)
    }

    fn poll(&mut self, left: &mut usize) -> Result<Progress<()>> {
        *left = left.checked_sub(1).ok_or_else(no_route)?;
        Ok(Progress::Waiting { missing: Vec::new() })
    }
}

#[test]
fn transport_errors_are_reported() {
    let message = |fails_after: usize| {
        let registry = Registry::new(0, Unplugged { fails_after });
        let both = group(&[0, 1]);
        let handle = registry.share("actor.tp", &both).unwrap().handle().unwrap();
        let _second = registry.share("critic.tp", &both).unwrap();
        let error = (0..5).find_map(|_| handle.connect(NOW).err());
        error.map(|error| error.to_string())
    };
    insta::assert_snapshot!(folded(message(0).unwrap()), @r"
    rank 0 could not create the communicator of [0, 1] (for `actor.tp`, `critic.tp`): no route
    to host 10.0.0.7
    ");
    assert_eq!(message(0), message(3));
    assert_eq!(message(9), None);

    let registry = Registry::new(0, Unplugged { fails_after: 9 });
    let both = group(&[0, 1]);
    let handle = registry.share("tp", &both).unwrap().handle().unwrap();
    assert_eq!(handle.connect(NOW), Ok(None));
    let error = handle.connect(BOOTSTRAP_TIMEOUT).unwrap_err();
    insta::assert_snapshot!(folded(error), @r"
    rank 0 waited 300s for the communicator of [0, 1] (for `tp`): some members did not join,
    and the transport cannot list them. If they only need more time, raise the group option
    `bootstrap_timeout`
    ");
}

/// A transport that refuses the first creation and counts the generations of the others.
#[derive(Default)]
struct FirstFails {
    calls: usize,
}

impl Connect for FirstFails {
    type Communicator = u64;
    type Connecting = u64;

    fn begin(&mut self, creation: &Creation<'_>) -> Result<u64> {
        self.calls += 1;
        (self.calls > 1).then_some(creation.generation).ok_or_else(no_route)
    }

    fn poll(&mut self, generation: &mut u64) -> Result<Progress<u64>> {
        Ok(Progress::Ready(*generation))
    }
}

/// The other members do not learn of a creation that the transport refused. So it takes no
/// generation, and the next creation joins theirs.
#[test]
fn a_refused_creation_takes_no_generation() {
    let registry = Registry::new(0, FirstFails::default());
    let both = group(&[0, 1]);
    let share = || registry.share("tp", &both).unwrap().handle().unwrap();
    let planned = || registry.plan().needs()[0].generation();

    let refused = share();
    assert!(refused.connect(NOW).is_err());
    assert_eq!(planned(), 1);
    drop(refused);

    let again = share();
    assert_eq!(planned(), 1);
    assert_eq!(again.connect(NOW), Ok(Some(&1)));
    assert_eq!(planned(), 1);
    drop(again);
    assert_eq!(share().connect(NOW), Ok(Some(&2)));
}

#[test]
fn a_plan_continues_after_a_failure() {
    let registry = Registry::new(0, Unplugged { fails_after: 0 });
    let others = Registry::new(1, Unplugged { fails_after: 0 });
    let groups = [group(&[0, 1]), group(&[1, 0])];
    let share = |registry: &Registry<Unplugged>| {
        groups.each_ref().map(|group| registry.share("tp", group).unwrap().handle())
    };
    let _handles = [share(&registry), share(&others)];
    let agreed = GroupPlan::agree_all(vec![registry.plan(), others.plan()]).unwrap();
    registry.materialize(&agreed[0], NonZeroUsize::MIN).unwrap();
    let status = registry.poll(NOW);
    assert!(status.is_idle());
    assert_eq!(status.failed.len(), 2);
}

#[test]
fn invalid_groups_and_plans_are_errors() {
    let world = World::of(2);
    let both = group(&[0, 1]);
    let mut wrong = GroupOptions::default();
    wrong.cga_cluster_size = Some(16);
    let refused = world.registries[0].share("actor.tp", &both.clone().with_options(wrong));
    insta::assert_snapshot!(folded(refused.unwrap_err()), @r"
    `actor.tp` requests [0, 1] with cga_cluster_size 16: group option `cga_cluster_size` is
    16, expected 0 to 8
    ");

    let mut handles = world.share_all("tp", &[both]);
    let agreed = GroupPlan::agree_all(world.plans()).unwrap();
    let of_another = world.registries[0].materialize(&agreed[1], NonZeroUsize::MIN);
    insta::assert_snapshot!(of_another.unwrap_err(), @r"the plan of rank 1 was passed to the registry of rank 0");

    handles.remove(0);
    let released = world.registries[0].materialize(&agreed[0], NonZeroUsize::MIN);
    insta::assert_snapshot!(folded(released.unwrap_err()), @r"
    [0, 1] is in the agreed plan, but rank 0 has dropped its handles since: keep them until
    the communicators are created
    ");
}
