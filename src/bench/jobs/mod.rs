//! Jobs: ops to time, on operands shared by a group of jobs, with the corresponding request to
//! torch. One file per part of a model.

mod attention;
mod experts;
mod optimizer;
mod products;
mod rows;
mod vocabulary;

use meshgrad::prelude::*;
use meshgrad::runtime::ops;
use meshgrad::runtime::{Key, Result};
use serde_json::{Value, json};

use super::shapes::Shapes;

pub(crate) use rows::copy;

/// An op to time.
pub(crate) struct Job {
    pub(crate) name: &'static str,
    pub(crate) dtype: DType,
    pub(crate) amount: Amount,
    /// The request to torch, if it supports the op.
    pub(crate) request: Option<Value>,
    /// Whether torch.compile is timed too. Set for ops in which it can fuse several kernels.
    pub(crate) compiles: bool,
    pub(crate) run: Run,
}

impl Job {
    /// A job that torch supports too. `extents` are sent with the request.
    fn new(
        name: &'static str,
        dtype: DType,
        amount: Amount,
        extents: &Value,
        run: impl Fn(&[Tensor]) -> Result<Vec<Tensor>> + 'static,
    ) -> Job {
        let mut request = extents.clone();
        request["what"] = json!(name);
        request["dtype"] = json!(dtype.name());
        Job {
            name,
            dtype,
            amount,
            request: Some(request),
            compiles: false,
            run: Box::new(run),
        }
    }

    /// The same, with torch.compile timed too.
    fn compiled(self) -> Job {
        Job {
            compiles: true,
            ..self
        }
    }

    /// The same, without a torch counterpart.
    fn without_peer(self) -> Job {
        Job {
            request: None,
            ..self
        }
    }
}

/// Runs the op on one set of operands.
pub(crate) type Run = Box<dyn Fn(&[Tensor]) -> Result<Vec<Tensor>>>;

/// The work that any implementation of a job must do.
#[derive(Clone, Copy)]
pub(crate) enum Amount {
    /// Bytes: each operand read once and each result written once.
    Bytes(f64),
    Flops(f64),
}

/// Jobs with the same operands.
pub(crate) struct Group {
    pub(crate) title: String,
    pub(crate) jobs: Vec<Job>,
    /// Bytes per set of operands.
    pub(crate) bytes: usize,
    pub(crate) operands: Operands,
}

/// Generates one set of operands.
pub(crate) type Operands = Box<dyn Fn(&Source<'_>) -> Result<Vec<Tensor>>>;

/// Generates operands. They are random because the speed of a chip depends on their values.
pub(crate) struct Source<'d> {
    pub(crate) device: &'d Device,
    /// The index of the set, which seeds its values.
    pub(crate) set: usize,
}

impl Source<'_> {
    /// Values between -1 and 1.
    fn random(&self, name: &str, shape: &[usize], dtype: DType) -> Result<Tensor> {
        let key = Key::new(self.set as u64).fold_name(name);
        ops::uniform(self.device, shape, dtype, key, -1.0, 1.0)
    }

    /// Unordered ids, i64.
    fn tokens(&self, count: usize, vocabulary: usize) -> Result<Tensor> {
        let ids: Vec<i64> = (0..count)
            .map(|at| ((at * 7919) % vocabulary) as i64)
            .collect();
        Tensor::from_slice(self.device, &[count], &ids)
    }

    /// [rows, columns], stored as its transpose if `transposed`.
    fn matrix(
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
