//! Operands of the launches: pseudorandom values, the same in every run.

use crate::op_cases::Source;
use crate::{DType, Device, Element, Result, Tensor, for_any};

/// Pseudorandom operands.
#[derive(Clone, Copy)]
pub(super) struct Operands<'a> {
    pub(super) device: &'a Device,
    pub(super) dtype: DType,
    /// The dtype of indices.
    pub(super) index: DType,
    /// Whether some numbers are special: zero, subnormal, large, infinite or NaN.
    pub(super) has_extremes: bool,
}

/// The special values.
const RARE: [f64; 10] = [0.0, -0.0, 1e-40, 60.0, -120.0, 1e5, -3e9, 1e30, f64::INFINITY, f64::NAN];

impl Operands<'_> {
    fn between(&self, [low, high]: [f64; 2], shape: &[usize]) -> Result<Tensor> {
        let values = random(shape.iter().product()).enumerate();
        let values = values.map(|(place, value)| match self.has_extremes && place % 7 == 0 {
            true => RARE[place / 7 % RARE.len()],
            false => low + (high - low) * value,
        });
        for_any!(self.dtype, T => of_values::<T>(self.device, shape, values))
    }

    pub(super) fn with_extremes(self) -> Self {
        Operands { has_extremes: true, ..self }
    }

    /// The same operands with indices of each dtype.
    pub(super) fn by_index_dtype(self) -> [Self; 3] {
        [DType::I64, DType::I32, DType::U32].map(|index| Operands { index, ..self })
    }
}

impl Source for Operands<'_> {
    fn device(&self) -> &Device {
        self.device
    }

    /// Values between -2 and 2, and special ones.
    fn numbers(&self, _: &str, shape: &[usize]) -> Result<Tensor> {
        self.between([-2.0, 2.0], shape)
    }

    /// Values between 0 and 2, and special ones.
    fn positive(&self, _: &str, shape: &[usize]) -> Result<Tensor> {
        self.between([0.0, 2.0], shape)
    }

    /// Unsorted indices, some of them repeated.
    fn indices(&self, _: &str, shape: &[usize], below: usize) -> Result<Tensor> {
        let values = random(shape.iter().product()).map(|value| (value * below as f64).floor());
        for_any!(self.index, T => of_values::<T>(self.device, shape, values))
    }
}

/// Pseudorandom values between -2 and 2, converted to `dtype`.
pub(super) fn tensor(device: &Device, shape: &[usize], dtype: DType) -> Result<Tensor> {
    let values = random(shape.iter().product()).map(|value| value * 4.0 - 2.0);
    for_any!(dtype, T => of_values::<T>(device, shape, values))
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
