//! What a job is: something to time, on operands that a group of jobs shares, and how torch is
//! asked for the same. The jobs themselves: [`rows`](super::rows), [`products`](super::products),
//! [`layers`](super::layers).

use meshgrad::prelude::*;
use meshgrad::runtime::{Key, Result};
use serde_json::Value;

use crate::shapes::Shapes;
use crate::{layers, products, rows};

/// One thing to time.
pub(crate) struct Job {
    pub(crate) name: &'static str,
    pub(crate) dtype: DType,
    pub(crate) amount: Amount,
    /// How the peer is asked for the same.
    pub(crate) request: Value,
    /// Whether the peer is also timed under torch.compile: where that can make one kernel of several.
    pub(crate) compiles: bool,
    pub(crate) run: Run,
}

/// Computes something of one set of operands.
pub(crate) type Run = Box<dyn Fn(&[Tensor]) -> Result<Vec<Tensor>>>;

/// What a job has to do, whatever an implementation does.
#[derive(Clone, Copy)]
pub(crate) enum Amount {
    /// Bytes: each operand read once and each result written once.
    Bytes(f64),
    Flops(f64),
}

/// Jobs that work on the same operands.
pub(crate) struct Group {
    pub(crate) title: String,
    pub(crate) jobs: Vec<Job>,
    /// Bytes of one set of operands.
    pub(crate) bytes: usize,
    pub(crate) operands: Operands,
}

/// Makes one set of operands.
pub(crate) type Operands = Box<dyn Fn(&Source<'_>) -> Result<Vec<Tensor>>>;

/// Operands of random values, for how fast a chip is depends on them.
pub(crate) struct Source<'d> {
    pub(crate) device: &'d Device,
    /// Sets of one group differ.
    pub(crate) set: usize,
}

impl Source<'_> {
    /// Values between -1 and 1.
    pub(crate) fn random(&self, name: &str, shape: &[usize], dtype: DType) -> Result<Tensor> {
        let key = Key::new(self.set as u64).fold_name(name);
        values::uniform(self.device, shape, dtype, key, -1.0, 1.0)
    }

    /// [rows, columns], stored as its transpose if `transposed`.
    pub(crate) fn matrix(
        &self,
        name: &str,
        [rows, columns]: [usize; 2],
        transposed: bool,
        dtype: DType,
    ) -> Result<Tensor> {
        match transposed {
            true => self.random(name, &[columns, rows], dtype)?.transpose(0, 1),
            false => self.random(name, &[rows, columns], dtype),
        }
    }
}

/// Everything but the copy that the device's bandwidth is known by.
pub(crate) fn groups(shapes: &Shapes) -> Vec<Group> {
    let mut groups = rows::groups(shapes);
    groups.extend(products::groups(shapes));
    groups.extend(layers::groups(shapes));
    groups
}

/// The dtypes that GPUs compute in.
pub(crate) const FLOATS: [DType; 2] = [DType::F32, DType::BF16];
