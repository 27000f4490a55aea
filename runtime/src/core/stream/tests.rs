use super::*;
use crate::core::storage::busy;
use crate::{GpuProperties, Kind, Properties, Tensor, assert_error, ops};

/// A meta device that models a GPU: scopes and memory behave as on a real one.
fn counted_gpu() -> Device {
    let gpu = GpuProperties {
        model: "counted".into(),
        compute_capability: (9, 0),
        multiprocessors: 132,
        memory: 1 << 30,
        l2_cache: 50 << 20,
        shared_memory: 232_448,
    };
    Device::meta(&Properties { gpu: Some(gpu), ..Device::cpu().properties().clone() })
}

fn tensor(device: &Device) -> Tensor {
    ops::full(device, &[1000], crate::DType::F32, 1.0).unwrap()
}

/// Bytes of one tensor.
const ONE: usize = 4096;

#[test]
fn a_pending_keeps_what_its_work_reads() {
    let device = counted_gpu();
    let stream = device.stream().unwrap();
    let x = tensor(&device);
    let pending = with_stream(&stream, || ops::neg(&x)).unwrap();
    drop(x);
    assert_eq!(device.memory_stats().live, 2 * ONE);

    let y = pending.wait().unwrap();
    assert_eq!(device.memory_stats().live, ONE);
    drop(y);
    assert_eq!(device.memory_stats().live, 0);
}

#[test]
fn dropping_a_pending_frees_its_tensors() {
    let device = counted_gpu();
    let stream = device.stream().unwrap();
    let x = tensor(&device);
    drop(with_stream(&stream, || ops::neg(&x)).unwrap());
    drop(x);
    assert_eq!(device.memory_stats().live, 0);
}

/// Memory of a side stream that the base stream used is reused only after the side stream has
/// waited for the base stream.
#[test]
fn freed_memory_returns_to_its_stream() {
    let device = counted_gpu();
    let stream = device.stream().unwrap();
    let x = tensor(&device);
    let make = || with_stream(&stream, || ops::neg(&x)).unwrap();

    let unused = make().wait().unwrap();
    let first = unused.address("test").unwrap();
    drop(unused);
    let used = make().wait().unwrap();
    assert_eq!(used.address("test").unwrap(), first, "no other stream used it");

    ops::neg(&used).unwrap();
    let inside = with_stream(&stream, || {
        drop(used);
        ops::neg(&x)
    });
    let inside = inside.unwrap().wait().unwrap();
    assert_ne!(
        inside.address("test").unwrap(),
        first,
        "the memory was freed after this scope began"
    );
    assert_eq!(make().wait().unwrap().address("test").unwrap(), first);
}

/// Tensors that an inner scope reads from outside live until the outer scope is joined.
#[test]
fn scopes_nest() {
    let device = counted_gpu();
    let (outer, inner) = (device.stream().unwrap(), device.stream().unwrap());
    let x = tensor(&device);
    let pending = with_stream(&outer, || with_stream(&inner, || ops::neg(&x))?.wait());
    let pending = pending.unwrap();
    drop(x);
    assert_eq!(device.memory_stats().live, 2 * ONE);
    drop(pending.wait().unwrap());
    assert_eq!(device.memory_stats().live, 0);
}

#[test]
fn failed_work_leaves_no_scope() {
    let device = counted_gpu();
    let stream = device.stream().unwrap();
    let failed = with_stream(&stream, || Err::<(), Error>(busy("test")));
    assert_eq!(failed.err(), Some(busy("test")));
    assert_eq!(pool(&device), Pool::default());
}

#[test]
fn devices_without_streams_run_work_synchronously() {
    let device = Device::cpu();
    let stream = device.stream().unwrap();
    let x = tensor(&device);
    let y = with_stream(&stream, || ops::neg(&x)).unwrap().wait().unwrap();
    assert_eq!(y.to_vec::<f32>().unwrap()[..2], [-1.0; 2]);
}

/// A graph owns its memory until it is dropped.
#[test]
fn graphs_own_their_memory() {
    let device = counted_gpu();
    let x = tensor(&device);
    let graph = device.capture(|| ops::neg(&ops::neg(&x)?)).unwrap();
    drop(x);
    assert_eq!(device.memory_stats().live, 2 * ONE, "x, which the graph reads, and its result");
    drop(graph);
    assert_eq!(device.memory_stats().live, 0);

    let stream = device.stream().unwrap();
    let mut graph = device.capture(|| Ok::<_, Error>(())).unwrap();
    let inside = with_stream(&stream, || graph.launch()).map(drop);
    assert_error(inside, "launch: a graph cannot be launched inside a capture");

    let cpu = Device::cpu();
    let refused = cpu.capture(|| Ok::<(), Error>(()));
    assert_error(refused, "capture: cpu has no graphs");
}

/// Mutable tensors that a scope allocates are freed when they are dropped, and their memory is
/// reused.
#[test]
fn buffers_of_a_scope_are_reused() {
    let device = counted_gpu();
    let stream = device.stream().unwrap();
    let inside = |work: fn(&Device) -> u64| with_stream(&stream, || Ok::<_, Error>(work(&device)));
    let twice: fn(&Device) -> u64 = |device| {
        let buffer = || {
            let buffer = Tensor::zeros(device, &[1000], crate::DType::F32, Kind::Cache).unwrap();
            ops::fill_into(&buffer, 1.0).unwrap();
            assert_eq!(device.memory_stats().live, ONE);
            buffer.address("test").unwrap()
        };
        assert_eq!(buffer(), buffer());
        device.memory_stats().live as u64
    };
    assert_eq!(inside(twice).unwrap().wait().unwrap(), 0);

    let mut graph = device.capture(|| Ok::<_, Error>(twice(&device))).unwrap();
    assert_eq!(*graph.results(), 0);
    graph.launch().unwrap();
}
