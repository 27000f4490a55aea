//! Sharing and dropping of communicators.

use std::time::Duration;

use meshgrad_collectives::registry::{RecordingConnector, Registry, Share, Stage};
use meshgrad_mesh::{Channel, GroupOptions, Hosts, Mesh};

use crate::registry::world::{NOW, Shared, World, group};

#[test]
fn equal_groups_share_a_communicator() {
    let world = World::of(4);
    let mesh = Mesh::new(&[2, 2], &["dp", "tp"]).unwrap();
    let tp = mesh.groups(["tp"]).unwrap();
    let handles = [
        world.share_all("actor.tp", &tp),
        world.share_all("critic.tp", &tp),
        world.share_all("by hand", &[group(&[0, 1]), group(&[2, 3])]),
    ];
    world.materialize(1);
    assert!(world.run_in_order());

    for rank in 0..4 {
        assert_eq!(world.recording.counts(rank).created, 1);
    }
    let [actor, critic, _] = &handles;
    let same =
        |one: &Shared, other: &Shared| std::ptr::eq(one.get().unwrap(), other.get().unwrap());
    assert!(same(&actor[0], &critic[0]));
    assert!(!same(&actor[0], &actor[1]), "ranks have their own");
    assert_eq!(actor[0].get().unwrap().group(), &group(&[0, 1]));
}

/// Ranks, their order, the channel and the options identify a communicator.
#[test]
fn groups_that_differ_in_any_part_do_not_share() {
    let world = World::of(3);
    let mut options = GroupOptions::default();
    options.max_ctas = Some(4);
    let groups = [
        group(&[0, 1]),
        group(&[1, 0]),
        group(&[0, 1, 2]),
        group(&[0, 1]).with_channel(Channel::Gather),
        group(&[0, 1]).with_channel(Channel::Own(0)),
        group(&[0, 1]).with_options(options),
    ];
    let handles = world.share_all("all", &groups);
    world.materialize(2);
    assert!(world.run_in_order());
    assert_eq!(world.recording.counts(0).created, groups.len());
    assert_eq!(world.recording.counts(2).created, 1);
    drop(handles);
}

#[test]
fn singletons_and_non_members_create_nothing() {
    let world = World::of(3);
    let share =
        |rank: usize, ranks: &[usize]| world.registries[rank].share("any", &group(ranks)).unwrap();
    assert!(matches!(share(1, &[1]), Share::Singleton));
    assert!(matches!(share(1, &[0, 2]), Share::NotMember));
    assert!(matches!(share(1, &[0]), Share::NotMember));

    assert!(world.plans().iter().all(|plan| plan.needs().is_empty()));
    world.materialize(1);
    assert!(world.run_in_order());
    assert_eq!(world.recording.counts(1), Default::default());
    assert_eq!(world.registries[1].report(&Hosts::Uniform(1)).communicators, []);
}

/// Communicators that two parallel states share live until the second one drops them.
#[test]
fn dropping_the_last_handle_drops_the_communicator_but_not_the_registry() {
    let world = World::of(4);
    let tp = [group(&[0, 1]), group(&[2, 3])];
    let dp = [group(&[0, 2]), group(&[1, 3])];
    let mut actor = world.share_all("actor.tp", &tp);
    actor.extend(world.share_all("actor.dp", &dp));
    let critic = world.share_all("critic.tp", &tp);
    world.materialize(1);
    assert!(world.run_in_order());
    let dropped = |rank: usize| world.recording.counts(rank).dropped;

    drop(actor);
    assert_eq!(dropped(0), 1, "dp is the actor's alone");
    let again = critic[0].clone();
    drop(critic);
    assert_eq!((dropped(0), dropped(1)), (1, 2));
    assert_eq!(format!("{again:?}"), "Handle([0, 1] for `critic.tp`)");
    assert!(again.get().is_some());
    drop(again);
    assert_eq!(dropped(0), 2);

    let rollout = world.share_all("rollout.dp", &dp);
    world.materialize(1);
    assert!(world.run_in_order());
    assert_eq!(rollout[0].get().unwrap().generation(), 2);
    assert_eq!(world.recording.counts(0).created, 3);
}

#[test]
fn clones_and_handles_keep_the_registry_alive() {
    let world = World::of(2);
    let other = world.registries[0].clone();
    let both = group(&[0, 1]);
    let handles = [
        other.share("one", &both).unwrap().handle().unwrap(),
        world.share(1, "one", &both).unwrap(),
    ];
    let World { recording, .. } = world;
    drop(other);
    assert!(handles[0].connect(NOW).unwrap().is_none());
    assert!(handles[1].connect(NOW).unwrap().is_some());
    assert!(handles[0].connect(NOW).unwrap().is_some());
    drop(handles);
    assert_eq!(recording.counts(0).dropped, 1);
}

/// Other members wait for a creation that has begun, so it is finished and then dropped.
#[test]
fn a_creation_in_flight_is_finished_when_its_handles_are_dropped() {
    let world = World::of(2);
    let both = group(&[0, 1]);
    let hasty = world.share(0, "hasty", &both).unwrap();
    assert!(hasty.connect(NOW).unwrap().is_none());
    drop(hasty);
    let left = &world.registries[0].report(&Hosts::Uniform(1)).communicators[0];
    assert_eq!((left.stage, left.shared_by.len()), (Stage::Creating, 0));

    let patient = world.share(1, "patient", &both).unwrap();
    assert!(patient.connect(NOW).unwrap().is_some());
    assert!(world.poll(0).is_idle());
    let counts = world.recording.counts(0);
    assert_eq!((counts.created, counts.dropped), (1, 1));
    assert_eq!(world.registries[0].report(&Hosts::Uniform(1)).communicators, []);
}

#[test]
fn the_report_lists_all_communicators() {
    let world = World::of(16);
    let mesh = Mesh::new(&[2, 4, 2], &["pp", "dp", "tp"]).unwrap();
    let mut slow = GroupOptions::default();
    slow.timeout = Some(Duration::from_secs(1800));
    slow.high_priority = Some(true);

    let groups = |names: &[&str]| mesh.groups(names).unwrap();
    let mut handles = world.share_all("actor.tp", &groups(&["tp"]));
    handles.extend(world.share_all("critic.tp", &groups(&["tp"])));
    handles.extend(world.share_all("actor.fsdp", &groups(&["dp"])));
    world.materialize(4);
    assert!(world.run_in_order());
    let gather = groups(&["dp"]).into_iter().map(|g| g.with_channel(Channel::Gather));
    handles.extend(world.share_all("actor.fsdp", &gather.collect::<Vec<_>>()));
    let slow = groups(&["pp"]).into_iter().map(|g| g.with_options(slow.clone()));
    handles.extend(world.share_all("actor.pp", &slow.collect::<Vec<_>>()));
    let all = world.share(5, "grad norm", &group(&(0..16).collect::<Vec<_>>()));
    assert!(all.as_ref().unwrap().connect(NOW).unwrap().is_none());

    let report = world.registries[5].report(&Hosts::Uniform(4));
    insta::assert_snapshot!(report, @r"
    rank 5: 5 communicators, 2 ready
      creating    16 ranks   4 hosts  [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]  for `grad norm`
      ready        4 ranks   2 hosts  [1, 3, 5, 7]  for `actor.fsdp`
      declared     4 ranks   2 hosts  [1, 3, 5, 7] on channel gather  for `actor.fsdp`
      ready        2 ranks    1 host  [4, 5]  for `actor.tp`, `critic.tp`
      declared     2 ranks   2 hosts  [5, 13] with timeout 1800s, high_priority true  for `actor.pp`
    ");
    let json = serde_json::to_string_pretty(&report.communicators[4]).unwrap();
    insta::assert_snapshot!(json, @r#"
    {
      "ranks": [
        5,
        13
      ],
      "channel": "main",
      "options": {
        "high_priority": "true",
        "timeout": "1800s"
      },
      "shared_by": [
        "actor.pp"
      ],
      "hosts": 2,
      "stage": "declared"
    }
    "#);
}

#[test]
fn registries_and_handles_are_send_and_sync() {
    fn check<T: Send + Sync>() {}
    check::<Registry<RecordingConnector>>();
    check::<Shared>();
}

#[test]
fn the_registry_starts_no_thread_and_reads_no_clock() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/registry");
    let mut files = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        for word in ["thread::", "Instant", "SystemTime", "tokio", "async "] {
            assert!(!text.contains(word), "{word} in {}", path.display());
        }
        files += 1;
    }
    assert!(files > 5, "{folder}");
}
