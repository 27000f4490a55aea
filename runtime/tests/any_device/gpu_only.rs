//! Behavior specific to GPUs: device memory, streams, graphs, errors.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::devices::{assert_close, assert_error, exact, gpu, numbered, values};
use crate::processes;
use meshgrad_runtime::{
    DType, Device, Error, ErrorKind, Kind, Shape, Signature, StreamWork, Tensor, UninitTensor, ops,
    with_stream,
};

/// Covers tensors larger than the staging buffers, and views.
#[test]
fn values_survive_a_round_trip() {
    let Some(gpu) = gpu() else { return };
    for count in [0usize, 1, 1000, 3 << 20] {
        let x: Vec<i32> = (0..count as i32).collect();
        let tensor = Tensor::from_slice(&gpu, &[count], &x).unwrap();
        assert_eq!(tensor.to_vec::<i32>().unwrap(), x);
    }

    let x = Tensor::from_slice(&gpu, &[3, 4], &(0..12).collect::<Vec<i64>>()).unwrap();
    let column = x.slice(1, 2..3).unwrap();
    assert_eq!(column.to_vec::<i64>().unwrap(), [2, 6, 10]);
    assert_eq!(x.slice(0, 1..2).unwrap().slice(1, 3..4).unwrap().item::<i64>().unwrap(), 7);
    let transposed = x.transpose(0, 1).unwrap().to_vec::<i64>().unwrap();
    assert_eq!(transposed[..4], [0, 4, 8, 1]);
    assert_eq!(ops::copy(&x).unwrap().to_vec::<i64>().unwrap(), x.to_vec::<i64>().unwrap());
    let counted = ops::arange(&gpu, 5, DType::U32).unwrap();
    assert_eq!(counted.to_vec::<u32>().unwrap(), [0, 1, 2, 3, 4]);
}

#[test]
fn the_host_cannot_address_gpu_memory() {
    let Some(gpu) = gpu() else { return };
    let x = Tensor::zeros(&gpu, &[4], DType::F32, Kind::Cache).unwrap();
    assert_error(x.read::<f32>(), "are not in host memory");
    assert_error(x.write::<f32>("test"), "are not in host memory");
    // A loan on a GPU needs a `StreamWork`, because nothing else would end the use.
    assert_error(x.lend("test"), "are not in host memory");
    assert_error(x.lend_mut("test"), "are not in host memory");
    let stream = gpu.stream().unwrap();
    let (work, loan) = StreamWork::begin(&stream, || x.lend_mut("test")).unwrap();
    assert_error(x.to_vec::<f32>(), "the storage is in use");
    work.finish().unwrap().wait().unwrap();
    drop(loan);
    assert_eq!(x.to_vec::<f32>().unwrap(), [0.0; 4]);

    let mut fresh = UninitTensor::new(&gpu, Shape::new(&[4]).unwrap(), DType::F32).unwrap();
    assert_error(fresh.slice::<f32>(), "are not in host memory");
    assert_error(x.to_vec::<i32>(), "but was accessed as");
}

/// The error names the op that has no kernel.
#[test]
fn missing_kernels_are_errors() {
    let Some(gpu) = gpu() else { return };
    let message = |result: Result<Tensor, Error>| result.err().unwrap().to_string();
    let double = Tensor::from_slice(&gpu, &[2], &[1.0f64, 2.0]).unwrap();
    let expected = format!(
        "exp: there is no kernel for f64 on {gpu}; copy the operands to a CPU device \
         (ops::to_device) and run it there"
    );
    assert_eq!(message(ops::exp(&double)), expected);

    static ON_A_CPU: Signature = Signature::new("on_a_cpu", "x: f32[..] -> y: f32[..]", 0);
    let x = Tensor::from_slice(&gpu, &[2], &[1.0f32, 2.0]).unwrap();
    let mut call = ON_A_CPU.call(&[&x]).unwrap();
    let y = call.output(0).unwrap();
    let computed = call.compute(|| Ok(())).map(|()| y.finish());
    assert!(message(computed).starts_with("on_a_cpu: there is no kernel on "));
}

#[test]
fn devices_are_named_and_found() {
    let Some(gpu) = gpu() else { return };
    let name = gpu.to_string();
    assert!(name == "emulator:0" || name == "cuda:0", "{name}");
    let properties = gpu.properties().gpu.clone().unwrap();
    assert!(properties.compute_capability >= (8, 0));
    assert!(properties.memory > 0 && properties.multiprocessors > 0);
    assert_eq!(Device::meta(gpu.properties()).to_string(), format!("meta({name})"));
    assert!(crate::devices::gpu().unwrap() != gpu, "two devices of one GPU are not equal");

    let far = match name.as_str() {
        "cuda:0" => Device::cuda(1000),
        _ => Device::emulator(1000),
    };
    let missing = far.err().unwrap();
    assert_eq!(missing.kind(), ErrorKind::Missing);
    assert!(missing.to_string().contains(":1000 does not exist: there "), "{missing}");
}

/// Work on several streams gives the same results as on one stream.
#[test]
fn streams_keep_their_order() {
    let Some(gpu) = gpu() else { return };
    let streams = [gpu.stream().unwrap(), gpu.stream().unwrap()];
    let x = numbered(&gpu, &[1000], DType::F32, 1.0);
    let mut sum = ops::full(&gpu, &[1000], DType::F32, 0.0).unwrap();
    for round in 0..6 {
        let scaled = ops::affine(&x, f64::from(round), 0.0).unwrap();
        let pending = with_stream(&streams[round as usize % 2], || {
            let twice = ops::add(&scaled, &scaled)?;
            ops::add(&twice, &x)
        });
        let pending = pending.unwrap();
        drop(scaled);
        let beside = ops::neg(&x).unwrap();
        let made = ops::add(&pending.wait().unwrap(), &beside).unwrap();
        sum = ops::add(&sum, &made).unwrap();
    }
    // The sum over the rounds of 2 * round * x + x - x.
    let expected = ops::affine(&exact(&x), 30.0, 0.0).unwrap();
    assert_close(&sum, &expected, 1e-5, 1e-3);

    drop(with_stream(&streams[0], || ops::neg(&sum)).unwrap());
    drop((x, sum));
    gpu.synchronize().unwrap();
    assert_eq!(gpu.memory_stats().live, 0);
}

/// Results do not change when the emulator interleaves streams at random, ordered by events only.
#[test]
fn streams_keep_their_order_however_they_interleave() {
    let Some(gpu) = gpu().filter(|gpu| gpu.to_string().starts_with("emulator")) else {
        return;
    };
    drop(gpu);
    for seed in 1..6 {
        let tests = ["streams_keep_their_order", "graphs_run_again"];
        let tests = tests.map(|test| format!("gpu_only::{test}"));
        let interleaving = ("MESHGRAD_EMULATOR_STREAMS", &*format!("random:{seed}"));
        processes::assert_pass(&tests.each_ref().map(|it| &**it), &[interleaving]);
    }
}

/// A graph replays with the current contents of its inputs.
#[test]
fn graphs_run_again() {
    let Some(gpu) = gpu() else { return };
    let stream = gpu.stream().unwrap();
    let input = Tensor::zeros(&gpu, &[300], DType::F32, Kind::Cache).unwrap();
    let one = ops::full(&gpu, &[300], DType::F32, 1.0).unwrap();
    // Kernels may be loaded during the capture.
    let mut graph = gpu
        .capture(|| {
            let doubled = ops::add(&input, &input)?;
            let pending = with_stream(&stream, || ops::add(&doubled, &one))?;
            ops::mul(&doubled, &pending.wait()?)
        })
        .unwrap();
    drop(one);

    for round in 1..4 {
        let x = ops::full(&gpu, &[300], DType::F32, f64::from(round)).unwrap();
        ops::copy_into(&x, &input).unwrap();
        graph.launch().unwrap();
        let expected = f64::from(2 * round * (2 * round + 1));
        assert_eq!(values(graph.results()), vec![expected; 300]);
    }
}

#[test]
fn graphs_reject_synchronization() {
    let Some(gpu) = gpu() else { return };
    let x = ops::full(&gpu, &[3], DType::F32, 2.0).unwrap();
    assert_error(gpu.capture(|| x.to_vec::<f32>()), "read during Device::capture: ");
    assert!(gpu.capture(|| gpu.synchronize()).is_err());
    let (stream, waits) = (gpu.stream().unwrap(), gpu.waits());
    assert!(gpu.capture(|| stream.synchronize()).is_err());
    assert_eq!(gpu.waits(), waits);
    stream.synchronize().unwrap();
    assert_eq!(gpu.waits(), waits + 1);
    // The error names the function that copies from the host.
    let message = |copied: Result<Tensor, Error>| copied.err().unwrap().to_string();
    let made = gpu.capture(|| Ok::<_, Error>(message(Tensor::from_slice(&gpu, &[1], &[3.0f32]))));
    let begins = "from_slice during Device::capture: a graph cannot wait for the GPU";
    assert!(made.unwrap().results().starts_with(begins));
    assert!(gpu.capture(|| gpu.capture(|| ops::neg(&x)).map(|_| ())).is_err());
    // The device works afterwards.
    assert_eq!(values(&ops::neg(&x).unwrap()), [-2.0; 3]);
}

/// A panic ends the capture and frees the memory of the graph.
#[test]
fn a_panic_ends_the_capture() {
    let Some(gpu) = gpu() else { return };
    let stream = gpu.stream().unwrap();
    let x = ops::full(&gpu, &[3], DType::F32, 2.0).unwrap();
    let before = gpu.memory_stats();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        gpu.capture(|| -> Result<(), Error> {
            let y = ops::neg(&x)?;
            let pending = with_stream(&stream, || ops::neg(&y))?;
            panic!("{:?} while {pending:?}", y.shape())
        })
    }));
    assert!(panicked.is_err());
    assert_eq!(gpu.memory_stats().live, before.live);
    gpu.empty_cache();
    assert_eq!(gpu.memory_stats().reserved, before.reserved);

    let mut graph = gpu.capture(|| ops::neg(&x)).unwrap();
    graph.launch().unwrap();
    assert_eq!(values(graph.results()), [-2.0; 3]);
}

/// If a closure panics, its work on the other stream is still joined.
#[test]
fn a_panic_on_another_stream_releases_it() {
    let Some(gpu) = gpu() else { return };
    let stream = gpu.stream().unwrap();
    let cache = Tensor::zeros(&gpu, &[3], DType::F32, Kind::Cache).unwrap();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        with_stream(&stream, || -> Result<(), Error> {
            ops::fill_into(&cache, 3.0)?;
            panic!("after {:?}", cache.shape())
        })
    }));
    assert!(panicked.is_err());
    assert_eq!(values(&cache), [3.0; 3]);
    drop(cache);
    assert_eq!(gpu.memory_stats().live, 0);
}

/// A capture cannot end before work on other streams is joined. The error names the remedy.
#[test]
fn graphs_wait_for_their_other_streams() {
    let Some(gpu) = gpu() else { return };
    let stream = gpu.stream().unwrap();
    let cache = Tensor::zeros(&gpu, &[3], DType::F32, Kind::Cache).unwrap();
    let unjoined = gpu.capture(|| with_stream(&stream, || ops::fill_into(&cache, 3.0)));
    let message = unjoined.err().unwrap().to_string();
    assert_eq!(
        message,
        "with_stream during Device::capture: the capture ended before work on another stream was \
         joined; call Pending::wait, or drop the Pending, before the closure returns"
    );
    // The failed capture does not keep its tensors borrowed.
    ops::fill_into(&cache, 1.0).unwrap();
    assert_eq!(values(&cache), [1.0; 3]);
}

/// While one thread captures, other threads can neither synchronize the whole GPU nor free memory
/// that the capture may use.
#[test]
fn other_threads_do_not_disturb_a_capture() {
    let Some(gpu) = gpu() else { return };
    let x = ops::full(&gpu, &[3], DType::F32, 2.0).unwrap();
    drop(ops::full(&gpu, &[30 << 20], DType::U8, 0.0).unwrap());
    let reserved = gpu.memory_stats().reserved;
    let mut graph = gpu
        .capture(|| {
            let y = ops::neg(&x)?;
            std::thread::scope(|threads| {
                let other = threads.spawn(|| {
                    gpu.empty_cache();
                    assert!(gpu.memory_stats().reserved >= reserved, "no memory was freed");
                    gpu.synchronize().err()
                });
                let rejected = other.join().unwrap().unwrap().to_string();
                assert!(rejected.contains("synchronize one stream"), "{rejected}");
            });
            ops::neg(&y)
        })
        .unwrap();
    gpu.empty_cache();
    assert!(gpu.memory_stats().reserved < reserved);
    graph.launch().unwrap();
    assert_eq!(values(graph.results()), [2.0; 3]);
}

/// When memory runs out, the cache is freed first. If that is not enough, the error lists the live
/// blocks.
#[test]
fn memory_runs_out() {
    let Some(gpu) = gpu() else { return };
    let whole = gpu.properties().gpu.as_ref().unwrap().memory;
    let kept = ops::full(&gpu, &[5 << 20], DType::U8, 0.0).unwrap();
    let rejected = UninitTensor::new(&gpu, Shape::new(&[whole]).unwrap(), DType::U8).err().unwrap();
    let message = rejected.to_string();
    assert!(message.contains(&format!("out of memory on {gpu}")), "{message}");
    assert!(message.contains("in use: 1 x 5.0 MiB"), "{message}");
    drop(kept);

    gpu.empty_cache();
    assert_eq!((gpu.memory_stats().live, gpu.memory_stats().reserved), (0, 0));
    let cache = gpu.allocator_stats().unwrap();
    assert_eq!(cache.segments_allocated, cache.segments_freed);
}

/// A meta device with this GPU's properties counts the same work and memory.
#[test]
fn meta_devices_count_the_same() {
    let Some(gpu) = gpu() else { return };
    let meta = Device::meta(gpu.properties());
    for device in [&gpu, &meta] {
        let stream = device.stream().unwrap();
        let x = ops::full(device, &[300, 70], DType::F32, 0.5).unwrap();
        let y = ops::exp(&x.transpose(0, 1).unwrap()).unwrap();
        let z = with_stream(&stream, || ops::mul(&y, &y)).unwrap().wait().unwrap();
        ops::add(&z, &y).unwrap();
    }
    assert_eq!(gpu.memory_stats(), meta.memory_stats());
    assert_eq!(gpu.work(), meta.work());
    assert_eq!(gpu.allocator_stats(), meta.allocator_stats());
    assert_eq!(gpu.work().kernel_launches, 4);
}
