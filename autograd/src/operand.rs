//! The type of operands and results of ops.

use meshgrad_runtime::{DType, Shape, Tensor};

use crate::{Save, Saved, Var};

/// The type of an op's operands and results: [`Var`], or [`Tensor`] where no gradient flows. All
/// operands of one op have the same type; [`Var::constant`] turns a tensor into a variable.
pub trait Operand: Save + Clone {
    /// Its value.
    fn value(&self) -> &Tensor;

    /// The variable; `None` for a tensor.
    fn as_var(&self) -> Option<&Var>;

    /// Converts a variable to this type. A conversion to a tensor drops the node.
    fn from_var(var: Var) -> Self;

    /// The value's shape.
    fn shape(&self) -> &Shape {
        self.value().shape()
    }

    /// The shape of the global tensor; the value's shape without a sharding.
    fn global_shape(&self) -> Shape {
        self.value().global_shape()
    }

    /// The value's dtype.
    fn dtype(&self) -> DType {
        self.value().dtype()
    }

    /// Whether a gradient flows to it.
    fn is_tracked(&self) -> bool {
        self.as_var().is_some_and(Var::is_tracked)
    }

    /// Saves it if the gradient of `other` needs it, that is, if `other` is tracked.
    fn save_for(&self, other: &Self) -> Option<Saved> {
        other.is_tracked().then(|| self.save())
    }
}

impl Operand for Var {
    fn value(&self) -> &Tensor {
        Var::value(self)
    }

    fn as_var(&self) -> Option<&Var> {
        Some(self)
    }

    fn from_var(var: Var) -> Var {
        var
    }
}

impl Operand for Tensor {
    fn value(&self) -> &Tensor {
        self
    }

    fn as_var(&self) -> Option<&Var> {
        None
    }

    fn from_var(var: Var) -> Tensor {
        var.into_value()
    }
}

impl Save for Var {
    fn save(&self) -> Saved {
        Var::save(self)
    }
}
