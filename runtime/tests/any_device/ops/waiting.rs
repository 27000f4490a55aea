//! Which calls block the host until the GPU has finished its work.

use crate::devices::{assert_error, devices, gpu, numbered, values};
use meshgrad_runtime::ops::{self, AdamWConstants, AdamWOperands, AdamWTable, StepScalars};
use meshgrad_runtime::{DType, Device, Key, Kind, Tensor};

fn zeros(device: &Device, kind: Kind) -> Tensor {
    Tensor::zeros(device, &[300], DType::F32, kind).unwrap()
}

/// Small uploads fill two 4 MiB staging buffers in turn. The host waits only when both are full.
#[test]
fn uploads_are_asynchronous() {
    let Some(gpu) = gpu() else { return };
    let before = gpu.waits();
    let batch = |at: usize| vec![at as f32; 1 << 18]; // 1 MiB
    let upload = |at| Tensor::from_slice(&gpu, &[1 << 18], &batch(at)).unwrap();
    let mut tensors: Vec<Tensor> = (0..6).map(upload).collect();
    assert_eq!(gpu.waits(), before);
    tensors.extend((6..16).map(upload));
    assert!(gpu.waits() > before);
    for (at, tensor) in tensors.iter().enumerate() {
        assert_eq!(tensor.to_vec::<f32>().unwrap(), batch(at));
    }
}

/// A training step uploads tokens, reads metrics asynchronously and changes parameters. The host
/// blocks only when it requests a value.
#[test]
fn a_step_never_blocks_the_host() {
    for device in devices() {
        let param = zeros(&device, Kind::Parameter);
        ops::normal_into(&param, Key::new(1), 0.0, 1.0).unwrap();
        let state = [(); 2].map(|()| zeros(&device, Kind::OptimizerState));
        let now = [(); 3]
            .map(|()| Tensor::zeros(&device, &[], DType::F32, Kind::OptimizerState).unwrap());
        let mut table = AdamWTable::default();
        let before = device.waits();
        let mut readings = Vec::new();
        for step in 1..4 {
            let batch = vec![step as f32; 300];
            let batch = Tensor::from_slice(&device, &[300], &batch).unwrap();
            let gradient = ops::mul(&batch, &param).unwrap();
            for (tensor, value) in now.iter().zip([0.01, f64::from(step), 1.0]) {
                ops::fill_into(tensor, value).unwrap();
            }
            let operands = AdamWOperands {
                param: param.clone(),
                gradient: gradient.clone(),
                exp_avg: state[0].clone(),
                exp_avg_sq: state[1].clone(),
                constants: AdamWConstants { beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1 },
                rounding: None,
            };
            let scalars = StepScalars { learning_rate: &now[0], step: &now[1], scale: &now[2] };
            table.step(&[operands], scalars).unwrap();
            if device.is_gpu() {
                readings.push(gradient.read_async::<f32>().unwrap());
            }
        }
        assert_eq!(device.waits(), before);

        let mut expected = before;
        for reading in readings {
            assert_eq!(reading.wait().unwrap().len(), 300);
            expected += 1;
        }
        assert_eq!(device.waits(), expected);
        param.to_vec::<f32>().unwrap();
        device.synchronize().unwrap();
        device.stream().unwrap().synchronize().unwrap();
        assert_eq!(device.waits(), if device.is_gpu() { expected + 3 } else { 0 });
    }
}

/// An async read returns the values as of its call, in row-major order, for any layout and size.
#[test]
fn async_reads_ignore_later_writes() {
    for device in devices() {
        let cache = zeros(&device, Kind::Cache);
        ops::fill_into(&cache, 1.0).unwrap();
        let (first, part) = (
            cache.read_async::<f32>().unwrap(),
            cache.slice(0, 7..9).unwrap().read_async::<f32>().unwrap(),
        );
        ops::fill_into(&cache, 2.0).unwrap();
        let second = cache.read_async::<f32>().unwrap();
        assert_eq!(second.wait().unwrap(), [2.0; 300]);
        assert_eq!(first.wait().unwrap(), [1.0; 300]);
        assert_eq!(part.wait().unwrap(), [1.0; 2]);

        for shape in [&[40, 70][..], &[0, 3], &[]] {
            let x = numbered(&device, shape, DType::F32, 1.0);
            let x = match shape.len() {
                2 => x.transpose(0, 1).unwrap(),
                _ => x,
            };
            let read = x.read_async::<f32>().unwrap().wait().unwrap();
            let read: Vec<f64> = read.into_iter().map(f64::from).collect();
            assert_eq!(read, values(&x));
        }
        assert_error(cache.read_async::<i64>(), "but was accessed as");
        drop(cache.read_async::<f32>().unwrap());
    }
}

#[test]
fn reads_fail_during_capture() {
    let Some(gpu) = gpu() else { return };
    let x = numbered(&gpu, &[3], DType::F32, 1.0);
    let captured = gpu.capture(|| x.read_async::<f32>());
    assert_error(captured, "read_async during Device::capture: ");
}
