//! Optimizers on a meta device and on a GPU.

use meshgrad_runtime::ops::{self, StepScalars};
use meshgrad_runtime::{DType, Device, Kind, Tensor};
use meshgrad_train::optim::Ema;

use crate::gpu::gpu;
use crate::optim::cases::optimizers;
use crate::optim::training::{
    NAMES, SCALE, Training, distance, learning_rate as learning_rate_of, whole,
};

/// A step reads no value: it runs on a device that has none, with the same shapes.
#[test]
fn optimizers_run_on_a_meta_device() {
    for like in [Device::cpu(), gpu()] {
        let meta = Device::meta(like.properties());
        for (name, make) in optimizers() {
            let mut training = Training::new(&meta, whole(&NAMES), &*make);
            training.run(1..3);
            let ema = Ema::new(&training.parts, 0.9).unwrap();
            ema.update(&Tensor::scalar(&meta, 1.0f32).unwrap()).unwrap();
            let expected = Training::new(&like, whole(&NAMES), &*make);
            assert_eq!(shapes(&training), shapes(&expected), "{name}");
        }
    }
}

fn shapes(training: &Training) -> Vec<(String, String)> {
    let shape = |tensor: Tensor| format!("{}{}", tensor.dtype(), tensor.shape());
    let tensors = training.tensors().into_iter();
    tensors.map(|(name, tensor)| (name, shape(tensor))).collect()
}

/// Three steps on a GPU agree with those on the CPU.
#[test]
fn a_gpu_agrees_with_the_cpu() {
    let gpu = gpu();
    for (name, make) in optimizers() {
        let train = |device: &Device| {
            let mut training = Training::new(device, whole(&NAMES), &*make);
            training.run(1..4);
            let ema = Ema::new(&training.parts, 0.9).unwrap();
            ema.update(&Tensor::scalar(device, 1.0f32).unwrap()).unwrap();
            training.values()
        };
        // bf16 operands may round differently after f32 sums in another order.
        let tolerance = if name.contains("bf16") { 8e-3 } else { 1e-5 };
        for ((of, actual), (_, expected)) in train(&gpu).into_iter().zip(train(&Device::cpu())) {
            let distance = distance(&actual, &expected);
            assert!(distance <= tolerance, "{name}: {of} differs by {distance:e}");
        }
    }
}

/// A step that is captured as a graph replays with the bits of separate steps.
#[test]
fn a_captured_step_replays_with_the_same_bits() {
    let gpu = gpu();
    for (name, make) in optimizers() {
        let new = || Training::new(&gpu, whole(&NAMES), &*make);
        let (mut eager, mut captured) = (new(), new());
        let gradients = eager.gradients(1);
        let zero = || Tensor::zeros(&gpu, &[], DType::F32, Kind::OptimizerState).unwrap();
        let [learning_rate, step, scale] = [zero(), zero(), zero()];
        let begin = |now: u32| {
            ops::fill_into(&learning_rate, learning_rate_of(now).into()).unwrap();
            ops::fill_into(&step, now.into()).unwrap();
            ops::fill_into(&scale, SCALE.into()).unwrap();
        };
        let scalars = StepScalars { learning_rate: &learning_rate, step: &step, scale: &scale };
        let apply = |training: &mut Training| training.rule.step(&gradients, scalars);
        for now in 1..=3 {
            begin(now);
            apply(&mut eager).unwrap();
        }

        // The first step allocates what later ones keep.
        begin(1);
        apply(&mut captured).unwrap();
        let mut graph = gpu.capture(|| apply(&mut captured)).unwrap();
        for now in 2..=3 {
            begin(now);
            graph.launch().unwrap();
        }
        drop(graph);
        assert_eq!(captured.values(), eager.values(), "{name}");
    }
}
