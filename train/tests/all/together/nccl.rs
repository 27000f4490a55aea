//! Over NCCL, between emulated GPUs. The emulator reads the number of GPUs once per process, so each test runs
//! itself in a child process.

use std::env;
use std::process::Command;
use std::time::Instant;

use crate::together::draw::{Combination, Kind};
use crate::together::planted::Planted;
use crate::together::run::{Over, on_ranks_over};
use crate::together::{One, differences, is_exhaustive};

const CHILD: &str = "MESHGRAD_TEST_CHILD";
const GPUS: usize = 8;

/// Runs `body` in a child process with sums in random orders, and with `MESHGRAD_EXHAUSTIVE` in rings, too. A GPU has
/// room for one collective at a time.
pub(super) fn on_gpus(test: &str, body: impl FnOnce()) {
    if env::var_os(CHILD).is_some() {
        return body();
    }
    for sums in ["perturbed:1", "ring"].into_iter().take(1 + usize::from(is_exhaustive())) {
        let child = Command::new(env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture"])
            .env(CHILD, "1")
            .env("MESHGRAD_EMULATOR_DEVICES", GPUS.to_string())
            .env("MESHGRAD_EMULATOR_SUMS", sums)
            .env("MESHGRAD_EMULATOR_RESIDENT", "1")
            .status();
        assert!(child.unwrap().success(), "{test} with sums in {sums}");
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
    on_gpus("together::nccl::ranks_train_over_nccl_as_one_rank", || {
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
    on_gpus("together::nccl::three_degrees_train_over_nccl_as_one_rank", || {
        for degrees in THREE_DEGREES {
            let of = along(&degrees, Kind::Experts);
            let schedule = (of.degree("pp") > 1).then_some("1f1b");
            let ring = of.degree("cp_shard") > 1;
            let of = Combination { schedule, ring, sequence_parallel: of.degree("tp") > 1, ..of };
            let one = check(&of);
            for fault in [Planted::MicrobatchFactor, Planted::WrongDomain] {
                assert_ne!(compare(&of, &one, fault), [""; 0], "{of}, {fault:?}");
            }
        }
    });
}
