//! Replicas that share their reads.

use std::thread;

use proptest::prelude::*;

use super::super::{Exchange, Replica, Stats, execute_shared};
use super::world::World;
use super::{Collect, backend, large, options};
use crate::plan::{Catalog, Digest, LoadPlan, Options};
use crate::source::{BackendChoice, Sources};
use crate::{Folder, Kind, Result};

/// Executes one plan per replica at the same time.
fn execute_all(plans: &[&LoadPlan], sources: &[Sources]) -> Vec<(Result<Stats>, Collect)> {
    thread::scope(|scope| {
        let replicas = Replica::all(plans.len()).into_iter();
        let threads = replicas.zip(plans).zip(sources).map(|((replica, plan), sources)| {
            scope.spawn(move || {
                let sink = Collect::default();
                let stats = execute_shared(plan, sources, &sink, &replica, &|_| {});
                (stats, sink)
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|it| it.join().unwrap()).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Every replica gets all targets, and together they read as many bytes as one alone.
    #[test]
    fn replicas_read_each_byte_once(
        seed in any::<u64>(),
        requests in 1..5usize,
        depth in 0..7u32,
        options in options(),
        choice in backend(),
        replicas in 1..5usize,
    ) {
        let mut world = World::with_requests(seed, requests, depth);
        let folder = world.write();
        let folder = Folder::open(folder.path()).unwrap();
        let (catalog, requests) = (Catalog::of(&folder), &world.requests);
        let plan = LoadPlan::new(&world.graph, &catalog, requests, &options).unwrap();
        let sources: Vec<Sources> =
            (0..replicas).map(|_| Sources::open(&folder, choice).unwrap()).collect();

        let mut read = 0;
        for (stats, sink) in execute_all(&vec![&plan; replicas], &sources) {
            read += stats.unwrap().read_bytes;
            prop_assert_eq!(sink.done.into_inner().unwrap(), world.expected());
            prop_assert!(sink.most_open.into_inner() <= plan.memory().targets);
        }
        prop_assert_eq!(read, plan.read_bytes());
    }
}

/// The replica whose disk fails reports its error; the others name that replica and do not block.
#[test]
fn one_replicas_error_stops_all() {
    let (_here, folder, plan) = large();
    let (_there, elsewhere, _) = large();
    let sources: Vec<Sources> = [&folder, &elsewhere, &folder]
        .map(|it| Sources::open(it, BackendChoice::Auto).unwrap())
        .into();
    let path = elsewhere.files()[0].path();
    let broken = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    broken.set_len(1 << 20).unwrap();

    let results = execute_all(&[&plan; 3], &sources);
    for (replica, (stats, _)) in results.into_iter().enumerate() {
        let error = stats.unwrap_err();
        match replica {
            1 => assert!(
                error.to_string().contains("was modified while it was read, detected at offset"),
                "{error}"
            ),
            _ => {
                assert_eq!(error.kind(), Kind::PeerFailed);
                assert_eq!(error.to_string(), "replica 1 has stopped: see its own error");
            }
        }
    }
}

/// When plans differ, all replicas fail before the first read.
#[test]
fn replicas_with_different_plans_are_rejected() {
    let (_temp, folder, plan) = large();
    let mut graph = crate::graph::Graph::new();
    let x = graph.source("x", crate::Dtype::F32, &[1 << 10, 1 << 10]).unwrap();
    let request = crate::plan::LoadRequest::all("x", &graph, x);
    let other =
        LoadPlan::new(&graph, &Catalog::of(&folder), &[request], &Options::default()).unwrap();
    let sources: Vec<Sources> =
        (0..3).map(|_| Sources::open(&folder, BackendChoice::Auto).unwrap()).collect();

    for (stats, sink) in execute_all(&[&plan, &plan, &other], &sources) {
        let error = stats.unwrap_err().to_string();
        assert!(error.starts_with("replica 0 has plan "), "{error}");
        assert!(error.contains(", but replica 2 has plan "), "{error}");
        assert!(sink.done.into_inner().unwrap().is_empty());
    }
}

/// The same replicas can load again; a replica that has exited is detected immediately.
#[test]
fn replicas_can_load_again_but_only_together() {
    let (_temp, folder, plan) = large();
    let mut replicas = Replica::all(2);
    let load = |replica: &Replica| {
        let sources = Sources::open(&folder, BackendChoice::Auto).unwrap();
        execute_shared(&plan, &sources, &Collect::default(), replica, &|_| {})
    };
    for _ in 0..2 {
        let read = thread::scope(|scope| {
            let threads: Vec<_> = replicas.iter().map(|it| scope.spawn(|| load(it))).collect();
            let stats = threads.into_iter().map(|it| it.join().unwrap().unwrap());
            stats.map(|it| it.read_bytes).sum::<u64>()
        });
        assert_eq!(read, plan.read_bytes());
    }

    drop(replicas.pop());
    let error = load(&replicas[0]).unwrap_err();
    assert_eq!(error.to_string(), "replica 1 has stopped: see its own error");
}

/// A received chunk must have the planned size.
#[test]
fn a_chunk_of_another_size_is_rejected() {
    let replicas = Replica::all(2);
    thread::scope(|scope| {
        scope.spawn(|| replicas[0].send(4, &[1, 2, 3]));
        let error = replicas[1].receive(4, &mut [0; 2]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot exchange chunk 4 between replicas: it has 3 bytes instead of 2"
        );
        replicas[1].abort();
    });
}

/// A custom exchange with an invalid replica number is rejected.
#[test]
fn an_invalid_replica_number_is_rejected() {
    struct NoReplicas;

    impl Exchange for NoReplicas {
        fn replicas(&self) -> usize {
            0
        }

        fn replica(&self) -> usize {
            0
        }

        fn compare_plans(&self, _: Digest) -> Result<()> {
            Ok(())
        }

        fn send(&self, _: usize, _: &[u8]) -> Result<()> {
            Ok(())
        }

        fn receive(&self, _: usize, _: &mut [u8]) -> Result<()> {
            Ok(())
        }

        fn abort(&self) {}
    }

    let (_temp, folder, plan) = large();
    let sources = Sources::open(&folder, BackendChoice::Auto).unwrap();
    let rejected = execute_shared(&plan, &sources, &Collect::default(), &NoReplicas, &|_| {});
    assert_eq!(
        rejected.unwrap_err().to_string(),
        "there is no replica 0 of 0: replicas are numbered from 0"
    );
}
