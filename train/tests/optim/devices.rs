//! Optimizers on a meta device and on a GPU.

use meshgrad_runtime::{Device, Tensor};
use meshgrad_train::optim::Ema;

use crate::cases::optimizers;
use crate::training::{NAMES, Training, distance, whole};

/// A step reads no value: it runs on a device that has none, with the same shapes.
#[test]
fn optimizers_run_on_a_meta_device() {
    let cpu = Device::cpu();
    let meta = Device::meta(cpu.properties());
    for (name, make) in optimizers() {
        let mut training = Training::new(&meta, whole(&NAMES), &*make);
        training.run(1..3);
        let ema = Ema::new(&training.parts, 0.9).unwrap();
        ema.update(&training.parts).unwrap();

        let shapes = |training: &Training| -> Vec<(String, String)> {
            let shape = |tensor: Tensor| format!("{}{}", tensor.dtype(), tensor.shape());
            let tensors = training.tensors().into_iter();
            tensors
                .map(|(name, tensor)| (name, shape(tensor)))
                .collect()
        };
        let expected = shapes(&Training::new(&cpu, whole(&NAMES), &*make));
        assert_eq!(shapes(&training), expected, "{name}");
    }
}

/// The GPU of the machine with `MESHGRAD_TEST_GPU=cuda`, otherwise the emulator, which cargo builds
/// with the tests.
fn gpu() -> Device {
    match std::env::var("MESHGRAD_TEST_GPU").as_deref() {
        Ok("cuda") => Device::cuda(0).unwrap(),
        _ => Device::emulator(0).unwrap(),
    }
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
            ema.update(&training.parts).unwrap();
            training.values()
        };
        // bf16 operands may round differently after f32 sums in another order.
        let tolerance = if name.contains("bf16") { 8e-3 } else { 1e-5 };
        for ((of, actual), (_, expected)) in train(&gpu).into_iter().zip(train(&Device::cpu())) {
            let distance = distance(&actual, &expected);
            assert!(
                distance <= tolerance,
                "{name}: {of} differs by {distance:e}"
            );
        }
    }
}
