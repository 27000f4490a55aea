//! Variables: tensors that know where on a tape they come from.

use std::fmt;

use meshgrad_runtime::{DType, Shape, Tensor};

use crate::saved::{Save, Saved};
use crate::tape::{Backward, Dep, current, output, record};
use crate::{Param, Result};

/// A tensor and the node that made it. Ops of this crate take and return variables.
#[derive(Clone)]
pub struct Var {
    value: Tensor,
    node: Node,
}

/// Where a value comes from.
#[derive(Clone)]
pub(crate) enum Node {
    /// From outside: no gradient flows to it.
    Constant,
    /// It is a parameter, or its copy in another dtype.
    Param(Param),
    /// An op on a tape made it.
    At(Place),
}

/// A value on a tape.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) tape: u64,
    pub(crate) slot: u32,
}

impl Var {
    pub(crate) fn new(value: Tensor, node: Node) -> Var {
        Var { value, node }
    }

    /// A value that no gradient flows to.
    pub fn constant(value: Tensor) -> Var {
        Var::new(value, Node::Constant)
    }

    /// An input of what is being recorded: the one who gave it wants its gradient (see
    /// [`Tape::backward_inputs`](crate::Tape::backward_inputs)). A constant when no tape records.
    pub fn input(value: Tensor) -> Var {
        let place = current(|recorder| recorder.leaf());
        let node = place.map_or(Node::Constant, Node::At);
        Var::new(value, node)
    }

    /// The value. Outside of an op this stops the gradient.
    pub fn value(&self) -> &Tensor {
        &self.value
    }

    /// The value's extents.
    pub fn shape(&self) -> &Shape {
        self.value.shape()
    }

    /// The value's dtype.
    pub fn dtype(&self) -> DType {
        self.value.dtype()
    }

    /// Whether a gradient flows to it: it is a parameter, an input, or made from one while a tape
    /// records.
    pub fn is_tracked(&self) -> bool {
        !matches!(self.node, Node::Constant)
    }

    /// Keeps the value for backward. What an op does not save, it does not keep alive.
    pub fn save(&self) -> Saved {
        match &self.node {
            Node::Param(param) => self.value.save().named(param.name()),
            _ => self.value.save(),
        }
    }

    /// The same value, from here on counted as depending on the input of what is recorded: what is
    /// computed from data and parameters alone, as a token embedding is, is an activation and not a
    /// weight.
    ///
    /// # Errors
    /// [`Error::OtherTape`](crate::Error::OtherTape).
    pub fn as_activation(&self) -> Result<Var> {
        let pass_on: Backward = Box::new(|dys, slots, _| {
            let [dx] = slots.array();
            dys[0]
                .as_ref()
                .map_or(Ok(()), |dy| dx.add(|| Ok(dy.clone())))
        });
        let place = record(1, &[self], Dep::Input, pass_on)?;
        Ok(output(self.value.clone(), place, 0))
    }

    pub(crate) fn node(&self) -> &Node {
        &self.node
    }
}

impl fmt::Debug for Var {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.node {
            Node::Constant => write!(f, "constant {:?}", self.value),
            Node::Param(param) => write!(f, "parameter {param:?}"),
            Node::At(place) => write!(
                f,
                "{:?} at {} of tape {}",
                self.value, place.slot, place.tape
            ),
        }
    }
}
