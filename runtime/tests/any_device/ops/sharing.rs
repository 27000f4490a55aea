//! Aliasing rules, for an op's operands and for tensors that work on other streams uses.

use crate::devices::{assert_error, devices, gpu, numbered, values};
use meshgrad_runtime::ops::{AdamWConstants, AdamWOperands, StepScalars};
use meshgrad_runtime::{
    Accumulator, DType, Device, Kind, Pending, Result, Stream, Tensor, ops, with_stream,
};

fn cache(device: &Device) -> Tensor {
    Tensor::zeros(device, &[8, 8], DType::F32, Kind::Cache).unwrap()
}

#[track_caller]
fn assert_busy(result: Result<()>) {
    assert_error(result, "the storage is in use");
}

/// An op that writes a storage must not read another part of it, because GPU threads are unordered.
#[test]
fn an_op_cannot_read_a_storage_that_it_writes() {
    for device in devices() {
        let cache = cache(&device);
        let part = |rows| cache.slice(0, rows).unwrap();
        assert_busy(ops::copy_into(&part(0..4), &part(2..6)));
        assert_busy(ops::copy_into(&part(0..4), &part(4..8)));

        let mut sum = Accumulator::over(cache.clone()).unwrap();
        let x = numbered(&device, &[8, 8], DType::F32, 1.0);
        ops::add_into(&x, &mut sum).unwrap();
        assert_busy(ops::matmul_into(&sum.buffer().clone(), &x, &mut sum));
        assert_busy(ops::matmul_into(&x, &sum.buffer().clone(), &mut sum));
        assert_busy(ops::add_into(&sum.buffer().clone(), &mut sum));
        assert_eq!(values(sum.buffer()), values(&x), "the accumulator is unchanged");

        let mut line = Accumulator::over(part(0..1).view(&[8]).unwrap().unwrap()).unwrap();
        let inv_rms = Tensor::zeros(&device, &[7], DType::F32, Kind::Cache).unwrap();
        let rows = part(1..8);
        assert_busy(ops::rms_norm_grad_weight_into(&rows, &rows, &inv_rms, &mut line));

        // A separate copy may be read, and two operands may share a storage.
        ops::copy_into(&ops::copy(&part(0..4)).unwrap(), &part(2..6)).unwrap();
        ops::add(&part(0..4), &part(2..6)).unwrap();
    }
}

/// If an op on many tensors rejects one of them, it does not change the others.
#[test]
fn a_rejected_step_increments_no_version() {
    for gpu in gpus() {
        let state = || Tensor::zeros(&gpu, &[8], DType::F32, Kind::OptimizerState).unwrap();
        let [param, gradient, exp_avg, exp_avg_sq] = [state(), state(), state(), state()];
        let stream = gpu.stream().unwrap();
        let pending = write(&stream, &gradient).unwrap();
        let one = ops::full(&gpu, &[], DType::F32, 1.0).unwrap();
        let scalars = StepScalars { learning_rate: &one, step: &one, scale: &one };
        let operands = AdamWOperands {
            param: param.clone(),
            gradient: gradient.clone(),
            exp_avg: exp_avg.clone(),
            exp_avg_sq: exp_avg_sq.clone(),
            constants: AdamWConstants { beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1 },
            rounding: None,
        };
        assert_busy(ops::adamw_step_many(std::slice::from_ref(&operands), scalars));
        assert_eq!([&param, &exp_avg, &exp_avg_sq].map(Tensor::version), [0, 0, 0]);
        pending.wait().unwrap();
        ops::adamw_step_many(&[operands], scalars).unwrap();
        assert_eq!([&param, &exp_avg, &exp_avg_sq].map(Tensor::version), [1, 1, 1]);
    }
}

/// The GPU, and a meta device with its properties.
fn gpus() -> Vec<Device> {
    let gpu = gpu();
    let meta = gpu.iter().map(|gpu| Device::meta(gpu.properties()));
    meta.chain(gpu.clone()).collect()
}

fn read(stream: &Stream, x: &Tensor) -> Pending<Tensor> {
    with_stream(stream, || ops::neg(x)).unwrap()
}

fn write(stream: &Stream, x: &Tensor) -> Result<Pending<()>> {
    with_stream(stream, || ops::fill_into(x, 2.0))
}

#[test]
fn inputs_of_a_pending_are_not_written() {
    for gpu in gpus() {
        let cache = cache(&gpu);
        let streams = [gpu.stream().unwrap(), gpu.stream().unwrap()];
        let pending = streams.each_ref().map(|stream| read(stream, &cache));
        ops::neg(&cache).unwrap();
        assert_busy(ops::fill_into(&cache, 1.0));
        assert_busy(write(&streams[0], &cache).map(|_| ()));

        let [first, second] = pending;
        first.wait().unwrap();
        assert_busy(ops::fill_into(&cache, 1.0));
        drop(second);
        ops::fill_into(&cache, 1.0).unwrap();
        assert_eq!(cache.version(), 1, "a rejected write does not bump the version");
    }
}

#[test]
fn outputs_of_a_pending_are_not_used() {
    for gpu in gpus() {
        let cache = cache(&gpu);
        let [side, other] = [gpu.stream().unwrap(), gpu.stream().unwrap()];
        let pending = write(&side, &cache).unwrap();
        assert_busy(ops::neg(&cache).map(drop));
        assert_busy(ops::copy(&cache).map(drop));
        assert_busy(ops::fill_into(&cache, 1.0));
        assert_busy(with_stream(&other, || ops::neg(&cache)).map(|_| ()));
        if gpu.computes() {
            assert_busy(cache.to_vec::<f32>().map(drop));
        }

        // Work on the same stream is ordered after it, so it may use the tensor.
        let again = write(&side, &cache).unwrap();
        pending.wait().unwrap();
        assert_busy(ops::neg(&cache).map(drop));
        again.wait().unwrap();
        ops::neg(&cache).unwrap();
    }
}

/// A nested scope may use tensors of the outer scope. The outer scope must wait before it uses
/// tensors that the nested scope wrote.
#[test]
fn nested_scopes() {
    for gpu in gpus() {
        let cache = cache(&gpu);
        let [outer, inner] = [gpu.stream().unwrap(), gpu.stream().unwrap()];
        let pending = with_stream(&outer, || {
            ops::fill_into(&cache, 1.0)?;
            let inside = write(&inner, &cache)?;
            assert_busy(ops::neg(&cache).map(drop));
            inside.wait()?;
            ops::neg(&cache)
        });
        let pending = pending.unwrap();
        assert_busy(ops::neg(&cache).map(drop));
        pending.wait().unwrap();
        ops::neg(&cache).unwrap();
    }
}

/// A graph borrows its tensors for each launch, on the main stream, and not between launches.
#[test]
fn graphs_borrow_their_tensors_at_launch() {
    for gpu in gpus() {
        let cache = cache(&gpu);
        let mut graph = gpu.capture(|| ops::neg(&cache)).unwrap();
        ops::fill_into(&cache, 1.0).unwrap();
        graph.launch().unwrap();
        ops::fill_into(&cache, 2.0).unwrap();

        let side = gpu.stream().unwrap();
        let pending = read(&side, &cache);
        graph.launch().unwrap();
        drop(pending);
        let pending = write(&side, &cache).unwrap();
        assert_busy(graph.launch());
        pending.wait().unwrap();
        graph.launch().unwrap();
    }
}
