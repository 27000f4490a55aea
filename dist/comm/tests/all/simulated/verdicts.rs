//! Verdicts that reach beyond one collective, strict mode, fused collectives, uniform values, and
//! the clock itself.

use std::sync::Mutex;
use std::time::Duration;

use meshgrad_comm::{
    Collectives, CommError, Communicator, FailedRank, Local, LocalRank, Rank, Reduction, Uniform,
    Verdict,
};
use meshgrad_mesh::{Channel, Group};
use meshgrad_runtime::{DType, Result, Tensor, ops};

const SECOND: Duration = Duration::from_secs(1);

fn comm_error<T: std::fmt::Debug>(result: Result<T>) -> CommError {
    let error = result.unwrap_err();
    error.details::<CommError>().expect("a CommError").clone()
}

fn x(rank: &LocalRank, extent: usize) -> Result<Tensor> {
    ops::full(rank.device(), &[extent], DType::F32, 1.0)
}

/// Runs `main` on all ranks, whose errors do not end the world.
fn outcomes<T: Send>(
    local: &Local,
    main: impl Fn(&LocalRank) -> Result<T> + Sync,
) -> Vec<Result<T>> {
    local.launch(|rank| Ok::<_, String>(main(rank))).unwrap()
}

/// Rank 3 waits for rank 0, which waits for rank 2, which sleeps. The verdict is about rank 2, for
/// ranks 3 and 0 alike; rank 1, which waits for neither, is not involved.
#[test]
fn a_verdict_names_the_cause_at_the_end_of_a_chain() {
    for seed in 0..20 {
        let local = Local::new(5).threads(1).deadline(10 * SECOND).simulated(seed);
        let all = outcomes(&local, |rank| {
            let group = |ranks: [usize; 2]| rank.connect("pair", &Group::new(ranks)?);
            match rank.rank() {
                0 => {
                    rank.clock().sleep(3 * SECOND);
                    group([0, 2])?.barrier()?.wait()?;
                    group([3, 0])?.barrier()?.wait()
                }
                3 => group([3, 0])?.barrier()?.wait(),
                2 => {
                    let pair = group([0, 2])?;
                    rank.clock().sleep(100 * SECOND);
                    pair.barrier()?.wait()
                }
                _ => {
                    rank.clock().sleep(5 * SECOND);
                    group([1, 4])?.barrier()?.wait()
                }
            }
        });
        let errors: Vec<Option<CommError>> =
            all.into_iter().map(|result| result.is_err().then(|| comm_error(result))).collect();
        let Some(CommError::Timeout { group, missing, .. }) = &errors[0] else {
            panic!("{errors:?}");
        };
        assert_eq!((group.ranks(), missing.as_slice()), (&[0, 2][..], &[2][..]));
        assert!(errors[2] == errors[0] && errors[3] == errors[0], "{errors:?}");
        assert!(errors[1].is_none() && errors[4].is_none());
    }
}

/// Groups in different orders are harmless if both are started before either is waited for. Only
/// strict mode reports them, always.
#[test]
fn strict_mode_finds_orders_that_could_deadlock() {
    let main = |rank: &LocalRank| -> Result<()> {
        let all = Group::new([0, 1, 2])?;
        let other = all.clone().with_channel(Channel::Gather);
        let mut groups = [&all, &other];
        if rank.rank() == 1 {
            groups.reverse();
        }
        let (one, two) = (rank.connect("one", groups[0])?, rank.connect("two", groups[1])?);
        let first = one.all_reduce(&x(rank, 2)?, Reduction::Sum)?;
        two.all_reduce(&x(rank, 2)?, Reduction::Sum)?.wait()?;
        first.wait().map(drop)
    };
    for seed in 0..20 {
        let local = Local::new(3).threads(1).simulated(seed);
        assert!(outcomes(&local, main).iter().all(Result::is_ok));
        for result in outcomes(&local.strict(true), main) {
            let verdict = Verdict::of(&result.unwrap_err());
            assert_eq!(verdict, Some(Verdict::OrderInversion));
        }
    }
}

/// In strict mode the call itself fails on all ranks, so that a backtrace shows it. Sends and
/// receives still do not wait.
#[test]
fn strict_mode_compares_before_calls_return() {
    let local = Local::new(3).threads(1).strict(true);
    let all = outcomes(&local, |rank| {
        let world = rank.world()?;
        let (next, before) = ((rank.rank() + 1) % 3, (rank.rank() + 2) % 3);
        let sent = world.send(&x(rank, 1)?, next)?;
        world.recv(&[1], DType::F32, before)?.wait()?;
        sent.wait()?;
        world.all_reduce(&x(rank, 1)?, Reduction::Sum)?.wait()?;
        let extent = if rank.rank() == 1 { 3 } else { 2 };
        let called = world.all_reduce(&x(rank, extent)?, Reduction::Sum);
        Ok(called.map(drop))
    });
    let errors: Vec<_> = all.into_iter().map(|one| one.unwrap().unwrap_err()).collect();
    assert!(errors.iter().all(|error| *error == errors[0]), "{errors:?}");
    assert_eq!(Verdict::of(&errors[0]), Some(Verdict::Mismatch));
}

/// A rank that is late but arrives is a straggler on all ranks, itself included.
#[test]
fn a_late_rank_is_distinguished_from_a_missing_one() {
    let run = |late: Duration| {
        let local = Local::new(3).threads(1).deadline(10 * SECOND).grace(4 * SECOND);
        outcomes(&local.simulated(1), |rank| {
            let world = rank.world()?;
            if rank.rank() == 1 {
                rank.clock().sleep(late);
            }
            world.barrier()?.wait()
        })
    };
    assert!(run(9 * SECOND).iter().all(Result::is_ok));
    for result in run(12 * SECOND) {
        let error = comm_error(result);
        let CommError::Straggler { late, after, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!((late.rank, *after), (1, 12 * SECOND));
        assert!(error.to_string().contains("12s after rank "), "{error}");
    }
    for result in run(15 * SECOND) {
        assert_eq!(Verdict::of(&result.unwrap_err()), Some(Verdict::MissingRank));
    }
}

/// The same seed runs ranks in the same order, and other seeds in others.
#[test]
fn a_simulation_can_be_repeated() {
    let trace = |seed: u64| {
        let trace = Mutex::new(Vec::new());
        let local = Local::new(4).threads(1).simulated(seed);
        let result = local.launch(|rank| -> Result<()> {
            let world = rank.world()?;
            for step in 0..5u32 {
                let pending = world.all_reduce(&x(rank, 1)?, Reduction::Sum)?;
                trace.lock().unwrap().push((rank.rank(), step, rank.clock().now()));
                rank.clock().sleep(SECOND * (rank.rank() as u32 + 1));
                pending.wait()?;
            }
            Ok(())
        });
        result.unwrap();
        trace.into_inner().unwrap()
    };
    assert_eq!(trace(3), trace(3));
    assert!((4..12).any(|seed| trace(seed) != trace(3)));
    let end = trace(3).last().unwrap().2;
    assert_eq!(end, 16 * SECOND, "the slowest rank sets the pace");
}

#[test]
fn fused_collectives_are_one_entry() {
    let all = outcomes(&Local::new(3).threads(1), |rank| {
        let world: &dyn Communicator = &rank.world()?;
        let x = ops::full(rank.device(), &[3], DType::F32, rank.rank() as f64)?;
        let (next, before) = ((rank.rank() + 1) % 3, (rank.rank() + 2) % 3);
        let (sum, sent, received, gathered) = world.fuse(|world| {
            let sum = world.all_reduce(&x, Reduction::Sum)?;
            let sent = world.send(&x, next)?;
            let received = world.recv(&[3], DType::F32, before)?;
            Ok((sum, sent, received, world.all_gather(&x)?))
        })?;
        assert_eq!(gathered.wait()?.to_vec::<f32>()?, [[0.0; 3], [1.0; 3], [2.0; 3]].concat());
        assert_eq!(sum.wait()?.to_vec::<f32>()?, [3.0; 3]);
        assert_eq!(received.wait()?.to_vec::<f32>()?, [before as f32; 3]);
        sent.wait()?;

        let early = world.fuse(|world| world.barrier()?.wait());
        assert!(early.unwrap_err().to_string().contains("has not started"));
        let failed = world.fuse(|world| {
            drop(world.all_reduce(&x, Reduction::Sum)?);
            world.broadcast(&x, 7).map(drop)
        });
        let error = failed.unwrap_err().to_string();
        assert!(error.starts_with("broadcast: root 7 is not an index"), "{error}");
        world.fuse(|_| Ok(()))?;
        world.barrier()?.wait()
    });
    assert_eq!(all, [Ok(()), Ok(()), Ok(())]);
}

#[test]
fn members_fuse_the_same_collectives() {
    let all = outcomes(&Local::new(2).threads(1), |rank| {
        let (world, x) = (rank.world()?, x(rank, 1)?);
        let sums = 2 + rank.rank();
        let fused = world.fuse(|world| {
            let sums = (0..sums).map(|_| world.all_reduce(&x, Reduction::Sum));
            sums.collect::<Result<Vec<_>>>()
        });
        for sum in fused? {
            sum.wait()?;
        }
        Ok(())
    });
    for result in all {
        let message = comm_error(result).to_string();
        let two = "fuse(all_reduce(f32 x 1, sum), all_reduce(f32 x 1, sum)) at ";
        assert!(message.contains(two), "{message}");
        assert!(message.contains("differs between ranks"), "{message}");
    }
}

#[test]
fn uniform_values_keep_their_group() {
    let results = Local::run(4, |rank| -> Result<()> {
        let me = rank.rank();
        let (world, pair) = (rank.world()?, [me / 2 * 2, me / 2 * 2 + 1]);
        let pair = rank.connect("pair", &Group::new(pair)?)?;
        let largest = Uniform::reduced(&world, me as i64, Reduction::Max)?;
        let first = Uniform::broadcast(&pair, me as i64, 0)?;
        assert_eq!((*largest.get(), *first.get()), (3, (me / 2 * 2) as i64));
        assert_eq!(largest.get_in(pair.group()), Ok(&3));
        let error = first.get_in(world.group()).unwrap_err();
        assert!(error.to_string().contains("may differ on [0, 1, 2, 3]"), "{error}");

        let twice = largest.clone().zip(Uniform::constant(|| 2))?;
        let twice = twice.map(|(largest, two)| largest * two);
        assert_eq!(format!("{twice:?}"), "Uniform(6 on [0, 1, 2, 3])");
        let error = twice.zip(first).unwrap_err().to_string();
        assert!(
            error.starts_with("the value is equal on [0, 1, 2, 3], but may differ on"),
            "{error}"
        );
        Ok(())
    });
    results.unwrap();
}

/// A panicking rank is reported with its last call.
#[test]
fn a_dead_rank_is_reported_with_its_last_call() {
    let seen = Mutex::new(Vec::new());
    let result = Local::run(3, |rank| -> Result<()> {
        let world = rank.world()?;
        world.all_reduce(&x(rank, 1)?, Reduction::Sum)?.wait()?;
        if rank.rank() == 1 {
            panic!("out of luck");
        }
        let waited = world.barrier().and_then(|barrier| barrier.wait());
        seen.lock().unwrap().push(waited.clone().unwrap_err());
        waited
    });
    let error = result.unwrap_err();
    assert_eq!(error.to_string(), "rank 1 panicked: out of luck");
    assert_eq!(error.details::<FailedRank>().unwrap().rank, 1);
    for error in seen.into_inner().unwrap() {
        assert_eq!(Verdict::of(&error), Some(Verdict::DeadPeer));
        let message = error.to_string();
        let start = "rank 1 failed after all_reduce(f32 x 1, sum) at ";
        assert!(message.starts_with(start), "{message}");
        assert!(
            message.contains("(collective 0 of [0, 1, 2]), so all ranks stop: panic: out of luck"),
            "{message}"
        );
    }
}
