//! The plan's checker predicts what happens when programs run.

use std::error::Error as _;
use std::time::Duration;

use meshgrad_collectives::registry::Registry;
use meshgrad_comm::{
    Collectives, CommError, CommLog, Communicator, Local, Plan, Rank, Reduction, Verdict,
    check_logs,
};
use meshgrad_mesh::{Group, Mesh};
use meshgrad_runtime::{DType, Device, Error, Result, ops};

use crate::random::Random;
use crate::simulated::program::Program;

fn logs(program: &Program) -> Vec<CommLog> {
    let plan = Plan::new(program.ops.len()).unwrap();
    let logs =
        plan.trace_all(|rank| program.run(rank.rank(), |group| rank.connect("random", group)));
    logs.unwrap()
}

/// The first error of a run.
fn run(program: &Program, seed: u64) -> Result<()> {
    let local =
        Local::new(program.ops.len()).threads(1).deadline(Duration::from_secs(60)).simulated(seed);
    let result =
        local.launch(|rank| program.run(rank.rank(), |group| rank.connect("random", group)));
    let error_of_rank =
        |error: Error| error.source().and_then(|it| it.downcast_ref::<Error>()).cloned().unwrap();
    result.map(drop).map_err(error_of_rank)
}

/// Whether a run's outcome is what the checker predicts. If calls differ and a rank ends early, the
/// run reports what comes first.
fn agree(predicted: &Result<()>, actual: &Result<()>) -> bool {
    let verdict = |outcome: &Result<()>| {
        let error = outcome.as_ref().err();
        error.map(|error| Verdict::of(error).unwrap_or_else(|| panic!("{error}")))
    };
    match (verdict(predicted), verdict(actual)) {
        (
            Some(Verdict::Mismatch | Verdict::DeadPeer),
            Some(Verdict::Mismatch | Verdict::DeadPeer),
        ) => true,
        (one, other) => one == other,
    }
}

fn programs() -> impl Iterator<Item = (Program, Program, u64)> {
    (0..600).map(|seed| {
        let mut random = Random(seed);
        let original = Program::random(&mut random);
        let mut mutated = original.clone();
        for _ in 0..random.below(3) {
            mutated.mutate(&mut random);
        }
        (original, mutated, seed)
    })
}

#[test]
fn the_checker_predicts_runs() {
    let mut outcomes = [0; 4];
    for (_, program, seed) in programs() {
        let predicted = check_logs(&logs(&program)).map(drop);
        let actual = run(&program, seed);
        assert!(agree(&predicted, &actual), "{seed}: {program:?}{predicted:?}\n{actual:?}");
        let verdict = predicted.as_ref().err().and_then(Verdict::of);
        outcomes[match verdict {
            None => 0,
            Some(Verdict::OrderInversion) => 1,
            Some(Verdict::Mismatch) => 2,
            Some(_) => 3,
        }] += 1;
    }
    assert!(outcomes.iter().all(|count| *count > 30), "{outcomes:?}");
}

/// The logs of one program do not predict the runs of another.
#[test]
fn logs_of_another_program_do_not_predict_runs() {
    let wrong = programs().filter(|(original, mutated, seed)| {
        let predicted = check_logs(&logs(original)).map(drop);
        !agree(&predicted, &run(mutated, *seed))
    });
    assert!(wrong.count() > 60);
}

/// A cycle of any length is printed with the ranks, groups and lines of its calls.
#[test]
fn a_cycle_names_calls_and_lines() {
    for ranks in 2..6 {
        let plan = Plan::new(ranks).unwrap();
        let logs = plan.trace_all(|rank| -> Result<()> {
            let me = rank.rank();
            let pair = |low: usize| Group::new([low, (low + 1) % ranks]).unwrap();
            // Each waits for the next one first.
            let (next, before) = (pair(me), pair((me + ranks - 1) % ranks));
            let x = ops::full(rank.device(), &[4], DType::F32, 1.0)?;
            let first = rank.connect("next", &next)?.all_reduce(&x, Reduction::Sum)?;
            first.wait()?;
            rank.connect("before", &before)?.all_reduce(&x, Reduction::Sum)?.wait()?;
            Ok(())
        });
        let error = check_logs(&logs.unwrap()).unwrap_err();
        let Some(CommError::OrderInversion { cycle }) = error.details() else {
            panic!("{error}");
        };
        assert_eq!(cycle.len(), ranks, "{error}");
        for (at, wait) in cycle.iter().enumerate() {
            assert_eq!(wait.waits_for, cycle[(at + 1) % ranks].call.rank);
            assert_eq!(wait.call.call, "all_reduce(f32 x 4, sum)");
        }
        let message = error.to_string();
        assert!(message.starts_with("deadlock: rank "), "{message}");
        assert!(message.contains("plan.rs:"), "{message}");
    }
}

#[test]
fn a_log_is_readable() {
    let plan = Plan::new(100_000).unwrap();
    let log = plan.trace(99_998, |rank| -> Result<()> {
        let x = ops::full(rank.device(), &[2, 3], DType::BF16, 1.0)?;
        let pair = rank.connect("pair", &Group::new([99_998, 99_999]).unwrap())?;
        let gathered = pair.all_gather(&x)?;
        pair.barrier()?.wait()?;
        let gathered = gathered.wait()?;
        assert_eq!(gathered.shape()[..], [4, 3]);
        assert!(gathered.to_vec::<half::bf16>().is_err(), "there is no data");
        rank.world()?.barrier()?.wait()
    });
    let log = log.unwrap();
    let bytes: Vec<u64> = log.calls().map(|call| call.bytes).collect();
    assert_eq!((bytes, log.groups().len()), (vec![24, 0, 0], 2));
    let text = log.to_string();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 7);
    assert!(lines[1].contains("all_gather(bf16 x 6)  24 B  [99998, 99999]"), "{text}");
    assert!(lines[1].contains("plan.rs:"), "{text}");
    assert_eq!(lines[3].trim(), "2  wait for 1");
    assert_eq!(
        check_logs(&[log]).unwrap().to_string(),
        "no deadlock: 3 collectives and 0 transfers of 1 ranks"
    );
}

/// Logs of some ranks are checked as if the others did what is expected of them.
#[test]
fn representative_ranks_are_enough() {
    let mesh = Mesh::new(&[50, 40, 50], &["pp", "dp", "tp"]).unwrap();
    let plan = Plan::new(100_000).unwrap();
    let trace = |rank: usize, inverted: bool| {
        plan.trace(rank, |rank| -> Result<()> {
            let x = ops::full(rank.device(), &[8], DType::F32, 1.0)?;
            let mut axes = ["tp", "dp"];
            if inverted {
                axes.reverse();
            }
            for axis in axes {
                let group = mesh.group([axis], rank.rank())?;
                let comm = rank.connect(axis, &group.expect("a member"))?;
                comm.all_reduce(&x, Reduction::Sum)?.wait()?;
            }
            rank.world()?.barrier()?.wait()
        })
        .unwrap()
    };
    let one_stage: Vec<CommLog> = (0..2_000).map(|rank| trace(rank, false)).collect();
    let checked = check_logs(&one_stage).unwrap();
    assert_eq!((checked.ranks, checked.collectives), (2_000, 40 + 50 + 1));

    // Both directions of one axis alone are not a deadlock: the other ranks of dp and tp differ.
    let corners = [0, 1, 50, 51];
    let fine: Vec<CommLog> = corners.map(|rank| trace(rank, false)).into();
    check_logs(&fine).unwrap();
    let inverted: Vec<CommLog> = corners.map(|rank| trace(rank, rank == 0 || rank == 51)).into();
    let error = check_logs(&inverted).unwrap_err();
    let error = error.details::<CommError>();
    assert!(matches!(error, Some(CommError::OrderInversion { cycle }) if cycle.len() == 4));
}

/// All ranks of a world of 100,000, with transfers along a pipeline.
#[test]
fn every_rank_of_a_large_world_is_checked() {
    let (stages, replicas, width) = (50, 40, 50);
    let mesh = Mesh::new(&[stages, replicas, width], &["pp", "dp", "tp"]).unwrap();
    let plan = Plan::new(stages * replicas * width).unwrap();
    let logs = plan.trace_all(|rank| -> Result<()> {
        let connect = |axis| -> Result<_> {
            let group = mesh.group([axis], rank.rank())?;
            rank.connect(axis, &group.expect("a member"))
        };
        let (pp, dp, tp) = (connect("pp")?, connect("dp")?, connect("tp")?);
        let mut x = ops::full(rank.device(), &[8], DType::F32, 1.0)?;
        if pp.index() > 0 {
            x = pp.recv(&[8], DType::F32, pp.index() - 1)?.wait()?;
        }
        let x = tp.all_reduce(&x, Reduction::Sum)?.wait()?;
        if pp.index() + 1 < stages {
            pp.send(&x, pp.index() + 1)?.wait()?;
        }
        dp.all_reduce(&x, Reduction::Mean)?.wait().map(drop)
    });
    let checked = check_logs(&logs.unwrap()).unwrap();
    assert_eq!(checked.ranks, 100_000);
    assert_eq!(checked.collectives, stages * replicas + stages * width);
    assert_eq!(checked.transfers, (stages - 1) * replicas * width);
}

/// A collective of a fusing scope does not match one that starts alone, as in a run.
#[test]
fn fused_calls_are_compared() {
    fn main(comm: &dyn Communicator, fuses: bool) -> Result<()> {
        let x = ops::full(comm.device(), &[2], DType::F32, 1.0)?;
        let sums = |comm: &dyn Communicator| -> Result<_> {
            let one = comm.all_reduce(&x, Reduction::Sum)?;
            Ok((one, comm.all_reduce(&x, Reduction::Sum)?))
        };
        let (one, two) = match fuses {
            true => comm.fuse(|comm| sums(comm))?,
            false => sums(comm)?,
        };
        one.wait().and(two.wait()).map(drop)
    }
    for fusing in [[true, true], [false, false], [true, false]] {
        let plan = Plan::new(2).unwrap();
        let logs = plan.trace_all(|rank| main(&rank.world()?, fusing[rank.rank()]));
        let predicted = check_logs(&logs.unwrap());
        let local = Local::new(2).threads(1).simulated(5);
        let actual = local.launch(|rank| main(&rank.world()?, fusing[rank.rank()]));
        assert_eq!(predicted.is_ok(), fusing[0] == fusing[1]);
        assert_eq!(actual.is_ok(), predicted.is_ok());
        if let Err(error) = predicted {
            assert_eq!(Verdict::of(&error), Some(Verdict::Mismatch));
            assert!(error.to_string().contains(" in fuse of 2 at "), "{error}");
        }
    }
}

/// A registry can create planned communicators, as it creates others.
#[test]
fn a_registry_shares_planned_communicators() {
    let plan = Plan::new(4).unwrap();
    let log = plan.trace(2, |rank| -> Result<()> {
        let registry = Registry::new(rank.rank(), rank.clone());
        let group = Group::new([2, 0])?;
        for name in ["actor", "critic"] {
            let share = registry.share(name, &group).unwrap();
            let handle = share.handle().expect("a member of a group of two");
            let connected = handle.connect(Duration::ZERO).unwrap();
            connected.expect("ready at once").barrier()?.wait()?;
        }
        Ok(())
    });
    let log = log.unwrap();
    assert_eq!((log.groups().len(), log.calls().count()), (1, 2));
}

#[test]
fn invalid_ranks_and_groups_are_errors() {
    let plan = Plan::new(4).unwrap().like(&Device::cpu());
    let trace = plan.trace(4, |_| Ok::<_, Error>(()));
    let error = trace.unwrap_err().to_string();
    assert_eq!(error, "rank 4 is not in a world of 4 ranks; pass a rank below 4");
    let log = plan.trace(1, |rank| -> Result<()> {
        assert!(rank.connect("other", &Group::new([0, 2]).unwrap()).is_err());
        assert!(rank.connect("outside", &Group::new([1, 4]).unwrap()).is_err());
        assert_eq!((rank.world()?.size(), rank.world_size()), (4, 4));
        Ok(())
    });
    let log = log.unwrap();
    assert!(log.events().is_empty());
    let error = check_logs(&[log.clone(), log]).unwrap_err();
    assert_eq!(error.to_string(), "there are two logs of rank 1; pass one log per rank");
    assert!(Plan::new(0).is_err());
}
