//! The driver's state machines, without the exported functions around them.

use std::collections::BTreeSet;
use std::thread;

use super::Driver;
use super::capture::{CaptureMode, CaptureStatus};
use super::configuration::{Configuration, Leaks, StreamOrder};
use super::context::ContextHandle;
use super::device::Model;
use super::error::{Code, Result};
use super::graph::ExecutableHandle;
use super::launch::Shape;
use super::memory::Kind;
use super::transfer::{End, Moment};
use super::work::Rows;
use crate::options::Options;

const LEGACY: u64 = 0;

/// A driver with one current context on its first device.
struct Machine {
    driver: Driver,
    context: ContextHandle,
}

impl Machine {
    fn new(streams: StreamOrder) -> Machine {
        Machine::with(Configuration {
            streams,
            ..Configuration::default()
        })
    }

    fn with(configuration: Configuration) -> Machine {
        let configuration = Configuration {
            quiet: true,
            ..configuration
        };
        let driver = Driver::new(configuration, Options::default());
        let context = driver.retain_primary(0).unwrap();
        driver.push_context(context).unwrap();
        Machine { driver, context }
    }

    /// A stream that the legacy default stream does not order.
    fn stream(&self) -> u64 {
        self.driver.create_stream(1, 0).unwrap().raw()
    }

    fn blocking_stream(&self) -> u64 {
        self.driver.create_stream(0, 0).unwrap().raw()
    }

    fn memory(&self) -> u64 {
        let address = self.driver.allocate(16, Kind::Device).unwrap();
        self.driver.space.fill(address, &[0], 16).unwrap();
        address
    }

    fn fill(&self, stream: u64, to: u64, value: u8) -> Result<()> {
        self.driver.fill(Moment::InStream(stream), to, &[value], 16)
    }

    fn copy(&self, stream: u64, to: u64, from: u64) -> Result<()> {
        let (to, from) = (End::Device(to), End::Device(from));
        self.driver
            .copy(Moment::InStream(stream), to, from, Rows::linear(16))
    }

    fn byte(&self, address: u64) -> u8 {
        let mut byte = [0];
        self.driver.space.read(address, &mut byte).unwrap();
        byte[0]
    }

    /// Makes `later` wait for what `earlier` has to do.
    fn order(&self, earlier: u64, later: u64) {
        let event = self.driver.create_event(0).unwrap();
        self.driver.record_event(event, earlier, 0).unwrap();
        self.driver.wait_event(later, event, 0).unwrap();
        self.driver.destroy_event(event).unwrap();
    }

    /// What is captured while `act` runs in `stream`, ready to be launched.
    fn capture(&self, stream: u64, act: impl FnOnce()) -> ExecutableHandle {
        self.driver
            .begin_capture(stream, CaptureMode::Global)
            .unwrap();
        act();
        let graph = self.driver.end_capture(stream).unwrap();
        let executable = self.driver.instantiate(graph, 0).unwrap();
        self.driver.destroy_graph(graph).unwrap();
        executable
    }
}

fn code<T>(result: Result<T>) -> Option<Code> {
    result.err().map(|error| error.code)
}

/// What `run` gives with many seeds.
fn outcomes(run: impl Fn(&Machine) -> u8) -> BTreeSet<u8> {
    let seeds = 0..64;
    seeds
        .map(|seed| run(&Machine::new(StreamOrder::Random(seed))))
        .collect()
}

#[test]
fn a_missing_event_is_seen_by_some_seed() {
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
    assert_eq!(
        outcomes(|it| produce_and_consume(it, false)),
        BTreeSet::from([0, 7])
    );
    assert_eq!(
        outcomes(|it| produce_and_consume(it, true)),
        BTreeSet::from([7])
    );
}

#[test]
fn a_stream_runs_in_order_whatever_the_seed() {
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

#[test]
fn the_legacy_stream_orders_blocking_streams_only() {
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
    let free = outcomes(|it| through_legacy(it, it.stream(), it.stream()));
    assert_eq!(free, BTreeSet::from([0, 7]));
}

#[test]
fn the_host_sees_what_it_waited_for() {
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
fn asking_again_and_again_gets_there() {
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
fn events_tell_times_and_what_is_wrong_with_them() {
    let machine = Machine::new(StreamOrder::Ordered);
    let driver = &machine.driver;
    let (start, end) = (
        driver.create_event(0).unwrap(),
        driver.create_event(0).unwrap(),
    );
    assert_eq!(driver.query_event(start), Ok(()));
    assert_eq!(code(driver.elapsed(start, end)), Some(Code::InvalidHandle));
    driver.record_event(start, LEGACY, 0).unwrap();
    driver.record_event(end, LEGACY, 0).unwrap();
    let forward = driver.elapsed(start, end).unwrap();
    assert!(forward >= 0.0);
    assert_eq!(driver.elapsed(end, start).unwrap(), -forward);

    let no_time = driver.create_event(2).unwrap();
    driver.record_event(no_time, LEGACY, 0).unwrap();
    assert_eq!(
        code(driver.elapsed(start, no_time)),
        Some(Code::InvalidHandle)
    );
    driver.destroy_event(no_time).unwrap();
    assert_eq!(
        code(driver.destroy_event(no_time)),
        Some(Code::InvalidHandle)
    );
    assert_eq!(
        code(driver.record_event(no_time, LEGACY, 0)),
        Some(Code::InvalidHandle)
    );
    assert_eq!(code(driver.create_event(8)), Some(Code::InvalidValue));

    let machine = Machine::new(StreamOrder::Random(0));
    let event = machine.driver.create_event(0).unwrap();
    let (stream, at) = (machine.stream(), machine.memory());
    for _ in 0..50 {
        machine.fill(stream, at, 1).unwrap();
    }
    machine.driver.record_event(event, stream, 0).unwrap();
    assert_eq!(
        code(machine.driver.query_event(event)),
        Some(Code::NotReady)
    );
}

#[test]
fn a_stream_waits_for_a_value_that_another_writes() {
    for order in [StreamOrder::Ordered, StreamOrder::Random(5)] {
        let machine = Machine::new(order);
        let (waiting, writing) = (machine.stream(), machine.stream());
        let (flag, at) = (machine.memory(), machine.memory());
        machine.driver.wait_value(waiting, flag, 3, 4, 0).unwrap();
        machine.fill(waiting, at, 7).unwrap();
        machine
            .driver
            .write_value(writing, flag, &2_u32.to_le_bytes())
            .unwrap();
        machine.driver.synchronize_stream(writing).unwrap();
        assert_eq!(
            code(machine.driver.query_stream(waiting)),
            Some(Code::NotReady)
        );
        assert_eq!(machine.byte(at), 0);
        machine
            .driver
            .write_value(writing, flag, &3_u32.to_le_bytes())
            .unwrap();
        machine.driver.synchronize_stream(waiting).unwrap();
        assert_eq!(machine.byte(at), 7);
        assert_eq!(
            code(machine.driver.wait_value(waiting, flag + 2, 3, 4, 0)),
            Some(Code::InvalidValue)
        );
    }
}

#[test]
fn contexts_stack_and_end() {
    let machine = Machine::with(Configuration {
        devices: vec![Model::H200, Model::A100],
        ..Configuration::default()
    });
    let driver = &machine.driver;
    let created = driver.create_context(1, 0).unwrap();
    assert_eq!(driver.current_context(), Ok(Some(created)));
    assert_eq!(driver.current_device(), Ok(1));
    assert_eq!(driver.pop_context(), Ok(created));
    assert_eq!(driver.current_device(), Ok(0));

    driver.set_current_context(Some(created)).unwrap();
    driver.destroy_context(created).unwrap();
    assert_eq!(code(driver.current_device()), Some(Code::InvalidContext));
    assert_eq!(
        code(driver.push_context(created)),
        Some(Code::ContextIsDestroyed)
    );

    driver.push_context(machine.context).unwrap();
    assert_eq!(driver.retain_primary(0), Ok(machine.context));
    driver.release_primary(0).unwrap();
    assert_eq!(driver.current_device(), Ok(0));
    driver.release_primary(0).unwrap();
    assert_eq!(
        code(driver.current_device()),
        Some(Code::ContextIsDestroyed)
    );
    assert_eq!(code(driver.release_primary(0)), Some(Code::InvalidContext));
    // A primary context is known by the same handle when it begins anew.
    assert_eq!(driver.retain_primary(0), Ok(machine.context));
    assert_eq!(driver.current_device(), Ok(0));
    assert_eq!(code(driver.retain_primary(2)), Some(Code::InvalidDevice));

    let elsewhere = thread::scope(|scope| scope.spawn(|| driver.current_device()).join());
    assert_eq!(code(elsewhere.unwrap()), Some(Code::InvalidContext));
}

#[test]
fn limits_are_those_of_the_device() {
    let machine = Machine::with(Configuration {
        devices: vec![Model::H200, Model::A100],
        ..Configuration::default()
    });
    let driver = &machine.driver;
    let stack = driver.limit(0).unwrap();
    driver.set_limit(0, stack * 2).unwrap();
    assert_eq!(driver.limit(0), Ok(stack * 2));
    // The depth of synchronisation by kernels is gone since compute capability 9.0.
    assert_eq!(code(driver.limit(3)), Some(Code::UnsupportedLimit));
    assert_eq!(code(driver.limit(99)), Some(Code::UnsupportedLimit));
    driver.create_context(1, 0).unwrap();
    assert_eq!(driver.limit(3), Ok(2));
}

#[test]
fn memory_ends_and_comes_back() {
    let machine = Machine::with(Configuration {
        memory: Some(1 << 20),
        ..Configuration::default()
    });
    let driver = &machine.driver;
    assert_eq!(driver.memory_info(), Ok((1 << 20, 1 << 20)));
    let half = driver.allocate(1 << 19, Kind::Device).unwrap();
    assert_eq!(driver.memory_info(), Ok((1 << 19, 1 << 20)));
    let error = driver.allocate((1 << 19) + 1, Kind::Device).unwrap_err();
    assert_eq!(error.code, Code::OutOfMemory);
    assert!(
        error
            .message
            .contains("524289 bytes asked for and 524288 of 1048576 free"),
        "{error}"
    );
    // Page-locked memory is the host's.
    let pinned = driver.allocate(1 << 21, Kind::Pinned).unwrap();
    assert_eq!(code(driver.free(pinned)), Some(Code::InvalidValue));
    driver.free_host(pinned).unwrap();
    driver.free(half).unwrap();
    assert_eq!(driver.memory_info(), Ok((1 << 20, 1 << 20)));

    let error = driver.free(half).unwrap_err();
    assert!(
        error
            .message
            .contains("allocation #1 (524288 bytes, device 0, freed)"),
        "{error}"
    );
    assert_eq!(
        code(driver.allocate(0, Kind::Device)),
        Some(Code::InvalidValue)
    );
    assert_eq!(driver.free(0), Ok(()));
    let at = driver.allocate(64, Kind::Device).unwrap();
    assert_eq!(code(driver.free(at + 8)), Some(Code::InvalidValue));
    assert_eq!(
        code(machine.fill(LEGACY, at + 56, 1)),
        Some(Code::InvalidValue)
    );
    assert_eq!(
        code(driver.fill(Moment::Now, at + 1, &[0; 4], 1)),
        Some(Code::InvalidValue)
    );
}

#[test]
fn pools_keep_what_their_threshold_says() {
    let machine = Machine::with(Configuration {
        memory: Some(1 << 20),
        ..Configuration::default()
    });
    let driver = &machine.driver;
    let pool = driver.default_pool(0).unwrap();
    let levels = || [5, 6, 7, 8].map(|attribute| driver.pool_attribute(pool, attribute).unwrap());
    let stream = machine.stream();

    let first = driver.allocate_async(1000, None, stream).unwrap();
    let second = driver.allocate_async(500, None, stream).unwrap();
    assert_eq!(levels(), [1500, 1500, 1500, 1500]);
    driver.free_async(first, stream).unwrap();
    assert_eq!(levels(), [1500, 1500, 500, 1500]);
    // The pool has these 900 already.
    let third = driver.allocate_async(900, None, stream).unwrap();
    assert_eq!(levels(), [1500, 1500, 1400, 1500]);
    driver.free_async(third, stream).unwrap();
    driver.synchronize_stream(stream).unwrap();
    assert_eq!(levels(), [500, 1500, 500, 1500]);

    driver.set_pool_attribute(pool, 4, 1200).unwrap();
    let third = driver.allocate_async(900, None, stream).unwrap();
    driver.free_async(third, stream).unwrap();
    driver.synchronize_stream(stream).unwrap();
    assert_eq!(levels()[0], 1200);
    // What a pool keeps is there for others when they need it.
    let rest = driver.allocate((1 << 20) - 500, Kind::Device).unwrap();
    assert_eq!(levels()[0], 500);
    driver.free(rest).unwrap();
    driver.trim_pool(pool, 0).unwrap();
    driver.set_pool_attribute(pool, 6, 0).unwrap();
    assert_eq!(levels()[..2], [500, 500]);
    driver.free(second).unwrap();
    assert_eq!(
        code(driver.free_async(second, stream)),
        Some(Code::InvalidValue)
    );

    let own = driver.create_pool(0).unwrap();
    driver.set_device_pool(0, own).unwrap();
    assert_eq!(driver.device_pool(0), Ok(own));
    driver.destroy_pool(own).unwrap();
    assert_eq!(driver.device_pool(0), Ok(pool));
    assert_eq!(code(driver.trim_pool(own, 0)), Some(Code::InvalidValue));
    assert_eq!(code(driver.destroy_pool(pool)), Some(Code::InvalidValue));
}

#[test]
fn memory_freed_in_a_stream_is_free_for_those_who_wait_for_it() {
    for seed in 0..20 {
        let machine = Machine::with(Configuration {
            memory: Some(1000),
            streams: StreamOrder::Random(seed),
            ..Configuration::default()
        });
        let stream = machine.stream();
        for _ in 0..10 {
            let at = machine.driver.allocate_async(900, None, stream).unwrap();
            machine.fill(stream, at, 1).unwrap();
            machine.driver.free_async(at, stream).unwrap();
            // Whoever uses it later in the program is wrong, whether it was freed already or not.
            assert_eq!(code(machine.fill(stream, at, 2)), Some(Code::InvalidValue));
            assert_eq!(
                code(machine.driver.free_async(at, stream)),
                Some(Code::InvalidValue)
            );
        }
    }
}

#[test]
fn a_free_that_overtakes_a_use_is_an_error_that_stays() {
    let failed = (0..64).filter(|seed| {
        let machine = Machine::new(StreamOrder::Random(*seed));
        let driver = &machine.driver;
        let (using, freeing) = (machine.stream(), machine.stream());
        let at = driver.allocate_async(16, None, freeing).unwrap();
        machine.fill(using, at, 1).unwrap();
        // Whichever call comes after the failure tells of it.
        let freed = driver.free_async(at, freeing);
        let Err(error) = freed.and_then(|()| driver.synchronize_context()) else {
            return false;
        };
        assert_eq!(error.code, Code::IllegalAddress);
        assert!(error.message.contains("freed"), "{error}");
        assert_eq!(
            code(driver.allocate(16, Kind::Device)),
            Some(Code::IllegalAddress)
        );
        assert_eq!(
            code(driver.synchronize_stream(using)),
            Some(Code::IllegalAddress)
        );
        assert!(driver.reports().last().contains("came too late"));
        true
    });
    let failed = failed.count();
    assert!((1..64).contains(&failed), "{failed} of 64 seeds");
}

#[test]
fn capture_records_and_graphs_replay() {
    for order in [
        StreamOrder::Ordered,
        StreamOrder::Random(1),
        StreamOrder::Random(2),
    ] {
        let machine = Machine::new(order);
        let driver = &machine.driver;
        let (origin, side) = (machine.stream(), machine.stream());
        let [a, b, c] = [0; 3].map(|_| machine.memory());
        let executable = machine.capture(origin, || {
            machine.copy(origin, b, a).unwrap();
            machine.order(origin, side);
            machine.copy(side, c, b).unwrap();
            machine.order(side, origin);
            machine.fill(origin, a, 9).unwrap();
            assert_eq!(driver.capture_status(side), Ok(CaptureStatus::Active));
        });
        assert_eq!(driver.capture_status(side), Ok(CaptureStatus::None));
        assert_eq!(machine.byte(a), 0);

        machine.fill(origin, a, 5).unwrap();
        driver.launch_graph(executable, origin).unwrap();
        driver.synchronize_stream(origin).unwrap();
        assert_eq!([a, b, c].map(|at| machine.byte(at)), [9, 5, 5]);
        driver.launch_graph(executable, side).unwrap();
        driver.launch_graph(executable, origin).unwrap();
        driver.synchronize_context().unwrap();
        assert_eq!([a, b, c].map(|at| machine.byte(at)), [9, 9, 9]);
        driver.destroy_executable(executable).unwrap();
        assert_eq!(
            code(driver.launch_graph(executable, origin)),
            Some(Code::InvalidValue)
        );
    }
}

#[test]
fn graphs_can_be_parts_of_graphs() {
    let machine = Machine::new(StreamOrder::Random(4));
    let driver = &machine.driver;
    let stream = machine.stream();
    let (a, b) = (machine.memory(), machine.memory());
    let inner = machine.capture(stream, || {
        machine.fill(stream, a, 1).unwrap();
        machine.copy(stream, b, a).unwrap();
    });
    let outer = machine.capture(stream, || {
        driver.launch_graph(inner, stream).unwrap();
        machine.fill(stream, a, 2).unwrap();
    });
    driver.launch_graph(outer, stream).unwrap();
    driver.synchronize_stream(stream).unwrap();
    assert_eq!((machine.byte(a), machine.byte(b)), (2, 1));
}

#[test]
fn what_a_capture_cannot_contain_breaks_it() {
    let refusals: [(&str, Code, fn(&Machine, u64) -> Option<Code>); 7] = [
        (
            "a synchronised stream",
            Code::StreamCaptureUnsupported,
            |it, stream| code(it.driver.synchronize_stream(stream)),
        ),
        ("a query", Code::StreamCaptureUnsupported, |it, stream| {
            code(it.driver.query_stream(stream))
        }),
        (
            "a synchronised context",
            Code::StreamCaptureUnsupported,
            |it, _| code(it.driver.synchronize_context()),
        ),
        ("an allocation", Code::StreamCaptureUnsupported, |it, _| {
            code(it.driver.allocate(16, Kind::Device))
        }),
        ("the legacy stream", Code::StreamCaptureImplicit, |it, _| {
            code(it.driver.fill(Moment::InStream(LEGACY), 0, &[0], 0))
        }),
        (
            "an event from outside",
            Code::StreamCaptureIsolation,
            |it, stream| {
                let (event, other) = (it.driver.create_event(0).unwrap(), it.stream());
                it.driver.record_event(event, other, 0).unwrap();
                code(it.driver.wait_event(stream, event, 0))
            },
        ),
        ("another capture", Code::StreamCaptureMerge, |it, stream| {
            let (event, other) = (it.driver.create_event(0).unwrap(), it.stream());
            it.driver.begin_capture(other, CaptureMode::Global).unwrap();
            it.driver.record_event(event, other, 0).unwrap();
            code(it.driver.wait_event(stream, event, 0))
        }),
    ];
    for (name, expected, refused) in refusals {
        let machine = Machine::new(StreamOrder::Ordered);
        let stream = machine.blocking_stream();
        machine
            .driver
            .begin_capture(stream, CaptureMode::Global)
            .unwrap();
        assert_eq!(refused(&machine, stream), Some(expected), "{name}");
        let status = machine.driver.capture_status(stream);
        assert_eq!(status, Ok(CaptureStatus::Invalidated), "{name}");
        let more = machine.driver.submit(stream, super::work::Work::Join);
        assert_eq!(code(more), Some(Code::StreamCaptureInvalidated), "{name}");
        let end = machine.driver.end_capture(stream);
        assert_eq!(code(end), Some(Code::StreamCaptureInvalidated), "{name}");
        assert_eq!(
            machine.driver.capture_status(stream),
            Ok(CaptureStatus::None),
            "{name}"
        );
    }
}

#[test]
fn captures_begin_and_end_as_they_should() {
    let machine = Machine::new(StreamOrder::Ordered);
    let driver = &machine.driver;
    let (origin, side) = (machine.stream(), machine.stream());
    let begin = |stream, mode| driver.begin_capture(stream, mode);

    assert_eq!(code(driver.end_capture(origin)), Some(Code::IllegalState));
    assert_eq!(
        code(begin(LEGACY, CaptureMode::Relaxed)),
        Some(Code::StreamCaptureUnsupported)
    );
    begin(origin, CaptureMode::ThreadLocal).unwrap();
    assert_eq!(
        code(begin(origin, CaptureMode::Global)),
        Some(Code::IllegalState)
    );
    let elsewhere = thread::scope(|scope| {
        let end = || {
            driver.push_context(machine.context)?;
            // A thread-local capture concerns no other thread.
            driver.allocate(16, Kind::Device)?;
            driver.end_capture(origin)
        };
        scope.spawn(end).join().unwrap()
    });
    assert_eq!(code(elsewhere), Some(Code::StreamCaptureWrongThread));
    driver.end_capture(origin).unwrap();

    begin(origin, CaptureMode::Global).unwrap();
    machine.order(origin, side);
    machine.fill(side, machine_memory(&machine), 1).unwrap();
    assert_eq!(
        code(driver.end_capture(origin)),
        Some(Code::StreamCaptureUnjoined)
    );
    assert_eq!(driver.capture_status(side), Ok(CaptureStatus::None));

    begin(origin, CaptureMode::Global).unwrap();
    machine.order(origin, side);
    assert_eq!(
        code(driver.end_capture(side)),
        Some(Code::StreamCaptureUnmatched)
    );
    assert_eq!(
        code(driver.end_capture(origin)),
        Some(Code::StreamCaptureInvalidated)
    );

    // A relaxed capture makes nothing unsafe, and a thread may ask for that too.
    begin(origin, CaptureMode::Relaxed).unwrap();
    driver.allocate(16, Kind::Device).unwrap();
    driver.end_capture(origin).unwrap();
    begin(origin, CaptureMode::Global).unwrap();
    let before = driver.exchange_capture_mode(CaptureMode::Relaxed);
    assert_eq!(before, CaptureMode::Global);
    driver.allocate(16, Kind::Device).unwrap();
    driver.exchange_capture_mode(before);
    driver.end_capture(origin).unwrap();
}

/// Memory from a thread that may ask for it while a stream captures.
fn machine_memory(machine: &Machine) -> u64 {
    let before = machine.driver.exchange_capture_mode(CaptureMode::Relaxed);
    let address = machine.memory();
    machine.driver.exchange_capture_mode(before);
    address
}

#[test]
fn a_captured_event_is_only_good_in_its_capture() {
    let machine = Machine::new(StreamOrder::Ordered);
    let driver = &machine.driver;
    let (origin, other) = (machine.stream(), machine.stream());
    let event = driver.create_event(0).unwrap();
    driver.begin_capture(origin, CaptureMode::Relaxed).unwrap();
    driver.record_event(event, origin, 0).unwrap();
    assert_eq!(code(driver.query_event(event)), Some(Code::CapturedEvent));
    assert_eq!(
        code(driver.synchronize_event(event)),
        Some(Code::CapturedEvent)
    );
    driver.end_capture(origin).unwrap();
    assert_eq!(
        code(driver.wait_event(other, event, 0)),
        Some(Code::CapturedEvent)
    );
    // Recorded anew, it is an event like others.
    driver.record_event(event, origin, 0).unwrap();
    driver.wait_event(other, event, 0).unwrap();
    driver.synchronize_event(event).unwrap();
}

#[test]
fn external_events_are_nodes() {
    let machine = Machine::new(StreamOrder::Random(8));
    let driver = &machine.driver;
    let (stream, at) = (machine.stream(), machine.memory());
    let event = driver.create_event(0).unwrap();
    let executable = machine.capture(stream, || {
        machine.fill(stream, at, 7).unwrap();
        driver.record_event(event, stream, 1).unwrap();
    });
    driver.launch_graph(executable, stream).unwrap();
    driver.synchronize_event(event).unwrap();
    assert_eq!(machine.byte(at), 7);
}

#[test]
fn memory_of_graphs_is_freed_between_launches() {
    let machine = Machine::with(Configuration {
        memory: Some(1 << 16),
        ..Configuration::default()
    });
    let driver = &machine.driver;
    let stream = machine.stream();
    let allocating = |frees: bool| {
        let mut address = 0;
        driver.begin_capture(stream, CaptureMode::Global).unwrap();
        address += driver.allocate_async(16, None, stream).unwrap();
        machine.fill(stream, address, 3).unwrap();
        if frees {
            driver.free_async(address, stream).unwrap();
        }
        (driver.end_capture(stream).unwrap(), address)
    };
    let (graph, address) = allocating(false);
    let executable = driver.instantiate(graph, 0).unwrap();
    assert_eq!(code(driver.free(address)), Some(Code::InvalidValue));
    driver.launch_graph(executable, stream).unwrap();
    assert_eq!(machine.byte(address), 3);
    assert_eq!(
        code(driver.launch_graph(executable, stream)),
        Some(Code::InvalidValue)
    );
    driver.free_async(address, stream).unwrap();
    driver.launch_graph(executable, stream).unwrap();

    let freeing = driver.instantiate(graph, 1).unwrap();
    driver.launch_graph(freeing, stream).unwrap();
    driver.launch_graph(freeing, stream).unwrap();
    for executable in [executable, freeing] {
        driver.destroy_executable(executable).unwrap();
    }
    driver.destroy_graph(graph).unwrap();
    let (graph, _) = allocating(true);
    let executable = driver.instantiate(graph, 0).unwrap();
    driver.launch_graph(executable, stream).unwrap();
    driver.launch_graph(executable, stream).unwrap();
    driver.destroy_executable(executable).unwrap();
    driver.destroy_graph(graph).unwrap();
    driver.synchronize_context().unwrap();
    assert_eq!(driver.memory_info(), Ok((1 << 16, 1 << 16)));
    assert_eq!(code(driver.instantiate(graph, 0)), Some(Code::InvalidValue));
}

#[test]
fn what_a_context_still_holds_is_told() {
    let machine = Machine::with(Configuration {
        leaks: Leaks::Error,
        ..Configuration::default()
    });
    let driver = &machine.driver;
    let kept = driver.allocate(100, Kind::Device).unwrap();
    driver.allocate(50, Kind::Pinned).unwrap();
    machine.stream();
    driver.create_event(0).unwrap();
    driver.load(STORE).unwrap();
    let error = driver.release_primary(0).unwrap_err();
    assert_eq!(error.code, Code::IllegalState);
    for words in [
        "5 things with 150 bytes",
        "allocation #1 (100 bytes, device 0)",
        "(50 bytes, pinned host memory)",
        "stream",
        "event",
        "module",
    ] {
        assert!(error.message.contains(words), "{words}: {error}");
    }
    assert!(driver.reports().last().contains("5 things"));
    assert!(driver.space.live().is_empty());
    assert_eq!(driver.space.find(kept), None);

    driver.retain_primary(0).unwrap();
    driver.release_primary(0).unwrap();
}

/// Stores its parameter where its first points, plus `offset` elements.
const STORE: &str = "
    .version 8.0
    .target sm_80
    .address_size 64
    .global .align 4 .u32 base = 40;
    .visible .entry store(.param .u64 to, .param .u32 value, .param .u32 offset)
    {
        .reg .u64 %to, %at;
        .reg .u32 %value, %offset, %base;
        ld.param.u64 %to, [to];
        ld.param.u32 %value, [value];
        ld.param.u32 %offset, [offset];
        ld.global.u32 %base, [base];
        add.u32 %value, %value, %base;
        mul.wide.u32 %at, %offset, 4;
        add.u64 %at, %to, %at;
        st.global.u32 [%at], %value;
        ret;
    }
    .visible .entry shared(.param .u64 to)
    .maxntid 64, 1, 1
    {
        .shared .align 4 .b8 room[4096];
        ret;
    }";

fn parameters(to: u64, value: u32, offset: u32) -> Box<[u8]> {
    let words = [value.to_le_bytes(), offset.to_le_bytes()].concat();
    [&to.to_le_bytes()[..], &words].concat().into()
}

const ONE_THREAD: Shape = Shape {
    grid: [1; 3],
    block: [1; 3],
    dynamic_shared: 0,
    is_cooperative: false,
};

#[test]
fn kernels_run_in_the_order_of_their_stream() {
    for order in [StreamOrder::Ordered, StreamOrder::Random(2)] {
        let machine = Machine::new(order);
        let driver = &machine.driver;
        let module = driver.load(STORE).unwrap();
        let store = driver.function(module, "store").unwrap();
        assert_eq!(driver.function(module, "store"), Ok(store));
        let (stream, at) = (machine.stream(), machine.memory());
        driver
            .launch(store, ONE_THREAD, stream, parameters(at, 2, 1))
            .unwrap();
        driver.synchronize_stream(stream).unwrap();
        assert_eq!(machine.byte(at + 4), 42);

        let (base, bytes) = driver.global(module, "base").unwrap();
        assert_eq!(bytes, 4);
        driver
            .fill(Moment::InStream(stream), base, &7_u32.to_le_bytes(), 1)
            .unwrap();
        driver
            .launch(store, ONE_THREAD, stream, parameters(at, 2, 1))
            .unwrap();
        driver.synchronize_stream(stream).unwrap();
        assert_eq!(machine.byte(at + 4), 9);
        driver.unload(module).unwrap();
        assert_eq!(
            code(driver.launch(store, ONE_THREAD, stream, parameters(at, 2, 1))),
            Some(Code::InvalidHandle)
        );
    }
}

#[test]
fn a_kernel_that_fails_makes_its_context_unusable() {
    for order in [StreamOrder::Ordered, StreamOrder::Random(2)] {
        let machine = Machine::new(order);
        let driver = &machine.driver;
        let module = driver.load(STORE).unwrap();
        let store = driver.function(module, "store").unwrap();
        let at = machine.memory();
        let launched = driver.launch(store, ONE_THREAD, LEGACY, parameters(at, 1, 4));
        if order == StreamOrder::Ordered {
            assert_eq!(code(launched), Some(Code::IllegalAddress));
        }
        let error = driver.synchronize_context().unwrap_err();
        assert_eq!(error.code, Code::IllegalAddress);
        for words in ["store", "st.global.u32", "past the end of allocation #"] {
            assert!(error.message.contains(words), "{error}");
        }
        assert_eq!(code(driver.create_event(0)), Some(Code::IllegalAddress));
        // Only the end of the context helps.
        driver.release_primary(0).unwrap();
        driver.retain_primary(0).unwrap();
        driver.create_event(0).unwrap();
    }
}

#[test]
fn what_cannot_be_launched_is_refused_before() {
    let machine = Machine::new(StreamOrder::Ordered);
    let driver = &machine.driver;
    let module = driver.load(STORE).unwrap();
    let kernel = driver.function(module, "shared").unwrap();
    let launch = |block: u32, dynamic_shared: u32| {
        let shape = Shape {
            block: [block, 1, 1],
            dynamic_shared,
            ..ONE_THREAD
        };
        code(driver.launch(kernel, shape, LEGACY, Box::from([0; 8])))
    };
    assert_eq!(launch(64, 0), None);
    assert_eq!(launch(65, 0), Some(Code::InvalidValue));
    assert_eq!(launch(1, 44 * 1024), None);
    assert_eq!(launch(1, 44 * 1024 + 1), Some(Code::InvalidValue));
    let allow = |bytes| code(driver.set_function_attribute(kernel, 8, bytes));
    assert_eq!(allow(232_448 - 4096 + 1), Some(Code::InvalidValue));
    assert_eq!(allow(232_448 - 4096), None);
    assert_eq!(launch(1, 232_448 - 4096), None);

    let attribute = |number| driver.function_attribute(kernel, number);
    assert_eq!(
        (attribute(0), attribute(1), attribute(6)),
        (Ok(64), Ok(4096), Ok(90))
    );
    assert_eq!(code(attribute(99)), Some(Code::InvalidValue));
    let cooperative = Shape {
        grid: [132 * 32 + 1, 1, 1],
        is_cooperative: true,
        ..ONE_THREAD
    };
    assert_eq!(
        code(driver.launch(kernel, cooperative, LEGACY, Box::from([0; 8]))),
        Some(Code::CooperativeLaunchTooLarge)
    );
    assert_eq!(
        code(driver.function(module, "missing")),
        Some(Code::NotFound)
    );
    assert_eq!(code(driver.global(module, "missing")), Some(Code::NotFound));

    let other = driver.create_context(0, 0).unwrap();
    let launched = driver.launch(kernel, ONE_THREAD, LEGACY, Box::from([0; 8]));
    assert_eq!(code(launched), Some(Code::InvalidHandle));
    driver.destroy_context(other).unwrap();
}

#[test]
fn text_that_is_no_ptx_is_explained() {
    let machine = Machine::new(StreamOrder::Ordered);
    let wrong = STORE.replace("add.u64", "add.x64");
    let error = machine.driver.load(&wrong).unwrap_err();
    assert_eq!(error.code, Code::InvalidPtx);
    assert!(error.message.contains("add.x64"), "{error}");
    assert!(machine.driver.space.live().is_empty());
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
