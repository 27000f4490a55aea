//! Over NCCL, between emulated GPUs. The emulator reads the number of GPUs once per process, and a fault ends a GPU, so
//! each test runs its cases in child processes.

use std::env;
use std::process::Command;
use std::time::Instant;

use crate::together::draw::{Combination, Kind};
use crate::together::planted::Planted;
use crate::together::run::{Over, on_ranks_over};
use crate::together::{One, differences, is_exhaustive};

/// The case of a child.
const CHILD: &str = "MESHGRAD_TEST_CHILD";
const GPUS: usize = 8;

/// Runs `body` with each case below `cases` in a child process, with sums in random orders, and with
/// `MESHGRAD_EXHAUSTIVE` those below `in_rings` also in rings. A GPU has room for one collective at a time.
pub(super) fn on_gpus(test: &str, cases: usize, in_rings: usize, body: impl FnOnce(usize)) {
    if let Ok(case) = env::var(CHILD) {
        return body(case.parse().unwrap());
    }
    let in_rings = if is_exhaustive() { in_rings } else { 0 };
    let all = (0..cases).map(|case| ("perturbed:1", case));
    for (sums, case) in all.chain((0..in_rings).map(|case| ("ring", case))) {
        let child = Command::new(env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture"])
            .env(CHILD, case.to_string())
            .env("MESHGRAD_EMULATOR_DEVICES", GPUS.to_string())
            .env("MESHGRAD_EMULATOR_SUMS", sums)
            .env("MESHGRAD_EMULATOR_RESIDENT", "1")
            .status();
        assert!(child.unwrap().success(), "{test}, case {case} with sums in {sums}");
    }
}

/// Differences from one rank.
fn compare(of: &Combination, one: &One, fault: Planted) -> Vec<String> {
    match on_ranks_over(Over::Nccl, of, &one.choices, fault) {
        Ok(ranks) => differences(of, one, &ranks),
        Err(error) => vec![error],
    }
}

fn check(of: &Combination) -> One {
    let (one, since) = (One::of(of), Instant::now());
    assert_eq!(compare(of, &one, Planted::Nothing), [""; 0], "{of}");
    println!("{of}: {:.1} s", since.elapsed().as_secs_f64());
    one
}

pub(super) fn along(degrees: &[(&'static str, usize)], model: Kind) -> Combination {
    let of = Combination { model, short: true, all_to_all: true, ..Combination::default() };
    degrees.iter().fold(of, |it, (name, degree)| it.with(name, *degree))
}

#[test]
fn ranks_train_over_nccl_as_one_rank() {
    on_gpus("together::nccl::ranks_train_over_nccl_as_one_rank", 1, 1, |_| {
        let of = along(&[("dp_shard", 2), ("tp", 2), ("ep", 2)], Kind::Experts);
        let one = check(&of);
        assert_ne!(compare(&of, &one, Planted::ExpertFactor), [""; 0]);
        let of = along(&[("pp", 3)], Kind::Tied);
        check(&Combination { schedule: Some("1f1b"), ..of });
        let of = along(&[("cp_shard", 2)], Kind::Dense);
        check(&Combination { ring: true, ..of });
    });
}

/// Three degrees on eight GPUs.
const THREE_DEGREES: [[(&str, usize); 3]; 9] = [
    [("dp_replicate", 2), ("dp_shard", 2), ("tp", 2)],
    [("dp_shard", 2), ("cp_shard", 2), ("tp", 2)],
    [("pp", 2), ("dp_shard", 2), ("tp", 2)],
    [("pp", 2), ("cp_shard", 2), ("dp_replicate", 2)],
    [("pp", 2), ("sp", 2), ("tp", 2)],
    [("dp_shard", 4), ("tp", 2), ("ep", 4)],
    [("pp", 2), ("dp_shard", 4), ("ep", 4)],
    [("cp_shard", 2), ("dp_shard", 4), ("ep", 8)],
    [("cp_replicate", 2), ("sp", 2), ("dp_shard", 2)],
];

#[test]
fn three_degrees_train_over_nccl_as_one_rank() {
    if !is_exhaustive() {
        return;
    }
    let test = "together::nccl::three_degrees_train_over_nccl_as_one_rank";
    let count = THREE_DEGREES.len();
    on_gpus(test, 2 * count, count, |case| {
        let of = along(&THREE_DEGREES[case % count], Kind::Experts);
        let schedule = (of.degree("pp") > 1).then_some("1f1b");
        let ring = of.degree("cp_shard") > 1;
        let of = Combination { schedule, ring, sequence_parallel: of.degree("tp") > 1, ..of };
        let (one, fault) = match case / count {
            0 => (check(&of), Planted::MicrobatchFactor),
            _ if of.degree("tp") > 1 => (One::of(&of), Planted::WrongDomain),
            _ if of.degree("ep") > 1 => (One::of(&of), Planted::ExpertFactor),
            _ => (One::of(&of), Planted::ContextFactor),
        };
        assert_ne!(compare(&of, &one, fault), [""; 0], "{of}, {fault:?}");
    });
}
