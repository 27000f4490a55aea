//! Jobs: something to time, on operands that a group of jobs shares, and how torch is asked for the
//! same. A file is a part of a model.

mod attention;
mod experts;
mod optimizer;
mod products;
mod rows;
mod vocabulary;

use meshgrad::prelude::*;
use meshgrad::runtime::{Key, Result};
use serde_json::{Value, json};

use super::shapes::Shapes;

pub(crate) use rows::copy;

/// One thing to time.
pub(crate) struct Job {
    pub(crate) name: &'static str,
    pub(crate) dtype: DType,
    pub(crate) amount: Amount,
    /// How the peer is asked for the same, if it can do that.
    pub(crate) request: Option<Value>,
    /// Whether the peer is also timed under torch.compile: where that can make one kernel of several.
    pub(crate) compiles: bool,
    pub(crate) run: Run,
}

impl Job {
    /// A job that torch does too, in a single way. `extents` say of what.
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

    /// The same, for which torch.compile may make one kernel of several.
    fn compiled(self) -> Job {
        Job {
            compiles: true,
            ..self
        }
    }

    /// The same, of which torch has nothing.
    fn without_peer(self) -> Job {
        Job {
            request: None,
            ..self
        }
    }
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
    fn random(&self, name: &str, shape: &[usize], dtype: DType) -> Result<Tensor> {
        let key = Key::new(self.set as u64).fold_name(name);
        values::uniform(self.device, shape, dtype, key, -1.0, 1.0)
    }

    /// Ids that come in no order, i64.
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

/// Everything but the copy that the device's bandwidth is known by.
pub(crate) fn groups(shapes: &Shapes) -> Vec<Group> {
    let mut groups = rows::groups(shapes);
    groups.extend(products::groups(shapes));
    groups.extend(attention::groups(shapes));
    groups.extend(experts::groups(shapes));
    groups.extend(vocabulary::groups(shapes));
    groups.extend(optimizer::groups(shapes));
    groups
}
