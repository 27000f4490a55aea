//! Expressions with new elements: constants, element operations and computed tensors.

use super::compute::{Computation, TensorType};
use super::op::Op;
use super::scalar::widens;
use super::{ElementOp, Expr, Graph, GraphError, Real, Scalar, Short};
use crate::Dtype;

impl Graph {
    /// A tensor filled with one number, rounded to `dtype`.
    ///
    /// # Errors
    /// [`GraphError::NotFloat`], [`GraphError::TooLarge`].
    pub fn fill(&mut self, dtype: Dtype, value: f64, shape: &[u64]) -> Result<Expr, GraphError> {
        let value = Scalar::nearest(dtype, value).ok_or(GraphError::NotFloat {
            op: "fill",
            from: dtype,
            to: dtype,
        })?;
        let op = Op::Fill { value, shape: shape.to_vec() };
        self.add(op, Short::from_slice(shape), dtype)
    }

    /// Pads a dim of the operand at its end with a number, up to the extent `to`.
    ///
    /// # Errors
    /// [`GraphError::NoSuchDim`], [`GraphError::Pad`], [`GraphError::NotFloat`].
    pub fn pad(&mut self, of: Expr, dim: usize, to: u64, value: f64) -> Result<Expr, GraphError> {
        let extent = self.extent("pad", of, dim)?;
        if to == extent {
            return Ok(of);
        }
        let mut shape = self.shape(of).to_vec();
        shape[dim] = to.checked_sub(extent).ok_or(GraphError::Pad { dim, extent, to })?;
        let padding = self.fill(self.dtype(of), value, &shape)?;
        self.concat(&[of, padding], dim)
    }

    /// The same values in another float dtype, rounded to nearest even. A cast to a wider dtype and
    /// back is the operand itself.
    ///
    /// # Errors
    /// [`GraphError::NotFloat`].
    pub fn cast(&mut self, of: Expr, to: Dtype) -> Result<Expr, GraphError> {
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
    /// [`GraphError::NotFloat`].
    pub fn scale(&mut self, of: Expr, by: f64) -> Result<Expr, GraphError> {
        self.each("scale", of, ElementOp::Scale(Real(by)))
    }

    /// Each element plus a number.
    ///
    /// # Errors
    /// [`GraphError::NotFloat`].
    pub fn add_number(&mut self, of: Expr, what: f64) -> Result<Expr, GraphError> {
        self.each("add", of, ElementOp::Add(Real(what)))
    }

    /// A tensor computed from whole tensors.
    ///
    /// # Errors
    /// [`GraphError::Operands`].
    pub fn compute(&mut self, of: &[Expr], how: &Computation) -> Result<Expr, GraphError> {
        let operands: Vec<TensorType> = of.iter().map(|it| self.tensor_type(*it)).collect();
        let (dtype, shape) = how
            .result(&operands)
            .map_err(|message| GraphError::Operands { op: how.name(), message })?;
        let (of, how) = (Short::from_slice(of), how.clone());
        self.add(Op::Computed { of, how }, shape.into(), dtype)
    }

    /// Dtype and shape of an expression.
    pub fn tensor_type(&self, of: Expr) -> TensorType {
        (self.dtype(of), self.shape(of).to_vec())
    }

    /// An operation on each element of an F64 tensor; a cast changes nothing.
    pub(super) fn step(&mut self, of: Expr, step: ElementOp) -> Result<Expr, GraphError> {
        match step {
            ElementOp::Cast(_) => Ok(of),
            step => self.each(step.name(), of, step),
        }
    }

    fn each(&mut self, op: &'static str, of: Expr, step: ElementOp) -> Result<Expr, GraphError> {
        let dtype = self.dtype(of);
        self.check_number(op, dtype, dtype)?;
        self.add(Op::Each { of, step }, Short::from_slice(self.shape(of)), dtype)
    }

    /// Checks that `from` can be read and `to` written as numbers.
    fn check_number(&self, op: &'static str, from: Dtype, to: Dtype) -> Result<(), GraphError> {
        let readable = Scalar::from_bits(from, 0).value().is_some();
        match readable && Scalar::nearest(to, 0.0).is_some() {
            true => Ok(()),
            false => Err(GraphError::NotFloat { op, from, to }),
        }
    }
}
