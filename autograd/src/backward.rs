//! The backward pass over a tape, in one phase or in two.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;

use meshgrad_collectives::check_replicas;
use meshgrad_error::{ensure, error};
use meshgrad_runtime::{Device, Kind, RankScope, Shape, Tensor, ops};

use crate::slot::{Dep, Edge, Held, Pass, Phase, Slots, State, gradient_shape};
use crate::tape::{Record, other_tape};
use crate::var::{Node, ValueId};
use crate::{Error, Grads, ParamId, Result, Tape, Var, beside};

/// The error for a root of this shape that does not depend on anything with a gradient.
pub(crate) fn no_gradient(shape: &impl fmt::Display) -> Error {
    error!(Invalid, "backward root of shape {shape} does not require a gradient")
}

/// A backward pass: the records of a tape, and the gradients of its values so far.
pub(crate) struct Backward {
    records: Vec<Record>,
    edges: Vec<Edge>,
    deps: Vec<Dep>,
    slots: Vec<Option<Held>>,
    /// The slots of gradients whose communication the last part has started.
    coming: Vec<usize>,
    /// The records that the current phase has not reached.
    left: usize,
    device: Device,
}

impl Backward {
    /// Starts from `roots`, each with its gradient.
    pub(crate) fn new(tape: Tape, roots: &[(&Var, Tensor)]) -> Result<Backward> {
        let mut ids = Vec::with_capacity(roots.len());
        for (root, gradient) in roots {
            let shape = root.value().sharded_shape();
            if !shape.fits(gradient) || root.dtype() != gradient.dtype() {
                return Err(gradient_shape(&shape, root.dtype(), gradient));
            }
            ids.push((tape.id_of(root)?, gradient.clone()));
        }
        let device = roots.first().map(|(_, gradient)| gradient.device());
        let device = device.ok_or_else(|| no_gradient(&Shape::default()))?;
        Backward::from_ids(tape, ids, device)
    }

    /// Starts from values of the tape, each with a gradient of its shape.
    pub(crate) fn from_ids(
        tape: Tape,
        roots: Vec<(ValueId, Tensor)>,
        device: &Device,
    ) -> Result<Backward> {
        let mut slots: Vec<Option<Held>> = tape.deps.iter().map(|_| None).collect();
        for (id, gradient) in roots {
            let slot = &mut slots[id.slot as usize];
            *slot = Some(Held::Here(match slot.take() {
                None => gradient,
                Some(other) => ops::add(&other.wait()?, &gradient)?,
            }));
        }
        Ok(Backward {
            left: tape.records.len(),
            records: tape.records,
            edges: tape.edges,
            deps: tape.deps,
            slots,
            coming: Vec::new(),
            device: device.clone(),
        })
    }

    /// Runs `phase` from the last record to the first. An `outermost` pass counts the completed
    /// uses of parameters in `grads`.
    pub(crate) fn run(&mut self, phase: Phase, grads: &mut Grads, outermost: bool) -> Result<()> {
        self.restart();
        self.advance(phase, grads, outermost, false)
    }

    /// Begins with the last record again, for another phase.
    pub(crate) fn restart(&mut self) {
        self.left = self.records.len();
    }

    /// Whether all records have run, and the last part has not just started to communicate for one of
    /// these values.
    pub(crate) fn is_finished(&self, values: &[Option<ValueId>]) -> bool {
        let mut slots = values.iter().flatten().map(|id| id.slot as usize);
        self.left == 0 && !slots.any(|slot| self.coming.contains(&slot))
    }

    /// Runs the records that are left, from the last to the first. If it `yields`, it stops before one
    /// that needs what this call has started to communicate.
    pub(crate) fn advance(
        &mut self,
        phase: Phase,
        grads: &mut Grads,
        outermost: bool,
        yields: bool,
    ) -> Result<()> {
        let pass = Pass {
            phase,
            deps: &self.deps,
            edges: &self.edges,
            device: &self.device,
            yields,
            state: RefCell::new(State {
                slots: std::mem::take(&mut self.slots),
                coming: std::mem::take(&mut self.coming),
                pending: false,
                unfinished: false,
                grads: std::mem::take(grads),
            }),
        };
        pass.state.borrow_mut().coming.clear();
        // Reused by all records.
        let mut dys = Vec::new();
        let records = self.records[..self.left].iter_mut().rev();
        let mut result = Ok(());
        for record in records {
            if yields && pass.waits_for(record) {
                break;
            }
            self.left -= 1;
            if phase == Phase::Inputs && record.dep != Dep::Input {
                continue;
            }
            result = pass.step(record, &mut dys);
            if std::mem::take(&mut pass.state.borrow_mut().unfinished) {
                self.left += 1;
                break;
            }
            if result.is_ok() && outermost && phase != Phase::Inputs {
                result = pass.uses_done(record);
            }
            if result.is_err() {
                break;
            }
        }

        let state = pass.state.into_inner();
        (self.slots, self.coming) = (state.slots, state.coming);
        *grads = state.grads;
        result
    }

    /// Takes the gradients of inputs with these ids.
    fn gradients(&mut self, inputs: &[&Var], ids: Vec<ValueId>) -> Result<Vec<Tensor>> {
        let gradients = inputs.iter().zip(ids).map(|(input, id)| match self.take(id)? {
            Some(gradient) => Ok(gradient),
            None => {
                let shape = input.value().sharded_shape();
                shape.zeros(&self.device, input.dtype(), Kind::Value)
            }
        });
        gradients.collect()
    }

    /// Takes the gradient of an input.
    pub(crate) fn take(&mut self, id: ValueId) -> Result<Option<Tensor>> {
        self.slots[id.slot as usize].take().map(Held::wait).transpose()
    }
}

impl Pass<'_> {
    /// Whether the gradient of an output is one whose communication this pass has started.
    fn waits_for(&self, record: &Record) -> bool {
        let outputs = record.first_slot..record.first_slot + record.outputs;
        self.state.borrow().coming.iter().any(|slot| outputs.contains(slot))
    }

    fn step(&self, record: &mut Record, dys: &mut Vec<Option<Tensor>>) -> Result<()> {
        dys.clear();
        let mut runs = record.effects.communicates;
        match record.deferred.take() {
            Some(deferred) => dys.extend(deferred),
            None if self.phase == Phase::Weights && record.dep == Dep::Input => runs = false,
            None => self.take_gradients(record, dys)?,
        }
        runs |= dys.iter().any(Option::is_some);
        // Taking the closure frees what the op saved, unless its weight gradients are deferred.
        let (Some(backward), true) = (record.backward.take(), runs) else {
            return Ok(());
        };

        let slots = Slots { pass: self, inputs: &self.edges[record.inputs.clone()] };
        backward(dys, slots)?;

        let mut state = self.state.borrow_mut();
        if std::mem::take(&mut state.pending) || state.unfinished {
            record.deferred = Some(std::mem::take(dys));
            record.backward = Some(backward);
        }
        Ok(())
    }

    /// Takes the gradients of a record's outputs.
    fn take_gradients(&self, record: &Record, dys: &mut Vec<Option<Tensor>>) -> Result<()> {
        let slots = &mut self.state.borrow_mut().slots;
        let range = record.first_slot..record.first_slot + record.outputs;
        for slot in &mut slots[range] {
            dys.push(slot.take().map(Held::wait).transpose()?);
        }
        Ok(())
    }

    fn uses_done(&self, record: &Record) -> Result<()> {
        let grads = &mut self.state.borrow_mut().grads;
        let inputs = &self.edges[record.inputs.clone()];
        for param in inputs.iter().filter_map(Edge::param) {
            grads.used(param.id(), 1)?;
        }
        for (param, times) in &record.effects.uses {
            grads.used(*param, *times)?;
        }
        Ok(())
    }
}

impl Tape {
    /// Computes the gradients of `loss` with respect to all parameters in `grads`, and accumulates them
    /// there. `loss` is a value of this tape with one element.
    ///
    /// # Errors
    /// For a loss with more or fewer elements; as [`Tape::backward_from`].
    pub fn backward(self, loss: &Var, grads: &mut Grads) -> Result<()> {
        let shape = loss.value().sharded_shape();
        ensure!(
            shape.elements() == 1,
            Invalid,
            "backward: a loss has one element, but this one has shape {}; sum it, or pass its gradient \
             to `backward_from`",
            *shape
        );
        let one = ops::full(loss.value().device(), shape.local(), loss.dtype(), 1.0)?;
        self.backward_from(&[(loss, shape.part(&one.local())?)], grads)
    }

    /// As [`Tape::backward`], from several values of this tape, or from values of any shape: `roots`,
    /// each with its gradient.
    ///
    /// # Errors
    /// When a root does not require a gradient, belongs to another tape, or differs from its
    /// gradient in shape or dtype; when the gradients have been read and not cleared; errors of the
    /// ops.
    pub fn backward_from(self, roots: &[(&Var, Tensor)], grads: &mut Grads) -> Result<()> {
        self.backward_with(roots, &[], grads).map(drop)
    }

    /// As [`Tape::backward_from`], and returns the gradients of `inputs`. The gradient of an input that no
    /// root depends on is zero.
    ///
    /// # Errors
    /// As [`Tape::backward_from`].
    pub fn backward_with(
        self,
        roots: &[(&Var, Tensor)],
        inputs: &[&Var],
        grads: &mut Grads,
    ) -> Result<Vec<Tensor>> {
        let ((), gradients) = self.backward_beside(roots, inputs, grads, || Ok(()))?;
        Ok(gradients)
    }

    /// As [`Tape::backward_with`], while `body` runs. Before it, and whenever a redistribution or a
    /// collective with gradients of `body` has started, the backward pass goes on, until it needs the
    /// result of one that it has started meanwhile. So each communicates while the other computes. What
    /// is left runs after `body`, whose result is returned too. The gradients have the same bits.
    ///
    /// It also stops inside of a [`local`](crate::local) and of a checkpointed block; a block is recomputed
    /// at once, and so is a product that overlaps with its own communication. All ranks communicate by
    /// the same ops in the same order.
    ///
    /// # Errors
    /// Those of `body`, after which the gradients are incomplete; as [`Tape::backward_from`].
    pub fn backward_beside<T>(
        self,
        roots: &[(&Var, Tensor)],
        inputs: &[&Var],
        grads: &mut Grads,
        body: impl FnOnce() -> Result<T>,
    ) -> Result<(T, Vec<Tensor>)> {
        let ids = self.ids_of(inputs)?;
        grads.begin(&self.uses)?;
        check_roots(roots)?;
        let shared = Rc::new(RefCell::new((Backward::new(self, roots)?, std::mem::take(grads))));
        let (scope, own) = (RankScope::current(), shared.clone());
        let part = move || {
            let (backward, grads) = &mut *own.borrow_mut();
            let part = || backward.advance(Phase::Full, grads, true, true);
            // Not in that of the op which communicates.
            scope.clone().run(part)
        };
        // First, so that its communication is beside the computation of `body`.
        let result = part().and_then(|()| beside::with_work(part, body));
        let (backward, own) = &mut *shared.borrow_mut();
        *grads = std::mem::take(own);
        let result = result?;
        backward.advance(Phase::Full, grads, true, false)?;
        grads.end()?;
        Ok((result, backward.gradients(inputs, ids)?))
    }

    /// Computes the gradients of `inputs` only, and defers those of the parameters to
    /// [`WeightBackward::run`]. A pipeline stage can then send the gradients of its inputs before
    /// it computes those of its weights. The gradient of an input that no root depends on is zero.
    ///
    /// # Errors
    /// As [`Tape::backward_from`].
    pub fn backward_inputs(
        self,
        roots: &[(&Var, Tensor)],
        inputs: &[&Var],
    ) -> Result<(Vec<Tensor>, WeightBackward)> {
        let ids = self.ids_of(inputs)?;
        check_roots(roots)?;
        let uses = self.uses.clone();
        let mut backward = Backward::new(self, roots)?;
        backward.run(Phase::Inputs, &mut Grads::default(), true)?;
        let gradients = backward.gradients(inputs, ids)?;
        Ok((gradients, WeightBackward { backward, uses }))
    }

    fn ids_of(&self, inputs: &[&Var]) -> Result<Vec<ValueId>> {
        inputs.iter().map(|input| self.id_of(input)).collect()
    }

    pub(crate) fn id_of(&self, var: &Var) -> Result<ValueId> {
        match var.node() {
            Node::Value(id) if id.tape == self.id => Ok(*id),
            Node::Value(id) => {
                Err(other_tape(var, *id, format_args!("backward runs on tape {}", self.id)))
            }
            _ => Err(no_gradient(var.shape())),
        }
    }
}

fn check_roots(roots: &[(&Var, Tensor)]) -> Result<()> {
    for (root, gradient) in roots {
        check_replicas(|| "a root of backward".to_owned(), root.value())?;
        check_replicas(|| "the gradient of a root".to_owned(), gradient)?;
    }
    Ok(())
}

/// The deferred weight gradients of [`Tape::backward_inputs`]. They may be computed on another
/// thread; dropping this discards them.
#[must_use = "the parameters' gradients are computed by `run`"]
pub struct WeightBackward {
    backward: Backward,
    uses: HashMap<ParamId, u32>,
}

impl WeightBackward {
    /// Computes the gradients of the parameters and accumulates them in `grads`. They equal those
    /// of [`Tape::backward`] bit for bit.
    ///
    /// # Errors
    /// As [`Tape::backward_from`].
    pub fn run(mut self, grads: &mut Grads) -> Result<()> {
        grads.begin(&self.uses)?;
        self.backward.run(Phase::Weights, grads, true)?;
        grads.end()
    }
}
