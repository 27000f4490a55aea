//! The slots that a backward closure gets: one for each input, which takes that input's gradient.

use std::cell::RefCell;

use meshgrad_runtime::{Accumulator, DType, Device, Kind, Shape, Tensor, ops};

use crate::error::gradient_shape;
use crate::var::{Node, ValueId};
use crate::{Grads, Param, Result};

/// What a value depends on. The greater one wins where several meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Dep {
    /// On nothing that is differentiated.
    Nothing,
    /// On parameters alone.
    Weight,
    /// On the input of what is recorded.
    Input,
}

/// Where the gradient of one input of a record goes.
#[derive(Clone)]
pub(crate) struct Edge {
    pub(crate) node: Node,
    pub(crate) shape: Shape,
    pub(crate) dtype: DType,
}

impl Edge {
    pub(crate) fn param(&self) -> Option<&Param> {
        match &self.node {
            Node::Param(param) => Some(param),
            _ => None,
        }
    }
}

/// Which gradients are computed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// All of them.
    Full,
    /// Those of inputs, and of what depends on inputs.
    Inputs,
    /// Those that [`Phase::Inputs`] left.
    Weights,
}

/// One walk over a tape.
pub(crate) struct Pass<'a> {
    pub(crate) phase: Phase,
    pub(crate) deps: &'a [Dep],
    pub(crate) edges: &'a [Edge],
    pub(crate) device: &'a Device,
    pub(crate) state: RefCell<State>,
}

pub(crate) struct State {
    /// The gradient of each value so far.
    pub(crate) slots: Vec<Option<Tensor>>,
    /// Whether the record at hand has work for the weights' phase.
    pub(crate) pending: bool,
    pub(crate) grads: Grads,
}

/// Where the gradient of one input of an op goes.
pub struct Slot<'a> {
    pass: &'a Pass<'a>,
    to: &'a Edge,
}

/// The slots of one record, made as they are asked for.
#[derive(Clone, Copy)]
pub(crate) struct Slots<'a> {
    pub(crate) pass: &'a Pass<'a>,
    pub(crate) inputs: &'a [Edge],
}

impl<'a> Slots<'a> {
    pub(crate) fn iter(self) -> impl Iterator<Item = Slot<'a>> {
        self.inputs.iter().map(move |to| Slot {
            pass: self.pass,
            to,
        })
    }

    /// The slots of a record with `N` inputs.
    pub(crate) fn array<const N: usize>(self) -> [Slot<'a>; N] {
        std::array::from_fn(|at| Slot {
            pass: self.pass,
            to: &self.inputs[at],
        })
    }
}

impl Slot<'_> {
    /// Whether this gradient is wanted now. Lets an op choose a kernel that makes two gradients at
    /// once.
    pub fn due(&self) -> bool {
        let dep = self.dep();
        let mut state = self.pass.state.borrow_mut();
        if self.pass.phase == Phase::Inputs && dep == Dep::Weight {
            state.pending = true;
            return false;
        }
        if let Some(param) = self.to.param() {
            return state.grads.holds(param);
        }
        match self.pass.phase {
            Phase::Full => dep != Dep::Nothing,
            Phase::Inputs => dep == Dep::Input,
            Phase::Weights => dep == Dep::Weight,
        }
    }

    /// Adds the gradient that `gradient` returns, of the input's shape. `gradient` runs only if it
    /// is wanted now.
    ///
    /// # Errors
    /// What `gradient` returns; [`Error::GradientShape`].
    #[allow(clippy::should_implement_trait)] // It is what one does to a gradient.
    pub fn add(self, gradient: impl FnOnce() -> Result<Tensor>) -> Result<()> {
        if !self.due() {
            return Ok(());
        }
        let gradient = gradient()?;
        self.check(&gradient)?;

        match &self.to.node {
            Node::Value(place) if self.dep() == Dep::Input => self.add_to_slot(*place, gradient),
            _ => self.accumulate_due(|sum| Ok(ops::add_into(&gradient, sum)?)),
        }
    }

    /// Lets `op` write or add the gradient in place. `op` runs only if the gradient is wanted now.
    ///
    /// # Errors
    /// What `op` returns.
    pub fn accumulate(self, op: impl FnOnce(&mut Accumulator) -> Result<()>) -> Result<()> {
        match self.due() {
            true => self.accumulate_due(op),
            false => Ok(()),
        }
    }

    fn accumulate_due(self, op: impl FnOnce(&mut Accumulator) -> Result<()>) -> Result<()> {
        let dtype = self.to.dtype.accumulator();
        let mut state = self.pass.state.borrow_mut();
        match &self.to.node {
            Node::Constant => Ok(()),
            Node::Param(param) => match state.grads.sum(param) {
                Some(sum) => sum.viewed(&self.to.shape, op),
                None => Ok(()),
            },
            Node::Value(place) if self.dep() == Dep::Input && self.to.dtype != dtype => {
                // Ops accumulate in no narrower dtype; the sum goes on in the activation's own.
                let mut sum = Accumulator::new(self.pass.device, self.to.shape, dtype)?;
                op(&mut sum)?;
                let gradient = ops::cast(sum.total()?, self.to.dtype)?;
                drop(state);
                self.add_to_slot(*place, gradient)
            }
            Node::Value(place) => {
                let slot = &mut state.slots[place.slot as usize];
                let mut sum = self.buffer(slot.take(), dtype)?;
                op(&mut sum)?;
                *slot = Some(sum.total()?.clone());
                Ok(())
            }
        }
    }

    /// A buffer of `dtype` that holds what the slot held.
    fn buffer(&self, held: Option<Tensor>, dtype: DType) -> Result<Accumulator> {
        match held {
            Some(held) if held.kind() == Kind::Gradient => {
                let mut sum = Accumulator::over(held)?;
                sum.filled();
                Ok(sum)
            }
            Some(held) => {
                let mut sum = Accumulator::new(held.device(), self.to.shape, dtype)?;
                ops::add_into(&held, &mut sum)?;
                Ok(sum)
            }
            None => Ok(Accumulator::new(self.pass.device, self.to.shape, dtype)?),
        }
    }

    fn add_to_slot(&self, place: ValueId, gradient: Tensor) -> Result<()> {
        let held = self.pass.state.borrow_mut().slots[place.slot as usize].take();
        let sum = match held {
            None => gradient,
            Some(held) => ops::add(&held, &gradient)?,
        };
        self.pass.state.borrow_mut().slots[place.slot as usize] = Some(sum);
        Ok(())
    }

    fn dep(&self) -> Dep {
        match &self.to.node {
            Node::Constant => Dep::Nothing,
            Node::Param(_) => Dep::Weight,
            Node::Value(place) => self.pass.deps[place.slot as usize],
        }
    }

    fn check(&self, gradient: &Tensor) -> Result<()> {
        match *gradient.shape() == self.to.shape {
            true => Ok(()),
            false => Err(gradient_shape(&self.to.shape, self.to.dtype, gradient)),
        }
    }
}

impl Pass<'_> {
    pub(crate) fn phase(&self) -> Phase {
        self.phase
    }

    /// Says that the record at hand has work for the weights' phase.
    pub(crate) fn defer_weights(&self) {
        self.state.borrow_mut().pending = true;
    }

    /// Lends the parameters' gradients to `f`, which walks a nested tape.
    pub(crate) fn with_grads<T>(&self, f: impl FnOnce(&mut Grads) -> T) -> T {
        let mut grads = std::mem::take(&mut self.state.borrow_mut().grads);
        let result = f(&mut grads);
        self.state.borrow_mut().grads = grads;
        result
    }
}
