//! An op with operands, and where the operands come from.

use crate::{Accumulator, DType, Device, Kind, Result, Tensor, ops};

/// Creates the operands of cases. An operand's values depend on its name.
pub trait Source {
    /// The device of all operands.
    fn device(&self) -> &Device;

    /// Numbers of any sign, of one dtype for all operands of a source.
    fn numbers(&self, name: &str, shape: &[usize]) -> Result<Tensor>;

    /// Positive numbers of the same dtype.
    fn positive(&self, name: &str, shape: &[usize]) -> Result<Tensor>;

    /// Integers from 0 to `below` - 1, in any order, of one index dtype.
    fn indices(&self, name: &str, shape: &[usize], below: usize) -> Result<Tensor>;

    /// What a sum starts from: numbers of the accumulator's dtype.
    fn sums(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        accumulated(&self.numbers(name, shape)?)
    }
}

/// An op and its operands.
pub struct OpCase {
    /// The name of the op's signature, or of the rule of a view.
    pub op: &'static str,
    /// The op, and what is special about the case.
    pub name: String,
    /// The operands.
    pub operands: Vec<Tensor>,
    /// Whether the op changes operands or adds to them.
    pub writes: bool,
    call: Call,
}

type Call = Box<dyn Fn(&CaseOperands) -> Result<Vec<Tensor>>>;

/// The operands of a call: those of a case, or a rank's parts of them.
#[derive(Clone)]
pub struct CaseOperands {
    /// The operands.
    pub tensors: Vec<Tensor>,
    /// The indices of the first element of each in the whole operand.
    pub starts: Vec<Vec<usize>>,
    /// Where ops write that change an operand or add to one.
    pub written: Written,
}

/// Where ops write that change an operand or add to one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// To copies of the operands, so that every call of a case returns the same.
    Copies,
    /// To the operands themselves; sums start empty, in new memory.
    InPlace,
}

impl OpCase {
    /// A case of `op`. `call` returns the results, and the operands that the op changed.
    pub fn new(
        op: &'static str,
        operands: Vec<Tensor>,
        call: impl Fn(&CaseOperands) -> Result<Vec<Tensor>> + 'static,
    ) -> OpCase {
        OpCase::boxed(op, operands, Box::new(call))
    }

    fn boxed(op: &'static str, operands: Vec<Tensor>, call: Call) -> OpCase {
        OpCase { op, name: op.to_owned(), operands, writes: false, call }
    }

    /// The whole operands.
    pub fn whole(&self, written: Written) -> CaseOperands {
        let starts = self.operands.iter().map(|x| vec![0; x.shape().len()]);
        CaseOperands { tensors: self.operands.clone(), starts: starts.collect(), written }
    }

    /// Calls the op. Returns its results, then the operands that it changed.
    ///
    /// # Errors
    /// Those of the op.
    pub fn run(&self, operands: &CaseOperands) -> Result<Vec<Tensor>> {
        (self.call)(operands)
    }

    pub(super) fn named(self, name: &str) -> OpCase {
        OpCase { name: name.to_owned(), ..self }
    }

    pub(super) fn writing(self) -> OpCase {
        OpCase { writes: true, ..self }
    }
}

impl CaseOperands {
    pub(super) fn first<const N: usize>(&self) -> [&Tensor; N] {
        std::array::from_fn(|at| &self.tensors[at])
    }

    /// Operand `at` for an op that changes it.
    pub(super) fn changed(&self, at: usize) -> Result<Tensor> {
        match self.written {
            Written::Copies => writable(&self.tensors[at]),
            Written::InPlace => Ok(self.tensors[at].clone()),
        }
    }

    /// Operand `at` for an op that adds to it.
    pub(super) fn sum(&self, at: usize) -> Result<Accumulator> {
        let start = &self.tensors[at];
        match self.written {
            Written::Copies => {
                let mut sum = Accumulator::over(writable(start)?)?;
                sum.filled();
                Ok(sum)
            }
            Written::InPlace => Accumulator::new(start.device(), *start.shape(), start.dtype()),
        }
    }
}

/// A copy of `x` that ops can change, with its sharding.
pub(super) fn writable(x: &Tensor) -> Result<Tensor> {
    let copy = Tensor::zeros(x.device(), x.shape(), x.dtype(), Kind::Gradient)?;
    ops::copy_into(&x.local(), &copy)?;
    Ok(copy.with_tag(x.tag().cloned()))
}

/// `x` in the dtype of its sums: f64 for f64, f32 otherwise.
pub(super) fn accumulated(x: &Tensor) -> Result<Tensor> {
    match x.dtype() {
        DType::F64 => Ok(x.clone()),
        _ => ops::cast(x, DType::F32),
    }
}

/// What an op returns.
pub(super) trait Results {
    fn list(self) -> Vec<Tensor>;
}

impl Results for () {
    fn list(self) -> Vec<Tensor> {
        Vec::new()
    }
}

impl Results for Tensor {
    fn list(self) -> Vec<Tensor> {
        vec![self]
    }
}

impl Results for (Tensor, Tensor) {
    fn list(self) -> Vec<Tensor> {
        vec![self.0, self.1]
    }
}

impl Results for (Tensor, Tensor, Tensor) {
    fn list(self) -> Vec<Tensor> {
        vec![self.0, self.1, self.2]
    }
}

impl Results for (Tensor, Tensor, Tensor, Tensor) {
    fn list(self) -> Vec<Tensor> {
        vec![self.0, self.1, self.2, self.3]
    }
}

/// A case of an op that only reads its operands.
pub(super) fn case<const N: usize, R: Results>(
    op: &'static str,
    operands: [&Tensor; N],
    call: impl Fn([&Tensor; N]) -> Result<R> + 'static,
) -> OpCase {
    let operands = operands.into_iter().cloned().collect();
    OpCase::new(op, operands, move |of| Ok(call(of.first())?.list()))
}

/// A case of an op that adds to `sum`, which becomes the last operand.
pub(super) fn adding<const N: usize, R: Results>(
    op: &'static str,
    operands: [&Tensor; N],
    sum: &Tensor,
    call: impl Fn([&Tensor; N], &mut Accumulator) -> Result<R> + 'static,
) -> OpCase {
    let operands = [&operands.map(Tensor::clone)[..], std::slice::from_ref(sum)].concat();
    adding_to_last(op, operands, move |of, sum| call(of.first(), sum))
}

/// A case of an op that adds to the last operand.
pub(super) fn adding_to_last<R: Results>(
    op: &'static str,
    operands: Vec<Tensor>,
    call: impl Fn(&CaseOperands, &mut Accumulator) -> Result<R> + 'static,
) -> OpCase {
    let last = operands.len() - 1;
    let call = move |of: &CaseOperands| {
        let mut sum = of.sum(last)?;
        let mut results = call(of, &mut sum)?.list();
        results.push(sum.total()?.clone());
        Ok(results)
    };
    OpCase::new(op, operands, call).writing()
}

/// A case of an op that changes `changed`, which becomes the last operand.
pub(super) fn changing<const N: usize>(
    op: &'static str,
    operands: [&Tensor; N],
    changed: &Tensor,
    call: impl Fn([&Tensor; N], &Tensor) -> Result<()> + 'static,
) -> OpCase {
    let operands = [&operands.map(Tensor::clone)[..], std::slice::from_ref(changed)].concat();
    let call = move |of: &CaseOperands| {
        let changed = of.changed(N)?;
        call(of.first(), &changed)?;
        Ok(vec![changed])
    };
    OpCase::new(op, operands, call).writing()
}
