//! Faults in real time: rank 0 decides, and all ranks report the same.

use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::Duration;

use meshgrad_comm::{Error, FailedRank, ProcessRank, Rank, Result};

use crate::injection::{
    Expected, Fault, Injection, Pace, RANKS, expected, injections, judge, main_of_rank,
};
use crate::tcp::worlds;

/// Longer than a rank that can run ever needs for a step.
const DEADLINE: Duration = Duration::from_secs(5);
/// Stragglers have a long grace period, so that they are not missing on a busy machine. It does not
/// delay their verdict.
const GRACE: Duration = Duration::from_secs(60);
const LATE: Duration = Duration::from_secs(9);

/// Every rank's error, in a run with a fault.
fn run(injection: Injection) -> Vec<Option<Error>> {
    let grace = match injection.fault {
        Fault::Late => GRACE,
        _ => Duration::from_millis(100),
    };
    let change = |host: meshgrad_comm::Tcp| host.deadline(DEADLINE).grace(grace);
    let errors = Mutex::new(vec![None; RANKS]);
    let done = Barrier::new(RANKS);
    worlds::run_with(RANKS, change, |world: ProcessRank| {
        let number = world.rank();
        let is_victim = number == injection.victim;
        let result = thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let world = world;
                let result = main(&world, injection);
                if injection.fault.stops_all() {
                    done.wait(); // a rank that leaves would be reported to those that still sleep
                }
                result
            });
            thread.join()
        });
        let result = match result {
            Ok(result) => result,
            Err(_) if is_victim && injection.fault == Fault::Panic => return,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        errors.lock().unwrap()[number] = result.err();
    });
    errors.into_inner().unwrap()
}

fn main(world: &ProcessRank, injection: Injection) -> Result<()> {
    let pace = Pace { sleep: &thread::sleep, late: LATE, forever: 2 * DEADLINE };
    main_of_rank(world, injection, &pace)
}

/// What is wrong with a run's reports.
fn judged(injection: Injection, expected: &Expected) -> Option<String> {
    let errors = run(injection);
    if injection.fault == Fault::Panic {
        // Each names its own call, and all the same rank.
        let panicked = FailedRank { rank: injection.victim, reason: "it panicked".to_owned() };
        let died = errors.iter().flatten().filter(|error| error.details() == Some(&panicked));
        let is_right = died.count() == RANKS - 1;
        return (!is_right).then(|| format!("{errors:?}"));
    }
    judge(injection, expected, DEADLINE..=GRACE, &errors).err()
}

/// Each fault at every third step, with another victim each time. `scripts/prove/faults` runs all.
#[test]
fn every_fault_gets_the_expected_verdict() {
    let all = std::env::var_os("MESHGRAD_ALL_FAULTS").is_some();
    let is_chosen =
        |one: &Injection| all || (one.step.is_multiple_of(3) && one.victim == one.step / 3);
    let chosen: Vec<Injection> = injections().into_iter().filter(is_chosen).collect();
    for some in chosen.chunks(24) {
        thread::scope(|scope| {
            let start = |injection: &Injection| {
                let injection = *injection;
                let expected = expected(injection);
                let run = scope.spawn(move || judged(injection, &expected));
                (injection, run)
            };
            let runs: Vec<_> = some.iter().map(start).collect();
            for (injection, run) in runs {
                let problem = run.join().unwrap();
                assert_eq!(problem, None, "{injection:?}");
            }
        });
    }
}
