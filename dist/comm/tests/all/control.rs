//! Control channels: messages beside tensors, with a limit, on every transport. `tests/gpus` and
//! `tests/mpi.rs` have the same check.

use std::time::Duration;

use meshgrad_collectives::registry::Exchange;
use meshgrad_comm::conformance::{check_control, check_control_after_failure};
use meshgrad_comm::{ControlChannel, Error, Local, LocalRank, Plan, Rank, Result};
use meshgrad_runtime::Device;

use crate::tcp::worlds::{DEADLINE, run};

#[test]
fn messages_pass_collectives_that_wait() {
    for ranks in [2, 3, 5] {
        Local::run(ranks, |rank| check_control(rank)).unwrap();
    }
    Local::new(3).threads(1).simulated(7).launch(|rank| check_control(rank)).unwrap();
    for ranks in [2, 3] {
        run(ranks, DEADLINE, |world| check_control(&world).unwrap());
    }
}

#[test]
fn messages_arrive_after_a_verdict() {
    for ranks in [2, 3, 5] {
        Local::run(ranks, |rank| check_control_after_failure(rank)).unwrap();
    }
    let simulated = Local::new(3).threads(1).simulated(7);
    simulated.launch(|rank| check_control_after_failure(rank)).unwrap();
    for ranks in [2, 3] {
        run(ranks, DEADLINE, |world| check_control_after_failure(&world).unwrap());
    }
}

/// The last rank sends nothing. The others learn which one is missing.
#[test]
fn a_rank_that_is_missing_is_named() {
    let errors = Local::run(3, |rank| -> Result<_> {
        let control = rank.control(9, Duration::from_millis(100))?;
        if rank.rank() == 2 {
            rank.clock().sleep(Duration::from_secs(1));
            return Ok(None);
        }
        Ok(Some(control.barrier().unwrap_err().to_string()))
    });
    let errors: Vec<String> = errors.unwrap().into_iter().flatten().collect();
    assert_eq!(errors.len(), 2);
    for error in errors {
        assert!(error.contains("rank 2"), "{error}");
    }
    let errors = run(3, DEADLINE, |world| {
        let control = world.control(9, Duration::from_millis(100)).unwrap();
        let error = (world.rank() < 2).then(|| control.barrier().unwrap_err().to_string());
        // The control plane itself; a verdict ends what waits for the same ranks.
        world.exchange().all_gather(&[]).unwrap();
        error
    });
    for error in errors.into_iter().flatten() {
        assert!(error.contains("rank 2"), "{error}");
    }
}

/// A plan, and a world of one, take their own messages for those of all ranks.
#[test]
fn without_other_ranks_messages_come_back() {
    let echoes = |control: ControlChannel, count: usize| {
        assert_eq!(control.all_gather(b"a").unwrap(), vec![b"a"; count]);
        assert_eq!(control.broadcast(count - 1, b"b").unwrap(), b"b");
        assert_eq!(control.any([true, false]).unwrap().wait().unwrap(), [true, false]);
    };
    let limit = Duration::ZERO;
    let plan = Plan::new(4).unwrap().trace(1, |rank| {
        echoes(rank.control(0, limit)?, 4);
        Ok::<_, Error>(())
    });
    assert_eq!(plan.unwrap().calls().count(), 0);
    let alone = LocalRank::alone(&Device::cpu()).unwrap();
    echoes(alone.control(0, limit).unwrap(), 1);
}
