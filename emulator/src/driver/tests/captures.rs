//! Capture and graphs.

use std::thread;

use super::{LEGACY, Machine, code};
use crate::driver::capture::CaptureMode;
use crate::driver::capture::CaptureStatus;
use crate::driver::configuration::Configuration;
use crate::driver::configuration::StreamOrder;
use crate::driver::error::Code;
use crate::driver::memory::AllocationKind;
use crate::driver::transfer::CopyOrder;
use crate::driver::work::Work;

#[test]
fn capture_records_and_graphs_replay() {
    for order in [StreamOrder::Ordered, StreamOrder::Random(1), StreamOrder::Random(2)] {
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
        assert_eq!(code(driver.launch_graph(executable, origin)), Some(Code::InvalidValue));
    }
}

#[test]
fn a_graph_can_be_captured_into_another() {
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

/// A call's name, the expected error code, and the call.
type IllegalCall = (&'static str, Code, fn(&Machine, u64) -> Option<Code>);

#[test]
fn illegal_calls_invalidate_a_capture() {
    let refusals: [IllegalCall; 7] = [
        ("stream synchronization", Code::StreamCaptureUnsupported, |it, stream| {
            code(it.driver.synchronize_stream(stream))
        }),
        ("stream query", Code::StreamCaptureUnsupported, |it, stream| {
            code(it.driver.query_stream(stream))
        }),
        ("context synchronization", Code::StreamCaptureUnsupported, |it, _| {
            code(it.driver.synchronize_context())
        }),
        ("an allocation", Code::StreamCaptureUnsupported, |it, _| {
            code(it.driver.allocate(16, AllocationKind::Device))
        }),
        ("the legacy stream", Code::StreamCaptureImplicit, |it, _| {
            code(it.driver.fill(CopyOrder::InStream(LEGACY), 0, &[0], 0))
        }),
        ("an uncaptured event", Code::StreamCaptureIsolation, |it, stream| {
            let (event, other) = (it.driver.create_event(0).unwrap(), it.stream());
            it.driver.record_event(event, other, 0).unwrap();
            code(it.driver.wait_event(stream, event, 0))
        }),
        ("another capture", Code::StreamCaptureMerge, |it, stream| {
            let (event, other) = (it.driver.create_event(0).unwrap(), it.stream());
            it.driver.begin_capture(other, CaptureMode::Global).unwrap();
            it.driver.record_event(event, other, 0).unwrap();
            code(it.driver.wait_event(stream, event, 0))
        }),
    ];
    for (name, expected, rejected) in refusals {
        let machine = Machine::new(StreamOrder::Ordered);
        let stream = machine.blocking_stream();
        machine.driver.begin_capture(stream, CaptureMode::Global).unwrap();
        assert_eq!(rejected(&machine, stream), Some(expected), "{name}");
        let status = machine.driver.capture_status(stream);
        assert_eq!(status, Ok(CaptureStatus::Invalidated), "{name}");
        let more = machine.driver.submit(stream, Work::Join);
        assert_eq!(code(more), Some(Code::StreamCaptureInvalidated), "{name}");
        let end = machine.driver.end_capture(stream);
        assert_eq!(code(end), Some(Code::StreamCaptureInvalidated), "{name}");
        assert_eq!(machine.driver.capture_status(stream), Ok(CaptureStatus::None), "{name}");
    }
}

#[test]
fn captures_begin_and_end_in_the_same_stream_and_thread() {
    let machine = Machine::new(StreamOrder::Ordered);
    let driver = &machine.driver;
    let (origin, side) = (machine.stream(), machine.stream());
    let begin = |stream, mode| driver.begin_capture(stream, mode);

    assert_eq!(code(driver.end_capture(origin)), Some(Code::IllegalState));
    assert_eq!(code(begin(LEGACY, CaptureMode::Relaxed)), Some(Code::StreamCaptureUnsupported));
    begin(origin, CaptureMode::ThreadLocal).unwrap();
    assert_eq!(code(begin(origin, CaptureMode::Global)), Some(Code::IllegalState));
    let elsewhere = thread::scope(|scope| {
        let end = || {
            driver.push_context(machine.context)?;
            // A thread-local capture does not affect other threads.
            driver.allocate(16, AllocationKind::Device)?;
            driver.end_capture(origin)
        };
        scope.spawn(end).join().unwrap()
    });
    assert_eq!(code(elsewhere), Some(Code::StreamCaptureWrongThread));
    driver.end_capture(origin).unwrap();

    begin(origin, CaptureMode::Global).unwrap();
    machine.order(origin, side);
    machine.fill(side, machine_memory(&machine), 1).unwrap();
    assert_eq!(code(driver.end_capture(origin)), Some(Code::StreamCaptureUnjoined));
    assert_eq!(driver.capture_status(side), Ok(CaptureStatus::None));

    begin(origin, CaptureMode::Global).unwrap();
    machine.order(origin, side);
    assert_eq!(code(driver.end_capture(side)), Some(Code::StreamCaptureUnmatched));
    assert_eq!(code(driver.end_capture(origin)), Some(Code::StreamCaptureInvalidated));

    // A relaxed capture rejects no call, and a thread with the relaxed mode may make any call.
    begin(origin, CaptureMode::Relaxed).unwrap();
    driver.allocate(16, AllocationKind::Device).unwrap();
    driver.end_capture(origin).unwrap();
    begin(origin, CaptureMode::Global).unwrap();
    let before = driver.exchange_capture_mode(CaptureMode::Relaxed);
    assert_eq!(before, CaptureMode::Global);
    driver.allocate(16, AllocationKind::Device).unwrap();
    driver.exchange_capture_mode(before);
    driver.end_capture(origin).unwrap();
}

/// Allocates on a thread that may allocate during a capture.
fn machine_memory(machine: &Machine) -> u64 {
    let before = machine.driver.exchange_capture_mode(CaptureMode::Relaxed);
    let address = machine.memory();
    machine.driver.exchange_capture_mode(before);
    address
}

#[test]
fn a_captured_event_is_valid_only_in_its_capture() {
    let machine = Machine::new(StreamOrder::Ordered);
    let driver = &machine.driver;
    let (origin, other) = (machine.stream(), machine.stream());
    let event = driver.create_event(0).unwrap();
    driver.begin_capture(origin, CaptureMode::Relaxed).unwrap();
    driver.record_event(event, origin, 0).unwrap();
    assert_eq!(code(driver.query_event(event)), Some(Code::CapturedEvent));
    assert_eq!(code(driver.synchronize_event(event)), Some(Code::CapturedEvent));
    driver.end_capture(origin).unwrap();
    assert_eq!(code(driver.wait_event(other, event, 0)), Some(Code::CapturedEvent));
    // After another record, it is an ordinary event again.
    driver.record_event(event, origin, 0).unwrap();
    driver.wait_event(other, event, 0).unwrap();
    driver.synchronize_event(event).unwrap();
}

#[test]
fn external_event_records_are_graph_nodes() {
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
    let machine =
        Machine::with(Configuration { memory: Some(1 << 16), ..Configuration::default() });
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
    assert_eq!(code(driver.launch_graph(executable, stream)), Some(Code::InvalidValue));
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
