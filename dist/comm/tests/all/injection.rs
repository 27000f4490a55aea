//! Faults at every collective of a small program. The expected reports are computed before the run.

use std::ops::RangeInclusive;
use std::time::Duration;

use meshgrad_collectives::CallSite;
use meshgrad_comm::{
    Collectives, CommError, Communicator, FailedRank, Plan, Rank, Reduction, Verdict,
};
use meshgrad_mesh::{Channel, Group, Mesh};
use meshgrad_runtime::{DType, Error, Kind, Result, Tensor, ops};

pub(crate) const RANKS: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
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

impl Fault {
    /// Whether all ranks wait for the victim, so that all report it.
    pub(crate) fn stops_all(self) -> bool {
        !matches!(self, Fault::Mismatch | Fault::Return | Fault::Panic)
    }
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
pub(crate) const STEPS: [&[&str]; 8] = [
    &["tp"],
    &["dp", "tp"],
    &["dp"],
    &["dp", "tp"],
    &["tp"],
    &["dp", "tp"],
    &["dp"],
    &["dp", "tp"],
];

/// How long a victim sleeps.
pub(crate) struct Pace<'a> {
    pub(crate) sleep: &'a dyn Fn(Duration),
    /// Longer than the time limit, but shorter than the limit plus the grace period.
    pub(crate) late: Duration,
    /// Longer than a verdict takes.
    pub(crate) forever: Duration,
}

/// A fault of one rank at one step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Injection {
    pub(crate) fault: Fault,
    pub(crate) step: usize,
    pub(crate) victim: usize,
}

/// What must be reported.
#[derive(Debug)]
pub(crate) struct Expected {
    verdict: Verdict,
    group: Group,
    /// The victim's call without a fault; for a rank that failed, its call of the step before.
    call: CallSite,
}

pub(crate) fn injections() -> Vec<Injection> {
    let mut all = Vec::new();
    for fault in FAULTS {
        for step in 0..STEPS.len() {
            for victim in 0..RANKS {
                let is_possible = fault != Fault::Inversion || step + 1 < STEPS.len();
                all.extend(is_possible.then_some(Injection { fault, step, victim }));
            }
        }
    }
    all
}

/// A step's group on a rank. The channel makes it a communicator of its own if a fault needs that.
pub(crate) fn group(step: usize, rank: usize, fault: Fault, faulty: usize) -> Group {
    let mesh = Mesh::new(&[2, 2], &["dp", "tp"]).unwrap();
    let group = mesh.group(STEPS[step], rank).unwrap().expect("a member");
    match fault == Fault::NoCommunicator && step == faulty {
        true => group.with_channel(Channel::Own(1)),
        false => group,
    }
}

/// The collective of a step with `rows` rows. Each has a line of its own.
pub(crate) fn call(comm: &dyn Communicator, step: usize, rows: usize) -> Result<()> {
    let x = ops::full(comm.device(), &[rows], DType::F32, 1.0)?;
    match step {
        0 => comm.all_reduce(&x, Reduction::Sum)?.wait()?,
        1 => comm.all_reduce_in_place(&mutable(&x)?, Reduction::Max)?.wait()?,
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
pub(crate) fn expected(injection: Injection) -> Expected {
    let Injection { fault, step, victim } = injection;
    let log = Plan::new(RANKS).unwrap().trace(victim, |rank| -> Result<()> {
        for at in 0..STEPS.len() {
            let comm = rank.connect("traced", &group(at, victim, fault, step))?;
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

pub(crate) fn main_of_rank(rank: &dyn Rank, injection: Injection, pace: &Pace<'_>) -> Result<()> {
    let Injection { fault, step, victim } = injection;
    let mut order: Vec<usize> = (0..STEPS.len()).collect();
    let is_victim = rank.rank() == victim;
    if is_victim && fault == Fault::Inversion {
        order.swap(step, step + 1);
    }
    for at in order {
        let is_faulty = is_victim && at == step;
        if is_faulty && fault == Fault::NoCommunicator {
            (pace.sleep)(pace.forever);
        }
        let comm = rank.connect("step", &group(at, rank.rank(), fault, step))?;
        let mut rows = 4;
        if is_faulty {
            match fault {
                Fault::Missing => (pace.sleep)(pace.forever),
                Fault::Late => (pace.sleep)(pace.late),
                Fault::Return => return Ok(()),
                Fault::Panic => panic!("injected"),
                Fault::Mismatch => rows = 6,
                Fault::Inversion | Fault::NoCommunicator => {}
            }
        }
        call(&*comm, at, rows)?;
    }
    Ok(())
}

/// Why the report of a run is not what was expected. `delay` is the delay of a straggler.
pub(crate) fn judge(
    injection: Injection,
    expected: &Expected,
    delay: RangeInclusive<Duration>,
    errors: &[Option<Error>],
) -> Result<(), String> {
    let is_consequence = |error: &&Error| match error.details::<CommError>() {
        None => error.details::<FailedRank>().is_some() && injection.fault != Fault::Panic,
        Some(CommError::Returned { missing, .. }) => {
            injection.fault != Fault::Return || !missing.contains(&injection.victim)
        }
        _ => false,
    };
    let mut reports = errors.iter().flatten().filter(|error| !is_consequence(error));
    let report = reports.next().ok_or("no report")?;
    if let Some(other) = reports.find(|other| *other != report) {
        return Err(format!("two values: {report}, {other}"));
    }
    let verdict = Verdict::of(report);
    if verdict != Some(expected.verdict) {
        return Err(format!("verdict {verdict:?}"));
    }

    let is_step = |group: &Group, number: u64, ranks: &[usize]| {
        let named = (group, number) == (&expected.group, expected.call.number);
        named && ranks == [injection.victim]
    };
    let is_named = match report.details::<CommError>() {
        Some(
            CommError::Timeout { group, call, missing: ranks, .. }
            | CommError::BootstrapStuck { group, call, missing: ranks },
        ) => is_step(group, call.number, ranks) && call.at == expected.call.at,
        // Whichever rank noticed first; it may be a step ahead.
        Some(CommError::Returned { group, missing, .. }) => {
            let (ranks, victim) = (group.ranks(), injection.victim);
            ranks.contains(&victim) && *missing == [victim]
        }
        Some(CommError::Mismatch { group, first, second }) => {
            let (one, other) = match first.rank == injection.victim {
                true => (first, second),
                false => (second, first),
            };
            let same = CallSite { rank: other.rank, ..expected.call.clone() };
            *group == expected.group && one.rank == injection.victim && *other == same
        }
        Some(CommError::OrderInversion { cycle }) => {
            let is_step = cycle
                .iter()
                .any(|wait| (&wait.group, &wait.call) == (&expected.group, &expected.call));
            is_step && cycle.len() == 2 && cycle[0].waits_for == cycle[1].call.rank
        }
        Some(CommError::Straggler { group, late, after, .. }) => {
            let is_step = (group, late) == (&expected.group, &expected.call);
            is_step && delay.contains(after)
        }
        Some(_) => false,
        None => {
            let CallSite { rank, call, number, at } = &expected.call;
            let group = &expected.group;
            let last = format!(" after {call} at {at} (collective {number} of {group})");
            let last = if injection.step == 0 { String::new() } else { last };
            report.to_string().starts_with(&format!("rank {rank} failed{last}, so all ranks stop"))
        }
    };
    if !is_named {
        return Err(format!("{report}\nexpected {expected:?}"));
    }
    match errors.iter().all(|error| error.as_ref() == Some(report)) {
        false if injection.fault.stops_all() => {
            Err(format!("not all ranks report {report}: {errors:?}"))
        }
        _ => Ok(()),
    }
}
