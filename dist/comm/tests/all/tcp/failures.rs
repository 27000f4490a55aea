//! Calls that differ, ranks that are late, leave or fail.

use std::sync::Barrier;
use std::time::Duration;

use meshgrad_comm::{Collectives, CommError, Error, FailedRank, ProcessRank, Rank, Reduction};
use meshgrad_mesh::{Group, GroupOptions};
use meshgrad_runtime::{DType, Result, Tensor, ops};

use crate::tcp::worlds::{self, DEADLINE, run};

fn x(world: &ProcessRank, extent: usize) -> Result<Tensor> {
    ops::full(world.device(), &[extent], DType::F32, 1.0)
}

fn comm_error<T: std::fmt::Debug>(result: Result<T>) -> CommError {
    let error = result.unwrap_err();
    let error = error.details::<CommError>();
    error.expect("an error of a collective").clone()
}

/// Runs `main` and keeps the world until all ranks are done, so that no rank leaves.
fn outcomes<T: Send>(
    ranks: usize,
    deadline: Duration,
    main: impl Fn(&ProcessRank) -> Result<T> + Sync,
) -> Vec<Result<T>> {
    let done = Barrier::new(ranks);
    run(ranks, deadline, |world| {
        let result = main(&world);
        done.wait();
        result
    })
}

/// Whatever differs, all members fail with the odd rank's call and line.
#[test]
fn mismatched_calls_fail_on_all_members() {
    type Call = fn(&ProcessRank) -> Result<()>;
    let others: [(Call, &str); 4] = [
        (|world| world.world()?.barrier()?.wait(), "barrier()"),
        (
            |world| {
                let pending = world.world()?.all_reduce(&x(world, 5)?, Reduction::Sum)?;
                pending.wait().map(drop)
            },
            "all_reduce(f32 x 5, sum)",
        ),
        (
            |world| {
                let large = x(world, 50_000)?; // of two rounds
                let pending = world.world()?.all_reduce(&large, Reduction::Sum)?;
                pending.wait().map(drop)
            },
            "all_reduce(f32 x 50000, sum)",
        ),
        (
            |world| {
                let pending = world.world()?.broadcast(&x(world, 4)?, 2)?;
                pending.wait().map(drop)
            },
            "broadcast(f32 x 4, root 2)",
        ),
    ];
    for (other, text) in others {
        let all = outcomes(4, DEADLINE, |world| match world.rank() {
            2 => other(world),
            _ => {
                let pending = world.world()?.all_reduce(&x(world, 4)?, Reduction::Sum)?;
                pending.wait().map(drop)
            }
        });
        for error in all {
            let error = comm_error(error);
            let CommError::Mismatch { first, second, .. } = &error else {
                panic!("{error}");
            };
            let odd = [first, second].into_iter().find(|site| site.rank == 2);
            assert_eq!(odd.expect("rank 2 is the odd one").call, text);
            assert!(error.to_string().contains("failures.rs:"), "{error}");
        }
    }
}

#[test]
fn pairs_that_disagree_fail_on_all_members() {
    let all = outcomes(2, DEADLINE, |world| {
        let (send, recv) = match world.rank() {
            0 => ([1, 2], [1, 3]),
            _ => ([4, 1], [2, 1]),
        };
        let x = x(world, send[0] + send[1])?;
        world.world()?.all_to_all_rows(&x, &send, &recv)?.wait()
    });
    for error in all {
        let message = comm_error(error).to_string();
        assert!(message.contains("sends 4 elements to rank 0"), "{message}");
    }
}

/// All waiting ranks fail at the deadline, and so does the late rank afterwards. It may complete
/// the collective if it starts it before it has heard of the failure, but not the next one.
#[test]
fn a_deadline_names_the_missing_rank() {
    let mut options = GroupOptions::default();
    options.timeout = Some(Duration::from_secs(2));
    let soon = Group::new([0, 1, 2, 3]).unwrap().with_options(options);
    let failed = Barrier::new(4);
    let all = outcomes(4, DEADLINE, |world| {
        // Connections open.
        world.world()?.barrier()?.wait()?;
        let comm = world.connect("soon", &soon)?;
        if world.rank() == 2 {
            failed.wait();
        }
        let sum = comm.all_reduce(&x(world, 3)?, Reduction::Sum);
        let result = sum.and_then(|sum| sum.wait()).map(drop);
        if world.rank() != 2 {
            failed.wait();
            return result;
        }
        result.and_then(|()| comm.barrier()?.wait())
    });
    for error in all {
        let error = comm_error(error);
        let CommError::Timeout { missing, call, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!((missing.as_slice(), call.number), (&[2][..], 0));
        assert!(error.to_string().contains("failures.rs:"), "{error}");
    }
}

#[test]
fn a_rank_that_leaves_early_is_not_waited_for() {
    for early in [1, 2] {
        let all = run(3, DEADLINE, |world| match world.rank() == early {
            true => Ok(()),
            false => world.world()?.barrier()?.wait(),
        });
        for (rank, result) in all.into_iter().enumerate() {
            match rank == early {
                true => assert_eq!(result, Ok(())),
                false => match comm_error(result) {
                    CommError::Returned { missing, .. } => assert_eq!(missing, [early]),
                    other => panic!("{other}"),
                },
            }
        }
    }
}

/// What a rank sent before it left still arrives, however much it is.
#[test]
fn a_rank_may_leave_before_its_message_is_received() {
    let count = 3_000_000;
    let all = run(2, DEADLINE, |world| -> Result<f64> {
        let comm = world.world()?;
        match world.rank() {
            1 => {
                drop(comm.send(&x(&world, count)?, 0)?);
                Ok(0.0)
            }
            _ => {
                std::thread::sleep(Duration::from_millis(50));
                let received = comm.recv(&[count], DType::F32, 1)?.wait()?;
                Ok(received.to_vec::<f32>()?.iter().map(|x| f64::from(*x)).sum())
            }
        }
    });
    assert_eq!(all, [Ok(count as f64), Ok(0.0)]);
}

/// Ends a world of 3 ranks by `fail` on rank `failing`. Checks that all others name `named`.
fn check_failure(failing: usize, named: usize, fail: impl Fn(ProcessRank) + Sync) {
    let all = run(3, DEADLINE, |world| {
        if world.rank() == failing {
            fail(world);
            return None;
        }
        let comm = world.world().unwrap();
        let waited = comm.barrier().and_then(|barrier| barrier.wait());
        Some(waited.unwrap_err())
    });
    for error in all.into_iter().flatten() {
        let reason = "out of luck".to_owned();
        assert_eq!(error.details(), Some(&FailedRank { rank: named, reason }), "{error}");
        let message = error.to_string();
        assert!(message.contains("called barrier() at"), "{message}");
        assert!(message.contains("failures.rs:"), "{message}");
    }
}

#[test]
fn a_failure_ends_all_ranks() {
    for failing in [0, 2] {
        check_failure(failing, failing, |world| world.fail("out of luck"));
    }
}

/// A rank that fails as a consequence may be the first to say so.
#[test]
fn a_consequence_names_the_rank_that_failed_first() {
    check_failure(1, 2, |world| {
        world.fail_with(FailedRank { rank: 2, reason: "out of luck".to_owned() })
    });
}

#[test]
fn ranks_that_do_not_join_are_named() {
    let (listener, address) = worlds::listener();
    let soon = Duration::from_secs(3);
    let joined = std::thread::scope(|scope| {
        let first = scope.spawn(|| {
            let host = worlds::tcp(0, 4, &address).join_deadline(soon);
            host.listener(listener).join().map(drop)
        });
        let third = scope.spawn(|| {
            let host = worlds::tcp(2, 4, &address).join_deadline(soon);
            host.join().map(drop)
        });
        [first.join().unwrap(), third.join().unwrap()]
    });
    for error in joined {
        let message = error.unwrap_err().to_string();
        assert!(message.contains("ranks [1, 3] of 4 did not join"), "{message}");
        assert!(!message.contains("refused"), "{message}");
    }
}

#[test]
fn ranks_with_other_numbers_are_refused() {
    let (listener, address) = worlds::listener();
    let host = |rank, ranks| worlds::tcp(rank, ranks, &address);
    let refusal = |error: Error| {
        let error = error.to_string();
        assert!(error.starts_with("rank 0 refused rank "), "{error}");
        error
    };
    std::thread::scope(|scope| {
        let lead = host(0, 3).listener(listener);
        let first = scope.spawn(|| lead.join().map(drop));
        let larger = host(3, 4).join().unwrap_err();
        assert!(refusal(larger).contains("its world has 4 ranks, but that of rank 0 has 3"));

        // Two processes with one rank: the second one is refused.
        let twice = [1, 1].map(|rank| scope.spawn(move || host(rank, 3).join()));
        while !twice.iter().any(|thread| thread.is_finished()) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let last = scope.spawn(|| host(2, 3).join().map(drop));
        let twice = twice.map(|thread| thread.join().unwrap());
        let refused: Vec<Error> = twice.into_iter().filter_map(Result::err).collect();
        let [refused] = <[Error; 1]>::try_from(refused).unwrap();
        assert!(refusal(refused).contains("rank 1 has already joined from 127.0.0.1"));
        assert_eq!((first.join().unwrap(), last.join().unwrap()), (Ok(()), Ok(())));
    });
    let error = worlds::tcp(5, 5, "127.0.0.1:1").join().unwrap_err();
    assert_eq!(error.to_string(), "rank 5 is outside a world of 5 ranks; ranks are 0 to 4");
}
