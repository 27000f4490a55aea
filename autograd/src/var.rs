//! Variables: tensors with the node that produced them.

use std::fmt;

use meshgrad_runtime::{DType, Shape, Tensor};

use crate::{Param, Result};

/// A tensor and the node that produced it. Ops of this crate take and return variables.
#[derive(Clone)]
pub struct Var {
    value: Tensor,
    node: Node,
}

/// The origin of a value.
#[derive(Clone)]
pub(crate) enum Node {
    /// No gradient flows to it.
    Constant,
    /// A parameter, or its copy in another dtype.
    Param(Param),
    /// An input, or the output of an op, on a tape.
    Value(ValueId),
}

/// A value on a tape.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct ValueId {
    pub(crate) tape: u64,
    pub(crate) slot: u32,
}

impl Var {
    pub(crate) fn new(value: Tensor, node: Node) -> Var {
        Var { value, node }
    }

    /// A value to which no gradient flows.
    pub fn constant(value: Tensor) -> Var {
        Var::new(value, Node::Constant)
    }

    /// The value. Ops on this tensor are not recorded, so they stop the gradient.
    pub fn value(&self) -> &Tensor {
        &self.value
    }

    /// The value, without its node.
    pub fn into_value(self) -> Tensor {
        self.value
    }

    /// The value's shape.
    pub fn shape(&self) -> &Shape {
        self.value.shape()
    }

    /// The shape of the global tensor; the value's shape without a sharding.
    pub fn global_shape(&self) -> Shape {
        self.value.global_shape()
    }

    /// The value's dtype.
    pub fn dtype(&self) -> DType {
        self.value.dtype()
    }

    /// Whether a gradient flows to it: it is a parameter that is not frozen, an input, or was
    /// computed from one while a tape records.
    pub fn is_tracked(&self) -> bool {
        !matches!(self.node, Node::Constant)
    }

    pub(crate) fn node(&self) -> &Node {
        &self.node
    }
}

impl Param {
    /// The parameter as an operand of ops, in its own dtype. A constant if it is frozen. A parameter
    /// with a [`Home`](crate::Home) is gathered from the ranks.
    ///
    /// # Errors
    /// When it has no value; errors of the communication.
    pub fn var(&self) -> Result<Var> {
        Ok(Var::new(self.value_as(self.spec().dtype)?, self.node()))
    }

    /// As [`Param::var`], in `dtype`. The copy is kept until the value changes; its
    /// gradient is the parameter's own.
    ///
    /// # Errors
    /// When it has no value; when memory runs out.
    pub fn var_as(&self, dtype: DType) -> Result<Var> {
        Ok(Var::new(self.value_as(dtype)?, self.node()))
    }

    fn node(&self) -> Node {
        match self.is_frozen() {
            true => Node::Constant,
            false => Node::Param(self.clone()),
        }
    }
}

impl fmt::Debug for Var {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.node {
            Node::Constant => write!(f, "constant {:?}", self.value),
            Node::Param(param) => write!(f, "parameter {param:?}"),
            Node::Value(id) => write!(f, "{:?} at {} of tape {}", self.value, id.slot, id.tape),
        }
    }
}
