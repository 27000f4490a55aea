//! The devices that tests run on, and helpers that compare results between devices.

#![allow(dead_code)]

use std::sync::OnceLock;

use approx::relative_eq;
use meshgrad_mesh::Sharding;
use meshgrad_runtime::{DType, Device, Result, Tensor, ops};

/// The CPU, and the GPU if there is one.
pub(crate) fn devices() -> Vec<Device> {
    [Some(Device::cpu()), gpu()].into_iter().flatten().collect()
}

/// A GPU: the real one if `MESHGRAD_TEST_GPU=cuda`, otherwise the emulator, which cargo builds with
/// the tests.
pub(crate) fn gpu() -> Option<Device> {
    let device = match std::env::var("MESHGRAD_TEST_GPU").as_deref() {
        Ok("cuda") => Device::cuda(0),
        Ok(other) => panic!("MESHGRAD_TEST_GPU={other} is unknown; the only value is `cuda`"),
        Err(_) if Device::emulator_is_built() => Device::emulator(0),
        Err(_) => {
            eprintln!("no emulator found: testing on the CPU only");
            return None;
        }
    };
    Some(device.unwrap_or_else(|error| panic!("{error}")))
}

/// The device that computes expected values.
pub(crate) fn reference() -> &'static Device {
    static REFERENCE: OnceLock<Device> = OnceLock::new();
    REFERENCE.get_or_init(Device::cpu)
}

/// Values between -`scale` and `scale` that differ between elements.
pub(crate) fn numbered(device: &Device, shape: &[usize], dtype: DType, scale: f64) -> Tensor {
    let count: usize = shape.iter().product();
    let values: Vec<f32> =
        (0..count).map(|i| ((i as f64 * 0.7 + 0.3).sin() * scale) as f32).collect();
    let values = Tensor::from_slice(reference(), shape, &values).unwrap();
    ops::to_device(&ops::cast(&values, dtype).unwrap(), device).unwrap()
}

/// The values of `x` as f64 on the CPU.
pub(crate) fn exact(x: &Tensor) -> Tensor {
    let x = ops::to_device(x, reference()).unwrap();
    ops::cast(&x, DType::F64).unwrap()
}

/// The elements of `x` in row-major order, as f64.
pub(crate) fn values(x: &Tensor) -> Vec<f64> {
    exact(x).to_vec().unwrap()
}

/// Asserts that the error of every element is at most `tolerance` times its magnitude, or times
/// `unit` if that is larger.
#[track_caller]
pub(crate) fn assert_close(actual: &Tensor, expected: &Tensor, tolerance: f64, unit: f64) {
    assert_eq!(actual.shape(), expected.shape());
    let pairs = values(actual).into_iter().zip(values(expected));
    for (at, (actual, expected)) in pairs.enumerate() {
        let close =
            relative_eq!(actual, expected, epsilon = tolerance * unit, max_relative = tolerance);
        assert!(
            close || (actual.is_nan() && expected.is_nan()),
            "element {at} is {actual}, expected {expected}"
        );
    }
}

/// The relative error of one rounding to `dtype`.
pub(crate) fn rounding(dtype: DType) -> f64 {
    match dtype {
        DType::BF16 => 2f64.powi(-8),
        _ => 2f64.powi(-23),
    }
}

/// The part of `x` that `rank` holds.
pub(crate) fn part(x: &Tensor, sharding: &Sharding, rank: usize) -> Tensor {
    let ranges = sharding.region(rank).unwrap().as_box().unwrap().into_iter().enumerate();
    let mut ranges = ranges.map(|(dim, range)| (dim as isize, range));
    let part = ranges.try_fold(x.clone(), |x, (dim, range)| x.slice(dim, range));
    part.unwrap().with_sharding(sharding, rank).unwrap()
}

/// Asserts that `result` is an error whose message contains `part`.
#[track_caller]
pub(crate) fn assert_error<T>(result: Result<T>, part: &str) {
    let error = result.err().expect("it is accepted").to_string();
    assert!(error.contains(part), "{error}");
}
