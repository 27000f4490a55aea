//! Over NCCL, between emulated GPUs. The emulator reads the number of GPUs once per process, so each test runs
//! itself in a child process.

use std::env;
use std::process::Command;

use crate::together::draw::{Combination, Kind};
use crate::together::planted::Planted;
use crate::together::run::{Over, on_ranks_over};
use crate::together::{One, differences, is_exhaustive};

const CHILD: &str = "MESHGRAD_TEST_CHILD";
const GPUS: usize = 8;

/// Runs `body` in a child process, with sums in rings and in random orders.
fn on_gpus(test: &str, body: impl FnOnce()) {
    if env::var_os(CHILD).is_some() {
        return body();
    }
    for sums in ["ring", "perturbed:1"] {
        let child = Command::new(env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture"])
            .env(CHILD, "1")
            .env("MESHGRAD_EMULATOR_DEVICES", GPUS.to_string())
            .env("MESHGRAD_EMULATOR_SUMS", sums)
            .status();
        assert!(child.unwrap().success(), "{test} with sums in {sums}");
    }
}

fn check(of: &Combination) {
    let one = One::of(of);
    let ranks = on_ranks_over(Over::Nccl, of, &one.choices, Planted::Nothing);
    let ranks = ranks.unwrap_or_else(|error| panic!("{of}: {error}"));
    assert_eq!(differences(of, &one, &ranks), [""; 0], "{of}");
}

#[test]
fn ranks_train_over_nccl_as_one_rank() {
    on_gpus("together::nccl::ranks_train_over_nccl_as_one_rank", || {
        let of = |degrees: &[(&'static str, usize)]| {
            degrees.iter().fold(Combination::default(), |it, (name, degree)| it.with(name, *degree))
        };
        check(&of(&[("dp_shard", 2), ("tp", 2), ("ep", 2)]));
        let _ = (Kind::Dense, is_exhaustive());
    });
}
