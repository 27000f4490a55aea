//! Sleeping tensors.

use crate::devices::{assert_error, devices, gpu, numbered, values};
use meshgrad_runtime::{
    DType, Device, Error, ErrorKind, Kind, OutOfMemoryReport, Tensor, ops, with_stream,
};

fn filled(device: &Device, kind: Kind) -> Tensor {
    let x = Tensor::zeros(device, &[300, 7], DType::F32, kind).unwrap();
    ops::copy_into(&numbered(device, &[300, 7], DType::F32, 1.0), &x).unwrap();
    x
}

#[track_caller]
fn assert_asleep<T>(result: Result<T, Error>) {
    assert_error(result, "the tensor is asleep");
}

/// Views share the sleep of their storage. Nothing is lost, and the version stays.
#[test]
fn values_survive_sleep() {
    for device in devices() {
        for kind in [Kind::Parameter, Kind::Gradient, Kind::OptimizerState] {
            let x = filled(&device, kind);
            let (before, version) = (values(&x), x.version());
            let rows = x.slice(0, 5..9).unwrap();
            x.sleep().unwrap();
            rows.sleep().unwrap();
            assert!(x.is_asleep() && rows.is_asleep());

            assert_asleep(rows.to_vec::<f32>());
            assert_asleep(ops::exp(&rows));
            assert_asleep(ops::fill_into(&rows, 1.0));
            assert_asleep(ops::copy(&x));

            // Overwrites the memory that has become free.
            let other = filled(&device, kind);
            ops::fill_into(&other, 9.0).unwrap();
            rows.wake().unwrap();
            x.wake().unwrap();
            assert_eq!((values(&x), x.version()), (before, version));
            ops::fill_into(&rows, 2.0).unwrap();
            assert_eq!(values(&x)[5 * 7], 2.0);
        }
    }
}

#[test]
fn a_sleeping_tensor_has_no_memory_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    for device in [&gpu, &Device::meta(gpu.properties())] {
        let live = || device.memory_stats().live;
        let before = live();
        let x = Tensor::zeros(device, &[1 << 20], DType::F32, Kind::Parameter).unwrap();
        let awake = live();
        let reserved = device.memory_stats().reserved;
        x.sleep().unwrap();
        assert_eq!(live(), before);
        device.empty_cache();
        assert!(device.memory_stats().reserved + (4 << 20) <= reserved);
        // Another tensor may use the memory.
        let other = Tensor::zeros(device, &[1 << 20], DType::F32, Kind::Parameter).unwrap();
        assert_eq!(live(), awake);
        x.wake().unwrap();
        drop(other);
        assert_eq!(live(), awake);
        x.sleep().unwrap();
        drop(x);
        assert_eq!(live(), before);
    }
}

#[test]
fn only_free_tensors_that_may_change_sleep() {
    for device in devices() {
        let value = ops::full(&device, &[4], DType::F32, 1.0).unwrap();
        assert_error(value.sleep(), "the tensor is a value, which is immutable");
        value.wake().unwrap();
    }
    let cpu = Device::cpu();
    let x = filled(&cpu, Kind::Cache);
    let loan = x.lend("test").unwrap();
    assert_error(x.sleep(), "the storage is in use");
    drop(loan);
    x.sleep().unwrap();
    assert_asleep(x.lend("test"));
    assert_asleep(x.lend_mut("test"));
}

/// A failure of other work is reported, and the values stay.
#[test]
fn a_failure_before_waking_loses_nothing() {
    let Some(gpu) = gpu() else { return };
    let x = filled(&gpu, Kind::Parameter);
    let before = values(&x);
    x.sleep().unwrap();
    let table = ops::full(&gpu, &[4, 3], DType::F32, 1.0).unwrap();
    let outside = Tensor::from_slice(&gpu, &[1], &[7i64]).unwrap();
    let _ = ops::embedding(&table, &outside).unwrap();
    let failed = x.wake();
    assert_error(failed, "embedding: index 7 is outside of 0..4");
    assert!(x.is_asleep());
    x.wake().unwrap();
    assert_eq!(values(&x), before);
}

/// Work of another stream ends first.
#[test]
fn a_tensor_sleeps_on_the_base_stream() {
    let Some(gpu) = gpu() else { return };
    let x = filled(&gpu, Kind::Parameter);
    let stream = gpu.stream().unwrap();
    let refused = with_stream(&stream, || {
        assert_error(x.sleep(), "it is inside a capture or `with_stream`; call it outside");
        ops::exp(&x)
    });
    let pending = refused.unwrap();
    assert_error(x.sleep(), "the storage is in use");
    assert_error(x.sleep_without_values(), "the storage is in use");
    pending.wait().unwrap();
    x.sleep().unwrap();
    let refused = with_stream(&stream, || {
        assert_error(x.wake(), "it is inside a capture or `with_stream`; call it outside");
        Ok::<_, Error>(())
    });
    refused.unwrap().wait().unwrap();
    x.wake().unwrap();
}

/// A graph uses the addresses of its capture.
#[test]
fn a_graph_refuses_a_tensor_that_moved() {
    let Some(gpu) = gpu() else { return };
    let x = filled(&gpu, Kind::Parameter);
    let mut graph = gpu.capture(|| ops::exp(&x)).unwrap();
    graph.launch().unwrap();
    let expected = values(graph.results());
    x.sleep().unwrap();
    assert_asleep(graph.launch());
    let in_its_place = filled(&gpu, Kind::Parameter);
    x.wake().unwrap();
    let error = graph.launch().unwrap_err().to_string();
    assert!(error.contains("capture the graph again"), "{error}");
    drop((graph, in_its_place));

    let mut graph = gpu.capture(|| ops::exp(&x)).unwrap();
    graph.launch().unwrap();
    assert_eq!(values(graph.results()), expected);
}

/// A tensor that cannot wake can wake later.
#[test]
fn waking_without_memory_can_be_repeated() {
    let Some(gpu) = gpu() else { return };
    let mut properties = gpu.properties().clone();
    properties.gpu.as_mut().unwrap().memory = 64 << 20;
    let small = Device::meta(&properties);
    let half = || Tensor::zeros(&small, &[10 << 20], DType::F32, Kind::Parameter);
    let x = half().unwrap();
    x.sleep().unwrap();
    let in_its_place = half().unwrap();
    let failed = x.wake();
    let error = failed.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    assert!(error.details::<OutOfMemoryReport>().is_some(), "{error}");
    assert!(x.is_asleep());
    drop(in_its_place);
    x.wake().unwrap();
    assert!(!x.is_asleep());
}

/// The host keeps no copy of values that are not needed.
#[test]
fn values_may_be_forgotten() {
    for device in devices() {
        let x = filled(&device, Kind::Gradient);
        let pinned = device.pinned_memory_stats().live;
        x.sleep_without_values().unwrap();
        assert_eq!(device.pinned_memory_stats().live, pinned);
        x.wake().unwrap();
        ops::fill_into(&x, 3.0).unwrap();
        assert_eq!(values(&x), [3.0; 2100]);
    }
}
