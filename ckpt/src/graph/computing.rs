//! Expressions with new elements: constants, element operations and computed tensors.

use meshgrad_error::{Error, Result, error};

use super::compute::{Computation, TensorType};
use super::op::Op;
use super::scalar::widens;
use super::{ElementOp, Expr, Graph, Real, Scalar, Short};
use crate::Dtype;

impl Graph {
    /// A tensor filled with one number, rounded to `dtype`.
    ///
    /// # Errors
    /// For a dtype without arithmetic, and too many elements.
    pub fn fill(&mut self, dtype: Dtype, value: f64, shape: &[u64]) -> Result<Expr> {
        let value = Scalar::nearest(dtype, value);
        let value = value.ok_or_else(|| not_float("fill", dtype, dtype))?;
        let op = Op::Fill { value, shape: shape.to_vec() };
        self.add(op, Short::from_slice(shape), dtype)
    }

    /// Pads a dim of the operand at its end with a number, up to the extent `to`.
    ///
    /// # Errors
    /// For a dim that does not exist or is larger than `to`, and a dtype without arithmetic.
    pub fn pad(&mut self, of: Expr, dim: usize, to: u64, value: f64) -> Result<Expr> {
        let extent = self.extent("pad", of, dim)?;
        if to == extent {
            return Ok(of);
        }
        let mut shape = self.shape(of).to_vec();
        shape[dim] = to.checked_sub(extent).ok_or_else(|| {
            error!(
                Invalid,
                "pad: dim {dim} has {extent} elements, more than the target extent {to}"
            )
        })?;
        let padding = self.fill(self.dtype(of), value, &shape)?;
        self.concat(&[of, padding], dim)
    }

    /// The same values in another float dtype, rounded to nearest even. A cast to a wider dtype and
    /// back is the operand itself.
    ///
    /// # Errors
    /// For a dtype without arithmetic.
    pub fn cast(&mut self, of: Expr, to: Dtype) -> Result<Expr> {
        let from = self.dtype(of);
        if from == to {
            return Ok(of);
        }
        if let Op::Each { of: before, step: ElementOp::Cast(_) } = self.node(of).op
            && self.dtype(before) == to
            && widens(to, from)
        {
            return Ok(before);
        }
        self.check_number("cast", from, to)?;
        let step = ElementOp::Cast(to);
        self.add(Op::Each { of, step }, Short::from_slice(self.shape(of)), to)
    }

    /// Each element times a number.
    ///
    /// # Errors
    /// For a dtype without arithmetic.
    pub fn scale(&mut self, of: Expr, by: f64) -> Result<Expr> {
        self.each("scale", of, ElementOp::Scale(Real(by)))
    }

    /// Each element plus a number.
    ///
    /// # Errors
    /// For a dtype without arithmetic.
    pub fn add_number(&mut self, of: Expr, what: f64) -> Result<Expr> {
        self.each("add", of, ElementOp::Add(Real(what)))
    }

    /// A tensor computed from whole tensors.
    ///
    /// # Errors
    /// For operands that the computation rejects.
    pub fn compute(&mut self, of: &[Expr], how: &Computation) -> Result<Expr> {
        let operands: Vec<TensorType> = of.iter().map(|it| self.tensor_type(*it)).collect();
        let result = how.result(&operands);
        let (dtype, shape) =
            result.map_err(|message| error!(Invalid, "{}: {message}", how.name()))?;
        let (of, how) = (Short::from_slice(of), how.clone());
        self.add(Op::Computed { of, how }, shape.into(), dtype)
    }

    /// Dtype and shape of an expression.
    pub fn tensor_type(&self, of: Expr) -> TensorType {
        (self.dtype(of), self.shape(of).to_vec())
    }

    /// An operation on each element of an F64 tensor; a cast changes nothing.
    pub(super) fn step(&mut self, of: Expr, step: ElementOp) -> Result<Expr> {
        match step {
            ElementOp::Cast(_) => Ok(of),
            step => self.each(step.name(), of, step),
        }
    }

    fn each(&mut self, op: &'static str, of: Expr, step: ElementOp) -> Result<Expr> {
        let dtype = self.dtype(of);
        self.check_number(op, dtype, dtype)?;
        self.add(Op::Each { of, step }, Short::from_slice(self.shape(of)), dtype)
    }

    /// Checks that `from` can be read and `to` written as numbers.
    fn check_number(&self, op: &'static str, from: Dtype, to: Dtype) -> Result<()> {
        let readable = Scalar::from_bits(from, 0).value().is_some();
        let is_number = readable && Scalar::nearest(to, 0.0).is_some();
        is_number.then_some(()).ok_or_else(|| not_float(op, from, to))
    }
}

fn not_float(op: &'static str, from: Dtype, to: Dtype) -> Error {
    error!(
        Unsupported,
        "{op}: cannot convert {from} to {to}: operands must be F64, F32, F16, BF16, F8_E4M3, \
         F8_E5M2 or F8_E8M0, results must be one of the first four"
    )
}
