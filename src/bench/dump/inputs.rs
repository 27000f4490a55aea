//! The inputs of a dump: random values, and special ones.

use meshgrad::prelude::*;
use meshgrad::runtime::op_cases::Source;
use meshgrad::runtime::{Key, Result, ops};

/// Special values of functions and formats.
const SPECIAL: [f32; 12] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
    f32::MIN_POSITIVE,
    1e-41,
    f32::MAX,
    -88.5,
    1e6,
];

/// Enough for all pairs of special values, and not a multiple of a vector.
pub(crate) const ELEMENTS: usize = 4099;

/// Random values that depend only on their name, generated on the CPU by Philox.
#[derive(Clone)]
pub(crate) struct Inputs<'d> {
    device: &'d Device,
    host: Device,
    /// The dtype of all numbers.
    pub(crate) dtype: DType,
    /// Whether two operands of one call start with all pairs of special values.
    has_specials: bool,
}

impl<'d> Inputs<'d> {
    pub(crate) fn new(device: &'d Device, dtype: DType) -> Inputs<'d> {
        Inputs { device, host: Device::cpu(), dtype, has_specials: false }
    }

    pub(crate) fn with_specials(&self) -> Inputs<'d> {
        Inputs { has_specials: true, ..self.clone() }
    }

    fn normal(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        let key = Key::new(3).fold_name(name);
        ops::normal(&self.host, shape, DType::F32, key, 0.0, 1.0)
    }

    /// `x`, in which special values replace the first ones.
    fn specials(&self, x: &Tensor, is_first: bool) -> Result<Tensor> {
        let special = |i: usize| match is_first {
            true => SPECIAL[i % SPECIAL.len()],
            false => SPECIAL[i / SPECIAL.len()],
        };
        let mut values = x.to_vec::<f32>()?;
        for (i, value) in values.iter_mut().take(SPECIAL.len().pow(2)).enumerate() {
            *value = special(i);
        }
        Tensor::from_slice(&self.host, x.shape(), &values)
    }

    fn on_device(&self, x: &Tensor) -> Result<Tensor> {
        ops::to_device(&ops::cast(x, self.dtype)?, self.device)
    }
}

impl Source for Inputs<'_> {
    fn device(&self) -> &Device {
        self.device
    }

    fn numbers(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        let x = self.normal(name, shape)?;
        match self.has_specials {
            true => self.on_device(&self.specials(&x, ["a", "x"].contains(&name))?),
            false => self.on_device(&x),
        }
    }

    /// Special values are of any sign.
    fn positive(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        match self.has_specials {
            true => self.numbers(name, shape),
            false => self.on_device(&ops::abs(&self.normal(name, shape)?)?),
        }
    }

    fn indices(&self, _: &str, shape: &[usize], below: usize) -> Result<Tensor> {
        let count: usize = shape.iter().product();
        let ids: Vec<i64> = (0..count).map(|at| (at * at % below) as i64).collect();
        Tensor::from_slice(self.device, shape, &ids)
    }
}
