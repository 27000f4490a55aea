//! Operands whose `Pending` was dropped are freed at the right time. On a GPU, freeing waits for
//! the GPU, so it must happen after the other members were notified and without holding a lock.

use std::panic::Location;
use std::sync::atomic::{AtomicBool, Ordering};

use meshgrad_collectives::{Collective, Counters, Counts, Request};

use super::*;
use crate::contribution::Contribution;

fn table(members: usize, deadline: Duration) -> Arc<Table> {
    let group = Group::new((0..members).collect::<Vec<_>>()).unwrap();
    Arc::new(Table::new(group, deadline, Arc::default()))
}

/// The first call of a rank.
fn call(collective: Collective, contribution: Contribution) -> Vec<Arrival> {
    let request = Request {
        fingerprint: Fingerprint {
            collective,
            dtype: None,
            counts: Counts::Even(0),
            reduction: None,
            root: None,
        },
        peer: None,
        caller: Location::caller(),
    };
    vec![Arrival { ticket: Counters::new(1).ticket(request), contribution }]
}

fn barrier(contribution: Contribution) -> Vec<Arrival> {
    call(Collective::Barrier, contribution)
}

fn nothing() -> Contribution {
    Contribution::observed(|| {})
}

/// Rank 0 starts a barrier and drops its `Pending`; then `end` ends the barrier. Returns whether
/// the operands were freed only after the barrier was complete, and with no lock held.
fn freed_after_completion(table: &Arc<Table>, end: impl FnOnce()) -> bool {
    let (freed, in_time) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
    let completion = Arc::<Mutex<Option<Completion>>>::default();
    let dropped = {
        let (table, completion) = (table.clone(), completion.clone());
        let (freed, in_time) = (freed.clone(), in_time.clone());
        move || {
            let completion = completion.lock().unwrap();
            let is_complete = completion.as_ref().unwrap().is_complete();
            let is_unlocked = table.state.try_lock().is_ok() && table.world.watch.is_unlocked();
            freed.store(true, Ordering::Relaxed);
            in_time.store(is_complete && is_unlocked, Ordering::Relaxed);
        }
    };
    let begun = table.arrive(0, barrier(Contribution::observed(dropped)));
    *completion.lock().unwrap() = Some(begun.unwrap().completion);
    end();
    assert!(freed.load(Ordering::Relaxed));
    in_time.load(Ordering::Relaxed)
}

#[test]
fn operands_are_freed_after_success() {
    let table = table(2, Duration::MAX);
    assert!(freed_after_completion(&table, || {
        table.arrive(1, barrier(nothing())).unwrap();
    }));
}

#[test]
fn operands_are_freed_after_a_mismatch() {
    let table = table(3, Duration::MAX);
    assert!(freed_after_completion(&table, || {
        let error = table.arrive(1, call(Collective::AllReduce, nothing())).err().unwrap();
        assert!(matches!(error.details(), Some(CommError::Mismatch { .. })));
    }));
}

#[test]
fn operands_are_freed_after_a_verdict() {
    let table = table(3, Duration::ZERO);
    assert!(freed_after_completion(&table, || {
        let begun = table.arrive(1, barrier(nothing())).unwrap();
        table.wait(&begun, &Clock::real()).unwrap_err();
    }));
}

#[test]
fn operands_are_freed_after_a_rank_has_returned() {
    let table = table(2, Duration::MAX);
    assert!(freed_after_completion(&table, || {
        table.world.status.set_returned(1);
        table.fail_missing_returned();
    }));
}

#[test]
fn operands_are_freed_after_a_straggler() {
    let table = table(2, Duration::MAX);
    assert!(freed_after_completion(&table, || {
        let key = *table.lock().open.keys().next().unwrap();
        table.set_late(key);
        let late = table.arrive(1, barrier(nothing())).err().unwrap();
        assert!(matches!(late.details(), Some(CommError::Straggler { .. })));
    }));
}

/// Between its arrival and its verdict, a late member is not reported as missing.
#[test]
fn a_late_member_is_not_missing() {
    let table = table(2, Duration::ZERO);
    let begun = table.arrive(0, barrier(nothing())).unwrap();
    table.set_late(begun.key);
    let late = barrier(nothing());
    let added = table.add(&mut table.lock(), begun.key, (1, 1), late, Duration::ZERO);
    assert!(matches!(added, Ok((_, Next::TooLate(_)))));

    let Shared { watch, status, .. } = &*table.world;
    let open: Arc<dyn OpenCollectives> = table.clone();
    let _waiting = watch.enter(0, begun.key, open.clone());
    let limit = table.deadline;
    let expiry = watch.expire(begun.key, &open, status, limit, Attempt::AfterGrace);
    assert!(matches!(expiry, Expiry::Extend));
    assert!(!begun.completion.is_complete());
}
