//! Faults at every collective of a small program, in many orders of ranks. What must be reported is
//! written down before the run.

use std::sync::Mutex;
use std::time::Duration;

use meshgrad_comm::{
    CallSite, Collectives, CommError, Communicator, Local, LocalRank, Plan, Reduction, RunError,
    Verdict,
};
use meshgrad_mesh::{Channel, Group, Mesh};
use meshgrad_runtime::{DType, Error, Kind, Result, Tensor, ops};

const RANKS: usize = 4;
const DEADLINE: Duration = Duration::from_secs(60);
const GRACE: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// Never arrives.
    Missing,
    /// Passes one row more.
    Mismatch,
    /// Does the next step first.
    Inversion,
    /// Arrives after the time limit.
    Late,
    Return,
    Panic,
    /// Never creates the communicator of the step.
    NoCommunicator,
}

const FAULTS: [Fault; 7] = [
    Fault::Missing,
    Fault::Mismatch,
    Fault::Inversion,
    Fault::Late,
    Fault::Return,
    Fault::Panic,
    Fault::NoCommunicator,
];

/// The axes of each step's group on a mesh of 2 x 2. Neighbours share ranks.
const STEPS: [&[&str]; 8] = [
    &["tp"],
    &["dp", "tp"],
    &["dp"],
    &["dp", "tp"],
    &["tp"],
    &["dp", "tp"],
    &["dp"],
    &["dp", "tp"],
];

/// A fault of one rank at one step.
#[derive(Clone, Copy, Debug)]
struct Injection {
    fault: Fault,
    step: usize,
    victim: usize,
}

/// What must be reported.
#[derive(Debug)]
struct Expected {
    verdict: Verdict,
    group: Group,
    /// The victim's call without a fault; that of the step before for a rank that failed.
    call: CallSite,
}

fn injections() -> Vec<Injection> {
    let mut all = Vec::new();
    for fault in FAULTS {
        for step in 0..STEPS.len() {
            for victim in 0..RANKS {
                let is_possible = fault != Fault::Inversion || step + 1 < STEPS.len();
                all.extend(is_possible.then_some(Injection {
                    fault,
                    step,
                    victim,
                }));
            }
        }
    }
    all
}

/// A step's group on a rank. The channel makes it a communicator of its own if a fault needs that.
fn group(step: usize, rank: usize, fault: Fault, faulty: usize) -> Group {
    let mesh = Mesh::new(&[2, 2], &["dp", "tp"]).unwrap();
    let group = mesh.group(STEPS[step], rank).unwrap().expect("a member");
    match fault == Fault::NoCommunicator && step == faulty {
        true => group.with_channel(Channel::Own(1)),
        false => group,
    }
}

/// The collective of a step with `rows` rows. Each has a line of its own.
fn call(comm: &dyn Communicator, step: usize, rows: usize) -> Result<()> {
    let x = ops::full(comm.device(), &[rows], DType::F32, 1.0)?;
    match step {
        0 => comm.all_reduce(&x, Reduction::Sum)?.wait()?,
        1 => comm
            .all_reduce_in_place(&mutable(&x)?, Reduction::Max)?
            .wait()?,
        2 => comm.all_gather(&x)?.wait()?,
        3 => comm.broadcast(&x, 1)?.wait()?,
        4 => comm.reduce_scatter(&x, Reduction::Sum)?.wait()?,
        5 => comm.all_gather(&x)?.wait()?,
        6 => comm.all_to_all(&x)?.wait()?,
        _ => comm.all_reduce(&x, Reduction::Mean)?.wait()?,
    };
    Ok(())
}

fn mutable(x: &Tensor) -> Result<Tensor> {
    Tensor::zeros(x.device(), x.shape(), x.dtype(), Kind::Cache)
}

/// The log that the injector writes: what a trace without faults says about the victim's call.
fn expected(injection: Injection) -> Expected {
    let Injection {
        fault,
        step,
        victim,
    } = injection;
    let log = Plan::new(RANKS)
        .unwrap()
        .trace(victim, |rank| -> Result<()> {
            for at in 0..STEPS.len() {
                let comm = rank.connect(&group(at, victim, fault, step))?;
                call(&comm, at, 4)?;
            }
            Ok(())
        });
    let log = log.unwrap();
    let calls: Vec<_> = log.calls().collect();
    let (verdict, of) = match fault {
        Fault::Missing => (Verdict::MissingRank, step),
        Fault::Mismatch => (Verdict::Mismatch, step),
        Fault::Inversion => (Verdict::OrderInversion, step + 1),
        Fault::Late => (Verdict::Straggler, step),
        Fault::Return => (Verdict::DeadPeer, step),
        Fault::Panic => (Verdict::DeadPeer, step.saturating_sub(1)),
        Fault::NoCommunicator => (Verdict::BootstrapStuck, step),
    };
    let call = calls[of];
    let earlier = calls[..of].iter().filter(|other| other.group == call.group);
    Expected {
        verdict,
        group: log.groups()[call.group].clone(),
        call: CallSite {
            rank: victim,
            call: call.request.fingerprint.to_string(),
            number: earlier.count() as u64,
            at: call.request.caller.into(),
        },
    }
}

fn main_of_rank(rank: &LocalRank, injection: Injection) -> Result<()> {
    let Injection {
        fault,
        step,
        victim,
    } = injection;
    let mut order: Vec<usize> = (0..STEPS.len()).collect();
    let is_victim = rank.rank() == victim;
    if is_victim && fault == Fault::Inversion {
        order.swap(step, step + 1);
    }
    for at in order {
        let is_faulty = is_victim && at == step;
        if is_faulty && fault == Fault::NoCommunicator {
            rank.clock().sleep(100 * DEADLINE);
        }
        let comm = rank.connect("step", &group(at, rank.rank(), fault, step))?;
        let mut rows = 4;
        if is_faulty {
            match fault {
                Fault::Missing => rank.clock().sleep(100 * DEADLINE),
                Fault::Late => rank.clock().sleep(DEADLINE + GRACE / 2),
                Fault::Return => return Ok(()),
                Fault::Panic => panic!("injected"),
                Fault::Mismatch => rows = 6,
                Fault::Inversion | Fault::NoCommunicator => {}
            }
        }
        call(&comm, at, rows)?;
    }
    Ok(())
}

/// The error of each rank.
fn run(injection: Injection, seed: u64) -> Vec<Option<CommError>> {
    let errors = Mutex::new(vec![None; RANKS]);
    let local = Local::new(RANKS).threads(1).deadline(DEADLINE).grace(GRACE);
    let result = local.simulated(seed).launch(|rank| {
        let result = main_of_rank(rank, injection);
        let error = result.as_ref().err();
        let error = error.map(|error| error.downcast_ref::<CommError>().unwrap().clone());
        errors.lock().unwrap()[rank.rank()] = error;
        result
    });
    match result {
        Err(RunError::Panic { rank, .. }) => assert_eq!(rank, injection.victim),
        Err(RunError::Rank { .. }) => {}
        other => panic!("{injection:?}: {other:?}"),
    }
    errors.into_inner().unwrap()
}

/// Why the report of a run is not what was expected.
fn judge(
    injection: Injection,
    expected: &Expected,
    errors: &[Option<CommError>],
) -> Result<(), String> {
    let is_consequence = |error: &&CommError| {
        injection.fault != Fault::Panic && matches!(error, CommError::RankFailed { .. })
    };
    let mut reports = errors
        .iter()
        .flatten()
        .filter(|error| !is_consequence(error));
    let report = reports.next().ok_or("no report")?;
    if let Some(other) = reports.find(|other| *other != report) {
        return Err(format!("two values: {report}, {other}"));
    }
    if report.verdict() != Some(expected.verdict) {
        return Err(format!("verdict {:?}", report.verdict()));
    }

    let is_step = |group: &Group, number: u64, ranks: &[usize]| {
        let named = (group, number) == (&expected.group, expected.call.number);
        named && ranks == [injection.victim]
    };
    let is_named = match report {
        CommError::Timeout {
            group,
            call,
            missing: ranks,
            ..
        }
        | CommError::BootstrapStuck {
            group,
            call,
            missing: ranks,
        } => is_step(group, call.number, ranks) && call.at == expected.call.at,
        // Whichever rank noticed first; it may be a step ahead.
        CommError::Returned { group, missing, .. } => {
            let (ranks, victim) = (group.ranks(), injection.victim);
            ranks.contains(&victim) && *missing == [victim]
        }
        CommError::Mismatch {
            group,
            first,
            second,
        } => {
            let (one, other) = match first.rank == injection.victim {
                true => (first, second),
                false => (second, first),
            };
            let same = CallSite {
                rank: other.rank,
                ..expected.call.clone()
            };
            *group == expected.group && one.rank == injection.victim && *other == same
        }
        CommError::OrderInversion { cycle } => {
            let is_step = cycle
                .iter()
                .any(|wait| (&wait.group, &wait.call) == (&expected.group, &expected.call));
            is_step && cycle.len() == 2 && cycle[0].waits_for == cycle[1].call.rank
        }
        CommError::Straggler {
            group, late, after, ..
        } => {
            let is_step = (group, late) == (&expected.group, &expected.call);
            is_step && *after == DEADLINE + GRACE / 2
        }
        CommError::RankFailed { rank, last, .. } => match last {
            Some(last) => (&last.group, &last.call) == (&expected.group, &expected.call),
            None => injection.step == 0 && *rank == injection.victim,
        },
        _ => false,
    };
    if !is_named {
        return Err(format!("{report}\nexpected {expected:?}"));
    }
    let all_wait = !matches!(
        injection.fault,
        Fault::Mismatch | Fault::Return | Fault::Panic
    );
    match errors.iter().all(|error| error.as_ref() == Some(report)) {
        false if all_wait => Err(format!("not all ranks report {report}: {errors:?}")),
        _ => Ok(()),
    }
}

/// At least 1,000 runs.
#[test]
fn every_fault_is_reported_as_what_it_is() {
    let injections = injections();
    let log: Vec<Expected> = injections.iter().map(|one| expected(*one)).collect();
    let mut runs = 0;
    for seed in 0..5 {
        for (at, (injection, expected)) in injections.iter().zip(&log).enumerate() {
            let errors = run(*injection, seed * 1_000 + at as u64);
            let judged = judge(*injection, expected, &errors);
            judged.unwrap_or_else(|problem| panic!("{injection:?}, seed {seed}: {problem}"));
            runs += 1;
        }
    }
    assert!(runs >= 1_000, "{runs}");
}

/// The judgement tells faults, steps and victims apart.
#[test]
fn another_fault_is_not_what_was_expected() {
    let injections = injections();
    for (at, injection) in injections.iter().enumerate() {
        let other = injections[(at + 1) % injections.len()];
        let errors = run(*injection, at as u64);
        let judged = judge(other, &expected(other), &errors);
        assert!(judged.is_err(), "{injection:?} passes for {other:?}");
    }
}

/// Without faults there is nothing to report.
#[test]
fn the_program_runs() {
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
