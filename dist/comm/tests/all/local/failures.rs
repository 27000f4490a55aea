//! Failures: mismatched calls, missing ranks, panics, and misuse of tensors.

use std::error::Error as _;
use std::sync::mpsc::channel;
use std::sync::{Barrier, Mutex};
use std::time::Duration;

use meshgrad_comm::{
    Collectives, CommError, Communicator, FailedRank, Local, LocalRank, Rank, Reduction,
};
use meshgrad_mesh::Group;
use meshgrad_runtime::{DType, Device, Error, ErrorKind, Kind, Result, Tensor, ops};

/// Runs `main` on all ranks, whose errors are expected: they do not end the world.
fn outcomes<T: Send>(
    local: &Local,
    main: impl Fn(&LocalRank) -> Result<T> + Sync,
) -> Vec<Result<T>> {
    let results = local.launch(|rank| Ok::<_, String>(main(rank)));
    results.unwrap()
}

fn comm_error<T: std::fmt::Debug>(result: Result<T>) -> CommError {
    let error = result.unwrap_err();
    let error = error.details::<CommError>();
    error.expect("an error of a collective").clone()
}

fn x(rank: &LocalRank, extent: usize) -> Result<Tensor> {
    ops::full(rank.device(), &[extent], DType::F32, 1.0)
}

/// Whatever differs, all members get the same error, with both calls, their ranks and lines.
#[test]
fn mismatched_calls_fail_on_all_members() {
    type Call = fn(&LocalRank) -> Result<()>;
    let usual: Call = |rank| {
        let world: &dyn Communicator = &rank.world()?;
        let pending = world.all_reduce(&x(rank, 4)?, Reduction::Sum)?;
        pending.wait().map(drop)
    };
    let others: [(Call, &str); 5] = [
        (|rank| rank.world()?.barrier()?.wait(), "barrier()"),
        (
            |rank| {
                let x = ops::full(rank.device(), &[4], DType::F64, 1.0)?;
                rank.world()?.all_reduce(&x, Reduction::Sum)?.wait().map(drop)
            },
            "all_reduce(f64 x 4, sum)",
        ),
        (
            |rank| {
                let pending = rank.world()?.all_reduce(&x(rank, 5)?, Reduction::Sum)?;
                pending.wait().map(drop)
            },
            "all_reduce(f32 x 5, sum)",
        ),
        (
            |rank| {
                let pending = rank.world()?.all_reduce(&x(rank, 4)?, Reduction::Max)?;
                pending.wait().map(drop)
            },
            "all_reduce(f32 x 4, max)",
        ),
        (
            |rank| rank.world()?.broadcast(&x(rank, 4)?, 2)?.wait().map(drop),
            "broadcast(f32 x 4, root 2)",
        ),
    ];
    for (other, text) in others {
        let all = outcomes(&Local::new(4), |rank| match rank.rank() {
            2 => other(rank),
            _ => usual(rank),
        });
        let errors: Vec<CommError> = all.into_iter().map(comm_error).collect();
        assert!(errors.iter().all(|error| *error == errors[0]), "{errors:?}");
        let CommError::Mismatch { first, second, .. } = &errors[0] else {
            panic!("{}", errors[0]);
        };
        let odd = [first, second].into_iter().find(|site| site.rank == 2);
        assert_eq!(odd.expect("rank 2 is the odd one").call, text);
        assert_ne!(first.at.line(), second.at.line());
        let message = errors[0].to_string();
        for site in [first, second] {
            assert!(message.contains(&format!("rank {} called {}", site.rank, site.call)));
            assert!(message.contains(&format!("failures.rs:{}:", site.at.line())));
        }
    }
}

#[test]
fn roots_and_numbers_of_rows_are_compared() {
    let all = outcomes(&Local::new(2), |rank| {
        let root = rank.rank();
        rank.world()?.broadcast(&x(rank, 4)?, root)?.wait()
    });
    for error in all {
        assert!(matches!(comm_error(error), CommError::Mismatch { .. }));
    }

    let all = outcomes(&Local::new(2), |rank| {
        let (send, recv) = match rank.rank() {
            0 => ([1, 2], [1, 3]),
            _ => ([4, 1], [2, 1]),
        };
        let x = x(rank, send[0] + send[1])?;
        rank.world()?.all_to_all_rows(&x, &send, &recv)?.wait()
    });
    for error in all {
        let error = comm_error(error);
        let CommError::PairCounts { sender, receiver, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!((sender.rank, receiver.rank), (1, 0));
        assert!(error.to_string().contains("sends 4 elements to rank 0"));
    }

    let all = outcomes(&Local::new(2), |rank| {
        let world = rank.world()?;
        match rank.rank() {
            0 => world.send(&x(rank, 4)?, 1)?.wait(),
            _ => world.recv(&[5], DType::F32, 0)?.wait().map(drop),
        }
    });
    for error in all {
        let message = comm_error(error).to_string();
        assert!(message.contains("rank 0 called send(f32 x 4) at "), "{message}");
        assert!(message.contains("rank 1 called recv(f32 x 5) at "), "{message}");
    }
}

/// All waiting ranks fail at the deadline, and so does the late rank afterwards.
#[test]
fn a_deadline_names_the_missing_ranks() {
    let local = Local::new(4).deadline(Duration::from_secs(2));
    let (failed, wait) = channel();
    let wait = Mutex::new(wait);
    let all = outcomes(&local, |rank| {
        let world = rank.world()?;
        world.barrier()?.wait()?;
        let failed = failed.clone();
        if rank.rank() == 2 {
            let waiting = wait.lock().unwrap();
            (0..3).for_each(|_| waiting.recv().unwrap());
        }
        let result = world.all_reduce(&x(rank, 3)?, Reduction::Sum).and_then(|sum| sum.wait());
        failed.send(()).unwrap();
        result
    });
    let errors: Vec<CommError> = all.into_iter().map(comm_error).collect();
    assert!(errors.iter().all(|error| *error == errors[0]), "{errors:?}");
    let CommError::Timeout { call, missing, .. } = &errors[0] else {
        panic!("{}", errors[0]);
    };
    assert_eq!((missing.as_slice(), call.number), (&[2][..], 1));
    let message = errors[0].to_string();
    assert!(message.starts_with("collective 1 of [0, 1, 2, 3] timed out after 2s: rank "));
    assert!(message.contains("called all_reduce(f32 x 3, sum) at "), "{message}");
    assert!(message.contains("but rank 2 did not start it"), "{message}");
}

/// In real time, too, both ranks of a deadlock get the same verdict.
#[test]
fn a_deadlock_is_an_order_inversion() {
    let local = Local::new(2).deadline(Duration::from_secs(2));
    let start = Barrier::new(2);
    let all = outcomes(&local, |rank| {
        start.wait();
        let mut groups = [Group::new([0, 1]).unwrap(), Group::new([1, 0]).unwrap()];
        if rank.rank() == 1 {
            groups.reverse();
        }
        for group in groups {
            rank.connect("pair", &group)?.barrier()?.wait()?;
        }
        Ok(())
    });
    let errors: Vec<CommError> = all.into_iter().map(comm_error).collect();
    assert_eq!(errors[0], errors[1]);
    let CommError::OrderInversion { cycle } = &errors[0] else {
        panic!("{}", errors[0]);
    };
    let waits = cycle.iter().map(|wait| (wait.call.rank, wait.waits_for));
    assert_eq!(waits.collect::<Vec<_>>(), [(0, 1), (1, 0)]);
}

#[test]
fn a_rank_that_returns_early_is_not_waited_for() {
    let all = outcomes(&Local::new(3), |rank| match rank.rank() {
        1 => Ok(()),
        _ => rank.world()?.barrier()?.wait(),
    });
    for (rank, result) in all.into_iter().enumerate() {
        match rank {
            1 => assert_eq!(result, Ok(())),
            _ => match comm_error(result) {
                CommError::Returned { missing, .. } => assert_eq!(missing, [1]),
                other => panic!("{other}"),
            },
        }
    }
}

/// What a rank sent before it returned still arrives.
#[test]
fn a_rank_may_return_before_its_message_is_received() {
    let all = outcomes(&Local::new(2), |rank| {
        let world = rank.world()?;
        match rank.rank() {
            0 => {
                drop(world.send(&x(rank, 3)?, 1)?);
                Ok(vec![])
            }
            _ => {
                std::thread::sleep(Duration::from_millis(20));
                world.recv(&[3], DType::F32, 0)?.wait()?.to_vec::<f32>()
            }
        }
    });
    assert_eq!(all, [Ok(vec![]), Ok(vec![1.0; 3])]);
}

#[test]
fn a_panic_or_error_of_one_rank_ends_the_others() {
    let seen = Mutex::new(Vec::new());
    let end = |rank: &LocalRank, fail: &dyn Fn() -> Result<()>| {
        let world = rank.world()?;
        world.barrier()?.wait()?;
        if rank.rank() == 2 {
            return fail();
        }
        let waited = world.barrier().and_then(|barrier| barrier.wait());
        seen.lock().unwrap().push(waited.clone().unwrap_err());
        waited
    };

    let panicked = Local::run(4, |rank| end(rank, &|| panic!("as planned")));
    assert_eq!(panicked.unwrap_err().to_string(), "rank 2 panicked: as planned");
    let failed =
        Local::run(4, |rank| end(rank, &|| Err(Error::new(ErrorKind::Invalid, "as planned"))));
    let failed = failed.unwrap_err();
    assert_eq!(failed.to_string(), "rank 2: as planned");
    let reason = "as planned".to_owned();
    assert_eq!(failed.details(), Some(&FailedRank { rank: 2, reason }));
    let source = failed.source().and_then(|source| source.downcast_ref());
    assert_eq!(source, Some(&Error::new(ErrorKind::Invalid, "as planned")));

    let seen = seen.into_inner().unwrap();
    assert_eq!(seen.len(), 6);
    for error in seen {
        let failed = error.details::<FailedRank>().unwrap_or_else(|| panic!("{error}"));
        assert_eq!(failed.rank, 2);
    }
}

/// Invalid arguments fail on the rank that passes them, before the call takes a number.
#[test]
fn invalid_arguments_are_errors_and_take_no_number() {
    let all = outcomes(&Local::new(2), |rank| {
        let world = rank.world()?;
        let (one, three) = (x(rank, 1)?, x(rank, 3)?);
        let scalar = Tensor::scalar(rank.device(), 1.0f32)?;
        let elsewhere = Tensor::scalar(&Device::cpu(), 1.0f32)?;
        let (sum, rows) = (Reduction::Sum, [usize::MAX, 2]);
        let ops = "broadcast send recv all_reduce all_gather reduce_scatter all_to_all all_gather \
                   all_gather reduce_scatter reduce_scatter scatter scatter";
        let ops = ops.split(' ');
        let errors = [
            world.broadcast(&one, 2).map(drop).unwrap_err(),
            world.send(&one, 7).map(drop).unwrap_err(),
            world.recv(&[1], DType::F32, 2).map(drop).unwrap_err(),
            world.all_reduce(&elsewhere, sum).map(drop).unwrap_err(),
            world.all_gather(&scalar).map(drop).unwrap_err(),
            world.reduce_scatter(&three, sum).map(drop).unwrap_err(),
            world.all_to_all(&three).map(drop).unwrap_err(),
            world.all_gather_rows(&one, &[1]).map(drop).unwrap_err(),
            world.all_gather_rows(&one, &[3, 3]).map(drop).unwrap_err(),
            world.reduce_scatter_rows(&three, &rows, sum).map(drop).unwrap_err(),
            world.reduce_scatter_rows(&three, &[1, 1], sum).map(drop).unwrap_err(),
            world.scatter(None, &[1], DType::F32, rank.rank()).map(drop).unwrap_err(),
            world.scatter(Some(&one), &[1], DType::F32, 1 - rank.rank()).map(drop).unwrap_err(),
        ];
        for (error, op) in errors.iter().zip(ops) {
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
            assert!(error.to_string().starts_with(&format!("{op}: ")), "{error}");
        }
        let value = world.all_reduce_in_place(&one, sum).map(drop);
        let immutable = value.unwrap_err().to_string();
        assert!(immutable.starts_with("all_reduce: the tensor is a value"), "{immutable}");
        if rank.rank() == 0 {
            assert!(world.send(&one, 9).is_err());
        }
        world.all_reduce(&one, sum)?.wait()?.item::<f32>()
    });
    assert_eq!(all, [Ok(2.0), Ok(2.0)]);
}

#[track_caller]
fn assert_busy<T>(result: Result<T>, op: &str) {
    let error = result.err().expect("it is free");
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(error.to_string().starts_with(&format!("{op}: ")), "{error}");
}

/// A mutable operand is borrowed until the `Pending` is waited for. A call that cannot borrow can
/// be repeated.
#[test]
fn operands_are_borrowed_until_the_wait() {
    let all = outcomes(&Local::new(2), |rank| {
        let world = rank.world()?;
        let gradient = Tensor::zeros(rank.device(), &[4], DType::F32, Kind::Gradient)?;
        ops::fill_into(&gradient, 1.0)?;
        let sum = Reduction::Sum;

        let read = gradient.read::<f32>()?;
        let busy = world.all_reduce_in_place(&gradient, sum).map(drop);
        assert_busy(busy, "all_reduce");
        drop(read);

        let pending = world.all_reduce_in_place(&gradient, sum)?;
        assert_busy(gradient.to_vec::<f32>(), "read");
        world.barrier()?.wait()?; // the sum has run
        assert_busy(gradient.to_vec::<f32>(), "read");
        assert_eq!(pending.wait()?.storage_id(), gradient.storage_id());
        assert_eq!(gradient.to_vec::<f32>()?, [2.0; 4]);

        let pending = world.all_gather(&gradient)?;
        assert!(gradient.to_vec::<f32>().is_ok());
        assert_busy(ops::fill_into(&gradient, 0.0), "fill_into");
        pending.wait()?;
        ops::fill_into(&gradient, 0.0)
    });
    assert_eq!(all, [Ok(()), Ok(())]);
}

/// The first NaN in the order of the group is the extreme, with its payload.
#[test]
fn extremes_propagate_the_first_nan() {
    let payload = f32::from_bits(0x7fc0_1234);
    let all = outcomes(&Local::new(3), |rank| {
        let of_rank = [[1.0, -0.0], [payload, 0.0], [f32::NAN, -1.0]][rank.rank()];
        let x = Tensor::from_slice(rank.device(), &[2], &of_rank)?;
        let world = rank.world()?;
        let (max, min) = (
            world.all_reduce(&x, Reduction::Max)?.wait()?.to_vec::<f32>()?,
            world.all_reduce(&x, Reduction::Min)?.wait()?.to_vec::<f32>()?,
        );
        Ok([max, min].concat().iter().map(|x| x.to_bits()).collect::<Vec<_>>())
    });
    let expected = [payload, -0.0, payload, -1.0].map(f32::to_bits);
    for bits in all {
        assert_eq!(bits.unwrap(), expected);
    }
}

/// A world of one rank needs no other, and its results are its inputs.
#[test]
fn a_world_of_one_rank_never_waits() {
    let all = outcomes(&Local::new(1).threads(1), |rank| {
        let world = rank.world()?;
        assert_eq!((world.rank(), world.index(), world.size()), (0, 0, 1));
        world.barrier()?.wait()?;
        world.all_reduce(&x(rank, 2)?, Reduction::Mean)?.wait()?.to_vec::<f32>()
    });
    assert_eq!(all, [Ok(vec![1.0; 2])]);
    let none = Local::run(0, |_| Ok::<_, String>(()));
    let error = none.unwrap_err().to_string();
    assert!(error.starts_with("the ranks could not be started: "), "{error}");
}
