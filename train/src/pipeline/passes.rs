//! The passes of a step: what interprets the actions of a program.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::{Duration, Instant};

use meshgrad_autograd::{Grads, Param, ParamId, Tape, Var, Vars, WeightBackward};
use meshgrad_collectives::redistribute;
use meshgrad_error::{bail, error};
use meshgrad_models::{Compute, Flow, Model};
use meshgrad_pipeline::{Action, Compute as Pass, Message, MessageKind, Op};
use meshgrad_runtime::{Pending, Tensor, ops};

use super::learned::{Pipeline, as_input, placed};
use super::links::{self, Tensors};
use crate::Result;
use crate::events::Event;
use crate::sums::{StepSums, no_batch};

/// The passes of this rank's stages.
pub(crate) struct Passes<'t, M: Model, B> {
    model: &'t M,
    pipeline: &'t Pipeline<M::Stream>,
    compute: Compute,
    /// The microbatches, in ascending order.
    batches: Batches<B, M::Batch>,
    /// Forward passes whose backward pass follows.
    recorded: BTreeMap<(usize, usize), (Forward, Tape)>,
    /// Backward passes to the weights that follow.
    later: BTreeMap<(usize, usize), (WeightBackward, StepSums)>,
    messages: BTreeMap<Message, Tensors>,
    /// Messages under way.
    sent: VecDeque<Sent>,
    /// How long the action that runs has waited for messages.
    waited: Duration,
    /// By parameter: the backward passes that follow before the gradients are read.
    left: HashMap<ParamId, usize>,
}

/// The messages that may be under way. The program cannot deadlock even if each send waits.
const MAX_SENT: usize = 2;

/// A message under way. It is freed at a point of the program, and not when it has arrived, so that the
/// peak of memory is the same in each run.
struct Sent {
    pending: Vec<Pending<()>>,
    _tensors: Vec<Tensor>,
}

impl Sent {
    fn wait(self) -> Result<()> {
        self.pending.into_iter().try_for_each(Pending::wait)
    }
}

/// A forward pass.
struct Forward {
    /// The tracked variables of its input.
    inputs: Vec<Var>,
    /// Those of its output, or the loss.
    outputs: Vec<Var>,
    sums: StepSums,
}

impl<'t, M: Model, B: Iterator<Item = Result<M::Batch>>> Passes<'t, M, B> {
    /// For the microbatches `batches`, in ascending order.
    pub(crate) fn new(
        model: &'t M,
        pipeline: &'t Pipeline<M::Stream>,
        compute: Compute,
        batches: B,
    ) -> Passes<'t, M, B> {
        Passes {
            model,
            pipeline,
            compute,
            batches: Batches::new(batches, pipeline.own_stages().len()),
            recorded: BTreeMap::new(),
            later: BTreeMap::new(),
            messages: BTreeMap::new(),
            sent: VecDeque::new(),
            waited: Duration::ZERO,
            left: HashMap::new(),
        }
    }

    /// Expects `passes` backward passes of each stage before the gradients are read.
    pub(crate) fn expect(&mut self, passes: usize) {
        self.left.clear();
        for stage in self.pipeline.own_stages() {
            for param in self.pipeline.params(stage) {
                *self.left.entry(param.id()).or_default() += passes;
            }
        }
    }

    /// Runs an action. If it is the last pass of a microbatch and stage, returns it with their sums.
    pub(crate) fn apply(
        &mut self,
        action: Action,
        grads: &mut Grads,
    ) -> Result<Option<(Pass, StepSums)>> {
        let sums = match action {
            Action::Compute(pass) => self.compute(pass, grads),
            Action::Overlapped(forward, backward) => self.pair(forward, backward, grads),
            _ => self.communicate(action).map(|()| None),
        };
        self.named(action, sums)
    }

    /// That `action` of step `step` is done, which started at `started`.
    pub(crate) fn finished(
        &mut self,
        step: u64,
        action: Action,
        started: Instant,
    ) -> Event<'static> {
        let waited = std::mem::take(&mut self.waited);
        let (live, pending) = (self.recorded.len(), self.later.len());
        Event::ActionFinished { step, action, started, waited, live, pending }
    }

    /// Runs an action of a program of forward passes, without recording them. Returns the sums of a
    /// stage.
    pub(crate) fn evaluate(&mut self, action: Action) -> Result<Option<StepSums>> {
        let sums = match action {
            Action::Compute(pass) => self.forward(pass).map(|forward| Some(forward.sums)),
            _ => self.communicate(action).map(|()| None),
        };
        self.named(action, sums)
    }

    /// On a rank of a pipeline, names the action that failed.
    fn named<T>(&self, action: Action, result: Result<T>) -> Result<T> {
        match self.pipeline.is_part() {
            true => result.map_err(|error| error.context(format!("action {action}"))),
            false => result,
        }
    }

    fn compute(&mut self, pass: Pass, grads: &mut Grads) -> Result<Option<(Pass, StepSums)>> {
        let key = (pass.stage, pass.microbatch);
        match pass.op {
            Op::Forward => {
                let (forward, tape) = Tape::record(|| self.forward(pass))?;
                self.recorded.insert(key, (forward, tape));
                Ok(None)
            }
            Op::Backward => {
                let (sums, ()) = self.backward(pass, grads, |_| Ok(()))?;
                Ok(Some((pass, sums)))
            }
            Op::BackwardInput => {
                let (Forward { inputs, outputs, sums }, tape, roots) = self.recorded(pass)?;
                let roots: Vec<_> = outputs.iter().zip(roots).collect();
                let inputs: Vec<&Var> = inputs.iter().collect();
                let (gradients, weights) = tape.backward_inputs(&roots, &inputs)?;
                self.later.insert(key, (weights, sums));
                self.pass_back(pass, gradients)?;
                Ok(None)
            }
            Op::BackwardWeight => {
                let (weights, sums) = self.later.remove(&key).ok_or_else(|| too_early(pass))?;
                self.announce(pass.stage, grads);
                weights.run(grads)?;
                Ok(Some((pass, sums)))
            }
        }
    }

    /// A forward and a backward pass of which each communicates while the other computes.
    fn pair(
        &mut self,
        forward: Pass,
        backward: Pass,
        grads: &mut Grads,
    ) -> Result<Option<(Pass, StepSums)>> {
        let [of_forward, of_backward] = [forward, backward].map(|it| (it.stage, it.microbatch));
        if backward.op != Op::Backward || of_forward == of_backward {
            self.compute(forward, grads)?;
            return self.compute(backward, grads);
        }
        let record = |passes: &mut Self| Tape::record(|| passes.forward(forward));
        let (sums, recorded) = self.backward(backward, grads, record)?;
        self.recorded.insert(of_forward, recorded);
        Ok(Some((backward, sums)))
    }

    /// A backward pass, beside what `body` does. Returns the sums of the microbatch, and the result of
    /// `body`.
    fn backward<T>(
        &mut self,
        pass: Pass,
        grads: &mut Grads,
        body: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<(StepSums, T)> {
        let (Forward { inputs, outputs, sums }, tape, roots) = self.recorded(pass)?;
        self.announce(pass.stage, grads);
        let roots: Vec<_> = outputs.iter().zip(roots).collect();
        let inputs: Vec<&Var> = inputs.iter().collect();
        let (result, gradients) = tape.backward_beside(&roots, &inputs, grads, || body(self))?;
        self.pass_back(pass, gradients)?;
        Ok((sums, result))
    }

    fn forward(&mut self, pass: Pass) -> Result<Forward> {
        let input = self.input(pass)?;
        let inputs = tracked(input.clone());
        let stage = &self.pipeline.stages[pass.stage];
        let (model, compute) = (self.model, self.compute);
        let flow =
            self.batches.with(pass.microbatch, |batch| model.forward(stage, input, batch, compute));
        match flow? {
            Flow::Loss(loss) => {
                let outputs = vec![loss.total.clone()];
                Ok(Forward { inputs, outputs, sums: StepSums::of(pass.stage, *loss) })
            }
            Flow::Next { mut stream, statistics } => {
                let mut values = Vec::new();
                stream.each_var(&mut |var| values.push(var.value().clone()));
                let message = pass.output(self.pipeline.stages.len());
                let message = message.ok_or_else(|| too_early(pass))?;
                self.messages.insert(message, Tensors::Here(values));
                let sums = StepSums::without_loss(pass.stage, statistics);
                Ok(Forward { inputs, outputs: tracked(Some(stream)), sums })
            }
        }
    }

    /// The stream that enters a stage; `None` for the first.
    fn input(&mut self, pass: Pass) -> Result<Option<M::Stream>> {
        let Some(message) = pass.input(self.pipeline.stages.len()) else {
            return Ok(None);
        };
        let tensors = self.arrived(message, pass)?;
        let boundary = &self.pipeline.boundaries[message.boundary];
        let placed = tensors.into_iter().zip(&boundary.values);
        let placed: Vec<Tensor> = placed
            .map(|(tensor, like)| self::placed(tensor, like.sharding(), like))
            .collect::<Result<_>>()?;
        let (mut stream, mut placed) = (boundary.stream.clone(), placed.into_iter());
        stream.each_var(&mut |var| {
            *var = Var::constant(placed.next().unwrap_or_else(|| var.value().clone()))
        });
        Ok(Some(as_input(stream, &boundary.is_tracked)))
    }

    /// A forward pass, and the gradients of its outputs.
    fn recorded(&mut self, pass: Pass) -> Result<(Forward, Tape, Vec<Tensor>)> {
        let key = (pass.stage, pass.microbatch);
        let (forward, tape) = self.recorded.remove(&key).ok_or_else(|| too_early(pass))?;
        let Some(message) = pass.input(self.pipeline.stages.len()) else {
            let of_loss = forward.outputs.iter().map(|total| {
                let total = total.value();
                ops::full(total.device(), total.shape(), total.dtype(), 1.0)
            });
            let of_loss = of_loss.collect::<Result<_>>()?;
            return Ok((forward, tape, of_loss));
        };
        let gradients = self.arrived(message, pass)?;
        let like = forward.outputs.iter().map(Var::value);
        let gradients = gradients.into_iter().zip(like);
        let gradients = gradients.map(|(gradient, like)| match like.sharding() {
            Some(sharding) => placed(gradient, Some(&sharding.without_partials()), like),
            None => Ok(gradient),
        });
        let gradients = gradients.collect::<Result<_>>()?;
        Ok((forward, tape, gradients))
    }

    /// Hands the gradients of a stage's input to the stage before.
    fn pass_back(&mut self, pass: Pass, gradients: Vec<Tensor>) -> Result<()> {
        let Some(message) = pass.output(self.pipeline.stages.len()) else {
            return Ok(());
        };
        let boundary = &self.pipeline.boundaries[message.boundary];
        let gradients = gradients.iter().zip(boundary.tracked());
        let gradients = gradients.map(|(gradient, like)| match like.sharding() {
            // As the stage before expects it.
            Some(sharding) => redistribute(gradient, sharding.without_partials().placements()),
            None => Ok(gradient.clone()),
        });
        let gradients = gradients.collect::<Result<_>>()?;
        self.messages.insert(message, Tensors::Here(gradients));
        Ok(())
    }

    /// The tensors of a message that `pass` needs.
    fn arrived(&mut self, message: Message, pass: Pass) -> Result<Vec<Tensor>> {
        let tensors = self.messages.remove(&message).ok_or_else(|| too_early(pass))?;
        self.waiting(|| tensors.wait())
    }

    fn waiting<T>(&mut self, wait: impl FnOnce() -> T) -> T {
        let started = Instant::now();
        let result = wait();
        self.waited += started.elapsed();
        result
    }

    fn communicate(&mut self, action: Action) -> Result<()> {
        match action {
            Action::Send(message) => self.send(message),
            Action::Receive(message) => self.receive(message),
            _ => bail!(Unsupported, "action {action}: its passes do it"),
        }
    }

    fn send(&mut self, message: Message) -> Result<()> {
        let (Some(cut), Some(tensors)) = (&self.pipeline.cut, self.messages.remove(&message))
        else {
            bail!(Invalid, "action {}: there is nothing to send", Action::Send(message));
        };
        let tensors = tensors.wait()?;
        let pending = links::send(cut, message, &tensors)?;
        self.sent.push_back(Sent { pending, _tensors: tensors });
        match self.sent.len() > MAX_SENT {
            true => {
                let first = self.sent.pop_front();
                self.waiting(|| first.map_or(Ok(()), Sent::wait))
            }
            false => Ok(()),
        }
    }

    fn receive(&mut self, message: Message) -> Result<()> {
        let Some(cut) = &self.pipeline.cut else {
            bail!(Invalid, "action {}: this rank has all stages", Action::Receive(message));
        };
        let boundary = &self.pipeline.boundaries[message.boundary];
        let like: Vec<Tensor> = match message.kind {
            MessageKind::Activation => boundary.values.clone(),
            MessageKind::Gradient => boundary.tracked().cloned().collect(),
        };
        self.messages.insert(message, links::receive(cut, message, &like)?);
        Ok(())
    }

    /// Announces the last backward pass of parameters of a stage.
    fn announce(&mut self, stage: usize, grads: &mut Grads) {
        let mut last: Vec<&Param> = Vec::new();
        for param in self.pipeline.params(stage) {
            if let Some(left) = self.left.get_mut(&param.id()) {
                *left = left.saturating_sub(1);
                last.extend((*left == 0).then_some(param));
            }
        }
        grads.last_pass_of(last);
    }

    /// Waits until all messages have arrived.
    pub(crate) fn finish(self) -> Result<()> {
        self.sent.into_iter().try_for_each(Sent::wait)
    }
}

/// The tracked variables of a stream.
fn tracked<S: Vars>(stream: Option<S>) -> Vec<Var> {
    let mut tracked = Vec::new();
    if let Some(mut stream) = stream {
        stream.each_var(&mut |var| tracked.extend(var.is_tracked().then(|| var.clone())));
    }
    tracked
}

/// The microbatches, each until all stages of this rank have seen it.
struct Batches<B, T> {
    batches: B,
    stages: usize,
    loaded: usize,
    /// With the number of stages that have not seen it.
    unseen: BTreeMap<usize, (T, usize)>,
}

impl<T, B: Iterator<Item = Result<T>>> Batches<B, T> {
    fn new(batches: B, stages: usize) -> Batches<B, T> {
        Batches { batches, stages, loaded: 0, unseen: BTreeMap::new() }
    }

    /// Calls `body` with a microbatch, for one stage.
    fn with<R>(&mut self, microbatch: usize, body: impl FnOnce(&T) -> Result<R>) -> Result<R> {
        while self.loaded <= microbatch {
            let batch = self.batches.next().ok_or_else(no_batch)??;
            self.unseen.insert(self.loaded, (batch, self.stages));
            self.loaded += 1;
        }
        let (batch, left) = self.unseen.remove(&microbatch).ok_or_else(no_batch)?;
        let result = body(&batch)?;
        if left > 1 {
            self.unseen.insert(microbatch, (batch, left - 1));
        }
        Ok(result)
    }
}

fn too_early(pass: Pass) -> crate::Error {
    error!(Invalid, "action {pass}: an action that it needs has not run")
}
