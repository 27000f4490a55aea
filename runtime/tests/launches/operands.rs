//! Operands of the launches: pseudorandom values, the same in every run.

use crate::{Accumulator, DType, Device, Element, Result, Shape, Tensor, for_any};

/// Pseudorandom values between -2 and 2, converted to `dtype`.
pub(super) fn tensor(device: &Device, shape: &[usize], dtype: DType) -> Result<Tensor> {
    let values = random(shape.iter().product()).map(|value| value * 4.0 - 2.0);
    for_any!(dtype, T => of_values::<T>(device, shape, values))
}

/// As [`tensor`], with special values in between: zeros, subnormal, large, infinite and NaN.
pub(super) fn extremes(device: &Device, shape: &[usize], dtype: DType) -> Result<Tensor> {
    let nan = f64::NAN;
    let rare = [
        0.0,
        -0.0,
        1e-40,
        60.0,
        -120.0,
        1e5,
        -3e9,
        1e30,
        f64::INFINITY,
        nan,
    ];
    let values = random(shape.iter().product())
        .enumerate()
        .map(|(place, value)| match place % 7 {
            0 => rare[place / 7 % rare.len()],
            _ => value * 4.0 - 2.0,
        });
    for_any!(dtype, T => of_values::<T>(device, shape, values))
}

/// Unsorted indices below `extent`, some of them repeated.
pub(super) fn indices(
    device: &Device,
    shape: &[usize],
    dtype: DType,
    extent: usize,
) -> Result<Tensor> {
    let values = random(shape.iter().product()).map(|value| (value * extent as f64).floor());
    for_any!(dtype, T => of_values::<T>(device, shape, values))
}

/// An empty f32 accumulator.
pub(super) fn gradient(device: &Device, shape: &[usize]) -> Result<Accumulator> {
    Accumulator::new(device, Shape::new(shape)?, DType::F32)
}

fn of_values<T: Element>(
    device: &Device,
    shape: &[usize],
    values: impl Iterator<Item = f64>,
) -> Result<Tensor> {
    let values: Vec<T> = values.map(T::from_f64).collect();
    Tensor::from_slice(device, shape, &values)
}

/// Values in [0, 1), by xorshift (Marsaglia 2003).
fn random(count: usize) -> impl Iterator<Item = f64> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64 ^ count as u64;
    (0..count).map(move |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f64 / (1_u64 << 24) as f64
    })
}
