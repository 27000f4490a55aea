//! Streams and events: which operations are ordered, and which are not.

use std::collections::BTreeSet;
use std::thread;

use super::{LEGACY, Machine, code, outcomes};
use crate::driver::configuration::StreamOrder;
use crate::driver::error::Code;
use crate::driver::memory::AllocationKind;
use crate::driver::transfer::CopyOrder;

#[test]
fn some_seed_exposes_a_missing_event() {
    let produce_and_consume = |machine: &Machine, has_event: bool| {
        let (producer, consumer) = (machine.stream(), machine.stream());
        let (from, to) = (machine.memory(), machine.memory());
        machine.fill(producer, from, 7).unwrap();
        if has_event {
            machine.order(producer, consumer);
        }
        machine.copy(consumer, to, from).unwrap();
        machine.driver.synchronize_context().unwrap();
        machine.byte(to)
    };
    assert_eq!(outcomes(|it| produce_and_consume(it, false)), BTreeSet::from([0, 7]));
    assert_eq!(outcomes(|it| produce_and_consume(it, true)), BTreeSet::from([7]));
}

#[test]
fn a_stream_runs_in_order_with_every_seed() {
    let last = outcomes(|machine| {
        let (stream, at) = (machine.stream(), machine.memory());
        for value in 1..=20 {
            machine.fill(stream, at, value).unwrap();
        }
        machine.driver.synchronize_stream(stream).unwrap();
        machine.byte(at)
    });
    assert_eq!(last, BTreeSet::from([20]));
}

/// The host may read pinned memory after a fill without a stream.
#[test]
fn a_synchronous_fill_of_pinned_memory_is_complete() {
    let bytes = outcomes(|machine| {
        let at = machine.driver.allocate(16, AllocationKind::Pinned).unwrap();
        machine.driver.fill(CopyOrder::Now, at, &[7], 16).unwrap();
        machine.byte(at)
    });
    assert_eq!(bytes, BTreeSet::from([7]));
}

/// No driver call precedes the host's read, so only its value can show that it is too early.
#[test]
fn an_early_read_of_managed_memory_finds_old_bytes_with_some_seed() {
    let read = |machine: &Machine, synchronizes: bool| {
        let at = machine.driver.allocate(16, AllocationKind::Managed).unwrap();
        let stream = machine.stream();
        machine.fill(stream, at, 7).unwrap();
        if synchronizes {
            machine.driver.synchronize_stream(stream).unwrap();
        }
        machine.byte(at)
    };
    assert_eq!(outcomes(|it| read(it, false)), BTreeSet::from([0, 7]));
    assert_eq!(outcomes(|it| read(it, true)), BTreeSet::from([7]));
}

#[test]
fn the_legacy_stream_synchronizes_with_blocking_streams_only() {
    let through_legacy = |machine: &Machine, first: u64, last: u64| {
        let (a, b, c) = (machine.memory(), machine.memory(), machine.memory());
        machine.fill(first, a, 7).unwrap();
        machine.copy(LEGACY, b, a).unwrap();
        machine.copy(last, c, b).unwrap();
        machine.driver.synchronize_context().unwrap();
        machine.byte(c)
    };
    let blocking = outcomes(|it| through_legacy(it, it.blocking_stream(), it.blocking_stream()));
    assert_eq!(blocking, BTreeSet::from([7]));
    let per_thread = outcomes(|it| through_legacy(it, 2, it.blocking_stream()));
    assert_eq!(per_thread, BTreeSet::from([7]));
    let destroyed = outcomes(|machine| {
        let (stream, a, b) = (machine.blocking_stream(), machine.memory(), machine.memory());
        machine.fill(stream, a, 7).unwrap();
        machine.driver.destroy_stream(stream).unwrap();
        machine.copy(LEGACY, b, a).unwrap();
        machine.driver.synchronize_stream(LEGACY).unwrap();
        machine.byte(b)
    });
    assert_eq!(destroyed, BTreeSet::from([7]));
    let free = outcomes(|it| through_legacy(it, it.stream(), it.stream()));
    assert_eq!(free, BTreeSet::from([0, 7]));
}

#[test]
fn synchronizing_an_event_completes_earlier_work() {
    let seen = outcomes(|machine| {
        let (stream, at) = (machine.stream(), machine.memory());
        let event = machine.driver.create_event(0).unwrap();
        machine.fill(stream, at, 7).unwrap();
        machine.driver.record_event(event, stream, 0).unwrap();
        machine.driver.synchronize_event(event).unwrap();
        assert_eq!(machine.driver.query_event(event), Ok(()));
        machine.byte(at)
    });
    assert_eq!(seen, BTreeSet::from([7]));
}

#[test]
fn polling_terminates() {
    let machine = Machine::new(StreamOrder::Random(3));
    let (stream, at) = (machine.stream(), machine.memory());
    for _ in 0..10 {
        machine.fill(stream, at, 7).unwrap();
    }
    let mut asked = 0;
    while code(machine.driver.query_stream(stream)) == Some(Code::NotReady) {
        asked += 1;
    }
    assert!((1..=10).contains(&asked), "{asked}");
    assert_eq!(machine.byte(at), 7);
}

#[test]
fn events_measure_time_and_report_misuse() {
    let machine = Machine::new(StreamOrder::Ordered);
    let driver = &machine.driver;
    let (start, end) = (driver.create_event(0).unwrap(), driver.create_event(0).unwrap());
    assert_eq!(driver.query_event(start), Ok(()));
    assert_eq!(code(driver.elapsed(start, end)), Some(Code::InvalidHandle));
    driver.record_event(start, LEGACY, 0).unwrap();
    driver.record_event(end, LEGACY, 0).unwrap();
    let forward = driver.elapsed(start, end).unwrap();
    assert!(forward >= 0.0);
    assert_eq!(driver.elapsed(end, start).unwrap(), -forward);

    let no_time = driver.create_event(2).unwrap();
    driver.record_event(no_time, LEGACY, 0).unwrap();
    assert_eq!(code(driver.elapsed(start, no_time)), Some(Code::InvalidHandle));
    driver.destroy_event(no_time).unwrap();
    assert_eq!(code(driver.destroy_event(no_time)), Some(Code::InvalidHandle));
    assert_eq!(code(driver.record_event(no_time, LEGACY, 0)), Some(Code::InvalidHandle));
    assert_eq!(code(driver.create_event(8)), Some(Code::InvalidValue));

    let machine = Machine::new(StreamOrder::Random(0));
    let event = machine.driver.create_event(0).unwrap();
    let (stream, at) = (machine.stream(), machine.memory());
    for _ in 0..50 {
        machine.fill(stream, at, 1).unwrap();
    }
    machine.driver.record_event(event, stream, 0).unwrap();
    assert_eq!(code(machine.driver.query_event(event)), Some(Code::NotReady));
}

#[test]
fn a_stream_waits_for_a_value_that_another_stream_writes() {
    for order in [StreamOrder::Ordered, StreamOrder::Random(5)] {
        let machine = Machine::new(order);
        let (waiting, writing) = (machine.stream(), machine.stream());
        let (flag, at) = (machine.memory(), machine.memory());
        machine.driver.wait_value(waiting, flag, 3, 4, 0).unwrap();
        machine.fill(waiting, at, 7).unwrap();
        machine.driver.write_value(writing, flag, &2_u32.to_le_bytes()).unwrap();
        machine.driver.synchronize_stream(writing).unwrap();
        assert_eq!(code(machine.driver.query_stream(waiting)), Some(Code::NotReady));
        assert_eq!(machine.byte(at), 0);
        machine.driver.write_value(writing, flag, &3_u32.to_le_bytes()).unwrap();
        machine.driver.synchronize_stream(waiting).unwrap();
        assert_eq!(machine.byte(at), 7);
        assert_eq!(
            code(machine.driver.wait_value(waiting, flag + 2, 3, 4, 0)),
            Some(Code::InvalidValue)
        );
    }
}

#[test]
fn threads_share_streams() {
    let machine = Machine::new(StreamOrder::Ordered);
    let (stream, at) = (machine.stream(), machine.memory());
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                machine.driver.push_context(machine.context).unwrap();
                for value in 0..200 {
                    machine.fill(stream, at, value).unwrap();
                    machine.order(stream, stream);
                }
                machine.fill(stream, at, 201).unwrap();
                machine.driver.synchronize_stream(stream).unwrap();
            });
        }
    });
    assert_eq!(machine.byte(at), 201);
}
