//! Jobs: cases of the table of ops to time, with the amount of work and the corresponding request to
//! torch. One file per part of a model.

mod attention;
mod experts;
mod optimizer;
mod products;
mod rows;
mod vocabulary;

use meshgrad::prelude::*;
use meshgrad::runtime::op_cases::{OpCase, Source};
use meshgrad::runtime::{Key, Result, ops};
use serde_json::{Value, json};

use super::shapes::Shapes;

pub(crate) use rows::copy;

/// An op to time.
pub(crate) struct Job {
    pub(crate) name: &'static str,
    /// The names of the cases that run.
    pub(crate) cases: &'static [&'static str],
    pub(crate) dtype: DType,
    pub(crate) amount: Amount,
    /// The request to torch, if it supports the op.
    pub(crate) request: Option<Value>,
    /// Whether torch.compile is timed too. Set for ops in which it can fuse several kernels.
    pub(crate) compiles: bool,
}

impl Job {
    /// A job that torch supports too. `extents` are sent with the request.
    fn new(
        name: &'static str,
        cases: &'static [&'static str],
        dtype: DType,
        amount: Amount,
        extents: &Value,
    ) -> Job {
        let mut request = extents.clone();
        request["what"] = json!(name);
        request["dtype"] = json!(dtype.name());
        Job { name, cases, dtype, amount, request: Some(request), compiles: false }
    }

    /// The same, with torch.compile timed too.
    fn compiled(self) -> Job {
        Job { compiles: true, ..self }
    }

    /// The same, without a torch counterpart.
    fn without_peer(self) -> Job {
        Job { request: None, ..self }
    }
}

/// The work that any implementation of a job must do.
#[derive(Clone, Copy)]
pub(crate) enum Amount {
    /// Bytes: each operand read once and each result written once.
    Bytes(f64),
    Flops(f64),
}

/// Jobs of one family of cases.
pub(crate) struct Group {
    pub(crate) title: String,
    pub(crate) jobs: Vec<Job>,
    /// Bytes per set of operands.
    pub(crate) bytes: usize,
    pub(crate) family: Family,
}

/// Creates the cases with one set of operands.
pub(crate) type Family = Box<dyn Fn(&Inputs<'_>) -> Result<Vec<OpCase>>>;

/// Generates operands. They are random because the speed of a chip depends on their values.
pub(crate) struct Inputs<'d> {
    pub(crate) device: &'d Device,
    pub(crate) dtype: DType,
    /// The index of the set, which seeds its values.
    pub(crate) set: usize,
}

impl Inputs<'_> {
    fn uniform(&self, name: &str, shape: &[usize], low: f64) -> Result<Tensor> {
        let key = Key::new(self.set as u64).fold_name(name);
        ops::uniform(self.device, shape, self.dtype, key, low, 1.0)
    }
}

impl Source for Inputs<'_> {
    fn device(&self) -> &Device {
        self.device
    }

    fn numbers(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        self.uniform(name, shape, -1.0)
    }

    fn positive(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        self.uniform(name, shape, 0.0)
    }

    fn indices(&self, _: &str, shape: &[usize], below: usize) -> Result<Tensor> {
        let count: usize = shape.iter().product();
        let ids: Vec<i64> = (0..count).map(|at| ((at * 7919) % below) as i64).collect();
        Tensor::from_slice(self.device, shape, &ids)
    }

    /// Sums start empty, so these are not read and need no memory.
    fn sums(&self, _: &str, shape: &[usize]) -> Result<Tensor> {
        ops::full(self.device, &[], DType::F32, 0.0)?.broadcast_to(shape)
    }
}

/// All groups, without the copy that measures the bandwidth.
pub(crate) fn groups(shapes: &Shapes) -> Vec<Group> {
    let mut groups = rows::groups(shapes);
    groups.extend(products::groups(shapes));
    groups.extend(attention::groups(shapes));
    groups.extend(experts::groups(shapes));
    groups.extend(vocabulary::groups(shapes));
    groups.extend(optimizer::groups(shapes));
    groups
}
