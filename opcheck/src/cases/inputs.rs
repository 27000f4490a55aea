//! Inputs of cases: numbers away from points where functions are not differentiable.

use meshgrad_runtime::op_cases::Source;
use meshgrad_runtime::ops;
use meshgrad_runtime::{DType, Device, Result, Tensor};

pub(super) struct Inputs<'a> {
    pub(super) device: &'a Device,
    pub(super) dtype: DType,
    /// The numbers are first rounded to this dtype.
    pub(super) rounded_to: DType,
}

impl Source for Inputs<'_> {
    fn device(&self) -> &Device {
        self.device
    }

    /// Distinct numbers between -1.5 and 1.5, not near 0.
    fn numbers(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        let number = |i: usize| {
            let x = ((i * 7 + salt(name) * 13 + 1) as f64 * 0.618_033_988_75).fract() - 0.5;
            2.6 * x + 0.2 * x.signum()
        };
        self.filled(shape, number)
    }

    /// Distinct numbers between 0.5 and 2.
    fn positive(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        self.filled(shape, |i| {
            0.5 + 1.5 * ((i * 5 + salt(name) * 11 + 1) as f64 * 0.618_033_988_75).fract()
        })
    }

    /// Unordered, with repetitions.
    fn indices(&self, _: &str, shape: &[usize], below: usize) -> Result<Tensor> {
        let count: usize = shape.iter().product();
        let indices: Vec<i64> = (0..count).map(|at| ((at * at + 2) % below) as i64).collect();
        Tensor::from_slice(self.device, shape, &indices)
    }
}

fn salt(name: &str) -> usize {
    name.bytes().map(usize::from).sum()
}

impl Inputs<'_> {
    fn filled(&self, shape: &[usize], number: impl Fn(usize) -> f64) -> Result<Tensor> {
        let count = shape.iter().product();
        let numbers: Vec<f64> = (0..count).map(number).collect();
        let numbers = Tensor::from_slice(&Device::cpu(), shape, &numbers)?;
        let rounded = ops::cast(&numbers, self.rounded_to)?;
        let numbers = ops::cast(&rounded, self.dtype)?;
        ops::to_device(&numbers, self.device)
    }
}
