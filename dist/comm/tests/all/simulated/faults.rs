//! Faults in simulated time, in many orders of ranks.

use std::sync::Mutex;
use std::time::Duration;

use meshgrad_comm::{Error, FailedRank, Local, Rank};

use crate::injection::{
    Expected, Fault, Injection, Pace, RANKS, STEPS, call, expected, group, injections, judge,
    main_of_rank,
};

const DEADLINE: Duration = Duration::from_secs(60);
const GRACE: Duration = Duration::from_secs(10);
/// When a straggler arrives.
const LATE: Duration = Duration::from_secs(65);

/// The error of each rank.
fn run(injection: Injection, seed: u64) -> Vec<Option<Error>> {
    let errors = Mutex::new(vec![None; RANKS]);
    let local = Local::new(RANKS).threads(1).deadline(DEADLINE).grace(GRACE);
    let result = local.simulated(seed).launch(|rank| {
        let sleep = |duration| rank.clock().sleep(duration);
        let pace = Pace { sleep: &sleep, late: LATE, forever: 100 * DEADLINE };
        let result = main_of_rank(rank, injection, &pace);
        errors.lock().unwrap()[rank.rank()] = result.as_ref().err().cloned();
        result
    });
    let failed = result.unwrap_err();
    let rank = failed.details::<FailedRank>().unwrap_or_else(|| panic!("{injection:?}: {failed}"));
    if failed.to_string().contains(" panicked: ") {
        assert_eq!(rank.rank, injection.victim);
    }
    errors.into_inner().unwrap()
}

/// At least 1,000 runs.
#[test]
fn every_fault_gets_the_expected_verdict() {
    let injections = injections();
    let log: Vec<Expected> = injections.iter().map(|one| expected(*one)).collect();
    let mut runs = 0;
    for seed in 0..5 {
        for (at, (injection, expected)) in injections.iter().zip(&log).enumerate() {
            let errors = run(*injection, seed * 1_000 + at as u64);
            let judged = judge(*injection, expected, LATE..=LATE, &errors);
            judged.unwrap_or_else(|problem| panic!("{injection:?}, seed {seed}: {problem}"));
            runs += 1;
        }
    }
    assert!(runs >= 1_000, "{runs}");
}

/// `judge` distinguishes faults, steps and victims.
#[test]
fn the_judge_distinguishes_faults() {
    let injections = injections();
    for (at, injection) in injections.iter().enumerate() {
        let other = injections[(at + 1) % injections.len()];
        let errors = run(*injection, at as u64);
        let judged = judge(other, &expected(other), LATE..=LATE, &errors);
        assert!(judged.is_err(), "{injection:?} passes for {other:?}");
    }
}

/// Without faults there is nothing to report.
#[test]
fn without_faults_nothing_is_reported() {
    let local = Local::new(RANKS).threads(1).deadline(DEADLINE);
    let result = local.simulated(9).launch(|rank| {
        for at in 0..STEPS.len() {
            let comm = rank.connect("step", &group(at, rank.rank(), Fault::Missing, 0))?;
            call(&comm, at, 4)?;
        }
        Ok::<_, Error>(rank.clock().now())
    });
    assert_eq!(result.unwrap(), [Duration::ZERO; RANKS]);
}
