//! Slots receive gradients: a backward closure gets one slot for each input.

use std::cell::RefCell;

use meshgrad_error::error;
use meshgrad_runtime::{Accumulator, DType, Device, Kind, Pending, ShardedShape, Tensor, ops};

use crate::param::describe;
use crate::var::{Node, ValueId};
use crate::{Error, Grads, Param, Result};

/// What a value depends on. For an output, it is the maximum over the inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Dep {
    /// Neither inputs nor parameters.
    Nothing,
    /// Parameters only.
    Weight,
    /// An input of the recording.
    Input,
}

/// An input of a record: where its gradient goes, if anywhere.
#[derive(Clone)]
pub(crate) struct Edge {
    pub(crate) node: Node,
    pub(crate) shape: ShardedShape,
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

/// The gradients that a pass computes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// All of them.
    Full,
    /// Gradients of inputs, and of values that depend on inputs.
    Inputs,
    /// The remaining ones after [`Phase::Inputs`].
    Weights,
}

/// One pass over a tape.
pub(crate) struct Pass<'a> {
    pub(crate) phase: Phase,
    pub(crate) deps: &'a [Dep],
    pub(crate) edges: &'a [Edge],
    pub(crate) device: &'a Device,
    /// Whether it stops before it waits for communication that it has started.
    pub(crate) yields: bool,
    pub(crate) state: RefCell<State>,
}

pub(crate) struct State {
    /// The gradient of each value so far.
    pub(crate) slots: Vec<Option<Held>>,
    /// The slots of gradients whose communication this pass has started. Ranks may differ in whether one
    /// is kept as [`Held::Coming`], but not in where a pass stops.
    pub(crate) coming: Vec<usize>,
    /// Whether the current record has work for [`Phase::Weights`].
    pub(crate) pending: bool,
    /// Whether the current record has stopped in the middle.
    pub(crate) unfinished: bool,
    pub(crate) grads: Grads,
}

/// The gradient of a value so far.
pub(crate) enum Held {
    Here(Tensor),
    /// Of communication that has started.
    Coming(Pending<Tensor>),
}

impl Held {
    pub(crate) fn wait(self) -> Result<Tensor> {
        match self {
            Held::Here(gradient) => Ok(gradient),
            Held::Coming(gradient) => gradient.wait(),
        }
    }
}

/// Takes the gradient of one input of an op.
pub struct Slot<'a> {
    pass: &'a Pass<'a>,
    edge: &'a Edge,
}

/// The slots of one record.
#[derive(Clone, Copy)]
pub(crate) struct Slots<'a> {
    pub(crate) pass: &'a Pass<'a>,
    pub(crate) inputs: &'a [Edge],
}

impl<'a> Slots<'a> {
    pub(crate) fn iter(self) -> impl Iterator<Item = Slot<'a>> {
        self.inputs.iter().map(move |edge| Slot { pass: self.pass, edge })
    }

    /// The slots of a record with `N` inputs.
    pub(crate) fn array<const N: usize>(self) -> [Slot<'a>; N] {
        std::array::from_fn(|at| Slot { pass: self.pass, edge: &self.inputs[at] })
    }
}

impl Slot<'_> {
    /// Whether this gradient is needed in this pass. An op can use it to choose a kernel that
    /// computes two gradients together.
    pub fn due(&self) -> bool {
        let dep = self.dep();
        let mut state = self.pass.state.borrow_mut();
        if self.pass.phase == Phase::Inputs && dep == Dep::Weight {
            state.pending = true;
            return false;
        }
        if let Some(param) = self.edge.param() {
            return state.grads.holds(param);
        }
        match self.pass.phase {
            Phase::Full => dep != Dep::Nothing,
            Phase::Inputs => dep == Dep::Input,
            Phase::Weights => dep == Dep::Weight,
        }
    }

    /// Whether this gradient is computed later, in the second phase of a split backward.
    pub(crate) fn is_deferred(&self) -> bool {
        self.pass.phase == Phase::Inputs && self.dep() == Dep::Weight
    }

    /// Adds the result of `gradient`, which must have the input's shape. Calls `gradient` only if
    /// this pass needs it.
    ///
    /// # Errors
    /// Errors of `gradient`; when a gradient's shape or dtype differs from its value's.
    #[allow(clippy::should_implement_trait)] // This is not `std::ops::Add`.
    pub fn add(self, gradient: impl FnOnce() -> Result<Tensor>) -> Result<()> {
        if !self.due() {
            return Ok(());
        }
        self.add_due(gradient()?)
    }

    /// As [`Slot::add`], of communication that has started. Where nothing was added before, what needs
    /// the gradient waits for it.
    ///
    /// # Errors
    /// As [`Slot::add`]; those of the communication may be returned later.
    pub(crate) fn add_pending(
        self,
        gradient: impl FnOnce() -> Result<Pending<Tensor>>,
    ) -> Result<()> {
        if !self.due() {
            return Ok(());
        }
        let gradient = gradient()?;
        if let Node::Value(id) = &self.edge.node {
            self.pass.state.borrow_mut().coming.push(id.slot as usize);
        }
        match &self.edge.node {
            Node::Value(id) if !self.has(*id) => {
                let (shape, dtype) = (self.edge.shape.clone(), self.edge.dtype);
                let kept = match self.dep() {
                    Dep::Input => dtype,
                    _ => dtype.accumulator(),
                };
                let checked = gradient.and_then(move |gradient| match shape.fits(&gradient) {
                    true => ops::cast(&gradient, kept),
                    false => Err(gradient_shape(&shape, dtype, &gradient)),
                });
                let slots = &mut self.pass.state.borrow_mut().slots;
                slots[id.slot as usize] = Some(Held::Coming(checked));
                Ok(())
            }
            _ => self.add_due(gradient.wait()?),
        }
    }

    fn add_due(self, gradient: Tensor) -> Result<()> {
        self.check(&gradient)?;
        match &self.edge.node {
            Node::Value(id) if self.dep() == Dep::Input => self.add_to_slot(*id, gradient),
            _ => self.accumulate_due(|sum| ops::add_into(&gradient, sum)),
        }
    }

    fn has(&self, id: ValueId) -> bool {
        self.pass.state.borrow().slots[id.slot as usize].is_some()
    }

    /// Lets `op` write or add the gradient in place. `op` runs only if the gradient is needed in
    /// this pass.
    ///
    /// # Errors
    /// Errors of `op`.
    pub fn accumulate(self, op: impl FnOnce(&mut Accumulator) -> Result<()>) -> Result<()> {
        match self.due() {
            true => self.accumulate_due(op),
            false => Ok(()),
        }
    }

    fn accumulate_due(self, op: impl FnOnce(&mut Accumulator) -> Result<()>) -> Result<()> {
        let dtype = self.edge.dtype.accumulator();
        let mut state = self.pass.state.borrow_mut();
        match &self.edge.node {
            Node::Constant => Ok(()),
            Node::Param(param) => match state.grads.sum(param)? {
                Some(sum) => {
                    sum.viewed(param.shape(), &self.edge.shape, op)?;
                    self.check_sum(&param.sharded_shape(), sum)
                }
                None => Ok(()),
            },
            Node::Value(id) if self.dep() == Dep::Input && self.edge.dtype != dtype => {
                // Ops accumulate in `dtype`; the slot has the activation's dtype.
                let mut sum = self.accumulator(self.pass.device, dtype)?;
                op(&mut sum)?;
                let gradient = ops::cast(sum.total()?, self.edge.dtype)?;
                drop(state);
                self.add_to_slot(*id, gradient)
            }
            Node::Value(id) => {
                let slot = &mut state.slots[id.slot as usize];
                let held = slot.take().map(Held::wait).transpose()?;
                let mut sum = self.buffer(held, dtype)?;
                op(&mut sum)?;
                self.check_sum(&self.edge.shape, &sum)?;
                *slot = Some(Held::Here(sum.total()?.clone()));
                Ok(())
            }
        }
    }

    /// A buffer of `dtype` with the slot's contents.
    fn buffer(&self, held: Option<Tensor>, dtype: DType) -> Result<Accumulator> {
        match held {
            Some(held) if held.kind() == Kind::Gradient => {
                let mut sum = Accumulator::over(held)?;
                sum.filled();
                Ok(sum)
            }
            Some(held) => {
                let mut sum = self.accumulator(held.device(), dtype)?;
                ops::add_into(&held, &mut sum)?;
                Ok(sum)
            }
            None => self.accumulator(self.pass.device, dtype),
        }
    }

    fn accumulator(&self, device: &Device, dtype: DType) -> Result<Accumulator> {
        Accumulator::new(device, self.edge.shape.clone(), dtype)
    }

    fn add_to_slot(&self, id: ValueId, gradient: Tensor) -> Result<()> {
        let held = self.pass.state.borrow_mut().slots[id.slot as usize].take();
        let sum = match held {
            None => gradient,
            Some(held) => ops::add(&held.wait()?, &gradient)?,
        };
        self.pass.state.borrow_mut().slots[id.slot as usize] = Some(Held::Here(sum));
        Ok(())
    }

    fn dep(&self) -> Dep {
        match &self.edge.node {
            Node::Constant => Dep::Nothing,
            Node::Param(_) => Dep::Weight,
            Node::Value(id) => self.pass.deps[id.slot as usize],
        }
    }

    /// Checks a sum that an op has added to, of the gradients of a value with this shape.
    fn check_sum(&self, shape: &ShardedShape, sum: &Accumulator) -> Result<()> {
        match sum.is_empty() || shape.fits(sum.buffer()) {
            true => Ok(()),
            false => Err(gradient_shape(shape, self.edge.dtype, sum.buffer())),
        }
    }

    fn check(&self, gradient: &Tensor) -> Result<()> {
        match self.edge.shape.fits(gradient) {
            true => Ok(()),
            false => Err(gradient_shape(&self.edge.shape, self.edge.dtype, gradient)),
        }
    }
}

impl Pass<'_> {
    pub(crate) fn phase(&self) -> Phase {
        self.phase
    }

    /// Marks the current record as unfinished: it goes on when the pass does.
    pub(crate) fn stop_in_record(&self) {
        self.state.borrow_mut().unfinished = true;
    }

    /// Marks the current record as having work for [`Phase::Weights`].
    pub(crate) fn defer_weights(&self) {
        self.state.borrow_mut().pending = true;
    }

    /// Passes the parameters' gradients to `f`, which runs a nested tape.
    pub(crate) fn with_grads<T>(&self, f: impl FnOnce(&mut Grads) -> T) -> T {
        let mut grads = std::mem::take(&mut self.state.borrow_mut().grads);
        let result = f(&mut grads);
        self.state.borrow_mut().grads = grads;
        result
    }
}

/// The error for a `gradient` whose shape or dtype differs from its value's.
pub(crate) fn gradient_shape(shape: &ShardedShape, dtype: DType, gradient: &Tensor) -> Error {
    error!(
        Invalid,
        "the gradient is {}, but its value is {}; both must have the same dtype and shape",
        describe(gradient.dtype(), &gradient.global_shape(), gradient.sharding()),
        describe(dtype, shape, shape.sharding())
    )
}
