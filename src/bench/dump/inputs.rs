//! The inputs of a dump, and the list of its cases.

use meshgrad::prelude::*;
use meshgrad::runtime::ops;
use meshgrad::runtime::{Key, Result};

/// A result, and whether it is exact.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) exact: bool,
    pub(crate) result: Tensor,
}

pub(crate) struct Cases(pub(crate) Vec<Case>);

impl Cases {
    pub(crate) fn exact(&mut self, name: String, result: Tensor) {
        self.push(name, true, result);
    }

    pub(crate) fn measured(&mut self, name: String, result: Tensor) {
        self.push(name, false, result);
    }

    fn push(&mut self, name: String, exact: bool, result: Tensor) {
        self.0.push(Case {
            name,
            exact,
            result,
        });
    }
}

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
pub(crate) struct Inputs<'d> {
    pub(crate) device: &'d Device,
    host: Device,
    key: Key,
}

impl Inputs<'_> {
    pub(crate) fn new(device: &Device) -> Inputs<'_> {
        Inputs {
            device,
            host: Device::cpu(),
            key: Key::new(3),
        }
    }

    pub(crate) fn normal(&self, name: &str, shape: &[usize], dtype: DType) -> Result<Tensor> {
        let key = self.key.fold_name(name);
        let x = ops::normal(&self.host, shape, dtype, key, 0.0, 1.0)?;
        ops::to_device(&x, self.device)
    }

    /// \[rows, columns\], stored as its transpose if `transposed`.
    pub(crate) fn matrix(
        &self,
        name: &str,
        [rows, columns]: [usize; 2],
        transposed: bool,
        dtype: DType,
    ) -> Result<Tensor> {
        match transposed {
            true => self.normal(name, &[columns, rows], dtype)?.transpose(0, 1),
            false => self.normal(name, &[rows, columns], dtype),
        }
    }

    /// Two operands that start with all pairs of special values.
    pub(crate) fn with_specials(&self, dtype: DType) -> Result<[Tensor; 2]> {
        let operand = |name: &str, special: fn(usize) -> f32| {
            let key = self.key.fold_name(name);
            let x = ops::normal(&self.host, &[ELEMENTS], DType::F32, key, 0.0, 3.0)?;
            let mut x = x.to_vec::<f32>()?;
            for (i, x) in x[..SPECIAL.len().pow(2)].iter_mut().enumerate() {
                *x = special(i);
            }
            let x = Tensor::from_slice(&self.host, &[ELEMENTS], &x)?;
            ops::to_device(&ops::cast(&x, dtype)?, self.device)
        };
        Ok([
            operand("a", |i| SPECIAL[i % SPECIAL.len()])?,
            operand("b", |i| SPECIAL[i / SPECIAL.len()])?,
        ])
    }
}
