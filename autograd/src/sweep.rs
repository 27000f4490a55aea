//! Backward: walking a tape from its end, in one phase or in two.

use std::cell::RefCell;
use std::collections::HashMap;

use meshgrad_runtime::{Accumulator, DType, Device, Kind, Shape, Tensor, ops};

use crate::tape::{Dep, Destination, Record};
use crate::var::{Node, Place};
use crate::{Error, Grads, ParamId, Result, Tape, Var};

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
pub(crate) struct Sweep<'a> {
    phase: Phase,
    deps: &'a [Dep],
    destinations: &'a [Destination],
    device: &'a Device,
    state: RefCell<State>,
}

struct State {
    /// The gradient of each value so far.
    slots: Vec<Option<Tensor>>,
    /// Whether the record at hand has work for the weights' phase.
    pending: bool,
    grads: Grads,
}

/// Where the gradient of one input of an op goes.
pub struct Slot<'a> {
    sweep: &'a Sweep<'a>,
    to: &'a Destination,
}

/// The slots of one record, made as they are asked for.
#[derive(Clone, Copy)]
pub(crate) struct Slots<'a> {
    sweep: &'a Sweep<'a>,
    inputs: &'a [Destination],
}

impl<'a> Slots<'a> {
    pub(crate) fn iter(self) -> impl Iterator<Item = Slot<'a>> {
        self.inputs.iter().map(move |to| Slot {
            sweep: self.sweep,
            to,
        })
    }

    /// The slots of a record with `N` inputs.
    pub(crate) fn array<const N: usize>(self) -> [Slot<'a>; N] {
        std::array::from_fn(|at| Slot {
            sweep: self.sweep,
            to: &self.inputs[at],
        })
    }
}

impl Slot<'_> {
    /// Whether this gradient is wanted now. Lets an op choose a kernel that makes two gradients at
    /// once.
    pub fn due(&self) -> bool {
        let dep = self.dep();
        let mut state = self.sweep.state.borrow_mut();
        if self.sweep.phase == Phase::Inputs && dep == Dep::Weight {
            state.pending = true;
            return false;
        }
        if let Some(param) = self.to.param() {
            return state.grads.holds(param);
        }
        match self.sweep.phase {
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
            Node::At(place) if self.dep() == Dep::Input => self.add_to_slot(*place, gradient),
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
        let mut state = self.sweep.state.borrow_mut();
        match &self.to.node {
            Node::Constant => Ok(()),
            Node::Param(param) => match state.grads.sum(param) {
                Some(sum) => sum.viewed(&self.to.shape, op),
                None => Ok(()),
            },
            Node::At(place) if self.dep() == Dep::Input && self.to.dtype != dtype => {
                // Ops accumulate in no narrower dtype; the sum goes on in the activation's own.
                let mut sum = Accumulator::new(self.sweep.device, self.to.shape, dtype)?;
                op(&mut sum)?;
                let gradient = ops::cast(sum.total()?, self.to.dtype)?;
                drop(state);
                self.add_to_slot(*place, gradient)
            }
            Node::At(place) => {
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
            None => Ok(Accumulator::new(self.sweep.device, self.to.shape, dtype)?),
        }
    }

    fn add_to_slot(&self, place: Place, gradient: Tensor) -> Result<()> {
        let held = self.sweep.state.borrow_mut().slots[place.slot as usize].take();
        let sum = match held {
            None => gradient,
            Some(held) => ops::add(&held, &gradient)?,
        };
        self.sweep.state.borrow_mut().slots[place.slot as usize] = Some(sum);
        Ok(())
    }

    fn dep(&self) -> Dep {
        match &self.to.node {
            Node::Constant => Dep::Nothing,
            Node::Param(_) => Dep::Weight,
            Node::At(place) => self.sweep.deps[place.slot as usize],
        }
    }

    fn check(&self, gradient: &Tensor) -> Result<()> {
        match *gradient.shape() == self.to.shape {
            true => Ok(()),
            false => Err(gradient_shape(&self.to.shape, self.to.dtype, gradient)),
        }
    }
}

impl Sweep<'_> {
    pub(crate) fn phase(&self) -> Phase {
        self.phase
    }

    /// Says that the record at hand has work for the weights' phase.
    pub(crate) fn wait_for_weights(&self) {
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

/// The records of a tape, with the gradients that have reached its values.
pub(crate) struct Walk {
    records: Vec<Record>,
    destinations: Vec<Destination>,
    deps: Vec<Dep>,
    slots: Vec<Option<Tensor>>,
    device: Device,
}

impl Walk {
    /// Starts at `roots`, each with its gradient.
    pub(crate) fn new(tape: Tape, roots: &[(&Var, Tensor)]) -> Result<Walk> {
        let Some((_, first)) = roots.first() else {
            return Err(Error::NotTracked {
                shape: Shape::default(),
            });
        };

        let device = first.device().clone();
        let mut slots: Vec<Option<Tensor>> = vec![None; tape.deps.len()];
        for (root, gradient) in roots {
            if root.shape() != gradient.shape() || root.dtype() != gradient.dtype() {
                return Err(gradient_shape(root.shape(), root.dtype(), gradient));
            }
            let place = tape.place_of(root)?;
            let slot = &mut slots[place.slot as usize];
            *slot = Some(match slot.take() {
                None => gradient.clone(),
                Some(other) => ops::add(&other, gradient)?,
            });
        }
        Ok(Walk {
            records: tape.records,
            destinations: tape.destinations,
            deps: tape.deps,
            slots,
            device,
        })
    }

    /// Runs `phase` from the last record to the first. `outermost` walks tell `grads` when
    /// parameters are done.
    pub(crate) fn run(&mut self, phase: Phase, grads: &mut Grads, outermost: bool) -> Result<()> {
        let sweep = Sweep {
            phase,
            deps: &self.deps,
            destinations: &self.destinations,
            device: &self.device,
            state: RefCell::new(State {
                slots: std::mem::take(&mut self.slots),
                pending: false,
                grads: std::mem::take(grads),
            }),
        };
        // One buffer serves all records.
        let mut dys = Vec::new();
        let records = self.records.iter_mut().rev();
        let result = records
            .filter(|record| phase != Phase::Inputs || record.dep == Dep::Input)
            .try_for_each(|record| {
                sweep.step(record, &mut dys)?;
                match outermost && phase != Phase::Inputs {
                    true => sweep.uses_done(record),
                    false => Ok(()),
                }
            });

        let state = sweep.state.into_inner();
        self.slots = state.slots;
        *grads = state.grads;
        result
    }

    /// Takes the gradient that has reached an input.
    pub(crate) fn take(&mut self, place: Place) -> Option<Tensor> {
        self.slots[place.slot as usize].take()
    }
}

impl Sweep<'_> {
    fn step(&self, record: &mut Record, dys: &mut Vec<Option<Tensor>>) -> Result<()> {
        dys.clear();
        match self.phase == Phase::Weights && record.dep == Dep::Input {
            true => dys.extend(record.later.take().unwrap_or_default()),
            false => self.take_gradients(record, dys),
        }
        // Whatever the op saved is freed here, unless its weights have to wait.
        let (Some(backward), true) = (record.backward.take(), dys.iter().any(Option::is_some))
        else {
            return Ok(());
        };

        let slots = Slots {
            sweep: self,
            inputs: &self.destinations[record.inputs.clone()],
        };
        backward(dys, slots, self)?;

        if std::mem::take(&mut self.state.borrow_mut().pending) {
            record.later = Some(std::mem::take(dys));
            record.backward = Some(backward);
        }
        Ok(())
    }

    /// Takes the gradients of a record's outputs.
    fn take_gradients(&self, record: &Record, dys: &mut Vec<Option<Tensor>>) {
        let slots = &mut self.state.borrow_mut().slots;
        let range = record.first_slot..record.first_slot + record.outputs;
        dys.extend(slots[range].iter_mut().map(Option::take));
    }

    fn uses_done(&self, record: &Record) -> Result<()> {
        let grads = &mut self.state.borrow_mut().grads;
        let inputs = &self.destinations[record.inputs.clone()];
        for param in inputs.iter().filter_map(Destination::param) {
            grads.used(param.id(), 1)?;
        }
        for (param, times) in &record.nested_uses {
            grads.used(*param, *times)?;
        }
        Ok(())
    }
}

impl Tape {
    /// Computes the gradient of every parameter in `grads` and adds it there, starting from
    /// `roots`: values of this tape, each with its gradient (ones for a loss).
    ///
    /// # Errors
    /// [`Error::NotTracked`], [`Error::OtherTape`] or [`Error::GradientShape`] for a root;
    /// [`Error::Untouched`] when a parameter of `grads` got no gradient; whatever the ops return.
    pub fn backward(self, roots: &[(&Var, Tensor)], grads: &mut Grads) -> Result<()> {
        grads.begin(&self.uses);
        Walk::new(self, roots)?.run(Phase::Full, grads, true)?;
        grads.end()
    }

    /// Computes the gradients of `inputs` alone, and leaves those of the parameters for
    /// [`Later::run`]. A pipeline stage sends the former on while the latter wait for a quiet
    /// moment. The gradient of an input that no root depends on is zero.
    ///
    /// # Errors
    /// As [`Tape::backward`].
    pub fn backward_inputs(
        self,
        roots: &[(&Var, Tensor)],
        inputs: &[&Var],
    ) -> Result<(Vec<Tensor>, Later)> {
        let places: Result<Vec<Place>> = inputs.iter().map(|input| self.place_of(input)).collect();
        let places = places?;
        let uses = self.uses.clone();
        let mut walk = Walk::new(self, roots)?;
        walk.run(Phase::Inputs, &mut Grads::default(), true)?;

        let gradients = inputs
            .iter()
            .zip(places)
            .map(|(input, place)| match walk.take(place) {
                Some(gradient) => Ok(gradient),
                None => Ok(ops::full(&walk.device, input.shape(), input.dtype(), 0.0)?),
            });
        let gradients: Result<Vec<Tensor>> = gradients.collect();
        Ok((gradients?, Later { walk, uses }))
    }

    fn place_of(&self, var: &Var) -> Result<Place> {
        match var.node() {
            Node::At(place) if place.tape == self.id => Ok(*place),
            Node::At(place) => Err(Error::OtherTape {
                shape: *var.shape(),
                theirs: place.tape,
                ours: format!("backward runs on tape {}", self.id),
            }),
            _ => Err(Error::NotTracked {
                shape: *var.shape(),
            }),
        }
    }
}

/// The gradients of parameters that [`Tape::backward_inputs`] left. May run on another thread;
/// dropping it forgets them.
#[must_use = "the parameters' gradients are computed by `run`"]
pub struct Later {
    walk: Walk,
    uses: HashMap<ParamId, u32>,
}

impl Later {
    /// Computes the gradients of the parameters and adds them to `grads`: bit for bit what
    /// [`Tape::backward`] adds.
    ///
    /// # Errors
    /// As [`Tape::backward`].
    pub fn run(mut self, grads: &mut Grads) -> Result<()> {
        grads.begin(&self.uses);
        self.walk.run(Phase::Weights, grads, true)?;
        grads.end()
    }
}

fn gradient_shape(wanted: &Shape, wanted_dtype: DType, given: &Tensor) -> Error {
    Error::GradientShape {
        wanted: format!("{wanted_dtype}{wanted}"),
        given: format!("{}{}", given.dtype(), given.shape()),
    }
}
