//! Training steps and validation passes of any [`Model`]. The caller writes the loop.

use std::collections::BTreeMap;
use std::time::Instant;

use meshgrad_autograd::Param;
use meshgrad_error::{bail, ensure};
use meshgrad_models::{Compute, Model};
use meshgrad_runtime::{AsyncRead, DType, Device, Kind, Tensor, ops};

use crate::config::{Config, SumOrder};
use crate::events::{Event, Events};
use crate::metrics::Record;
use crate::optimizer::Optimizer;
use crate::pipeline::{Passes, Pipeline, StagedText};
use crate::schedule::Schedule;
use crate::sleep::{Kept, KeptTensors};
use crate::sums::{PendingSums, ReducedSums, StepSums, no_batch};
use crate::tree::{StageTree, sum_of_values};
use crate::{Result, configured};

/// A model, its optimizer, and the state of a training step.
pub struct Trainer<M: Model> {
    /// The model.
    pub model: M,
    /// Its optimizer, with the gradients.
    pub optimizer: Optimizer,
    /// The subscribers of its steps and evaluations.
    pub events: Events,
    pipeline: Pipeline<M::Stream>,
    schedule: Box<dyn Schedule>,
    learning_rate: f64,
    compute: Compute,
    reduction: SumOrder,
    device: Device,
    /// What may sleep.
    asleep: Vec<Kept>,
    /// Once a step has overflowed ([`Model::overflow`]), it is not zero until
    /// [`Trainer::clear_overflow`]: a scalar, f32.
    overflow: Option<Tensor>,
}

/// A [`Trainer`] that is being built.
pub struct TrainerBuilder<M: Model> {
    model: M,
    pipeline: Option<Pipeline<M::Stream>>,
    optimizer: Option<Optimizer>,
    schedule: Option<Box<dyn Schedule>>,
}

/// The sums and gradients after all passes of a step.
struct GradientsAndSums {
    sums: ReducedSums,
    /// The gradients; `None` for those of the optimizer.
    gradients: Option<Vec<(Param, Tensor)>>,
}

/// A step that the host has enqueued. Its results are on their way to the host.
pub struct PendingStep {
    /// The step, from 1.
    pub step: u64,
    learning_rate: f64,
    sums: PendingSums,
    /// The global norm of the gradient before clipping.
    grad_norm: AsyncRead<f32>,
    overflow: Option<AsyncRead<f32>>,
    /// When the host started the step.
    pub started: Instant,
    /// When the host had enqueued all of it. A GPU may still be working.
    pub enqueued: Instant,
    kernel_launches: Option<u64>,
}

impl PendingStep {
    /// Waits for this step, but not for later ones, and returns its metrics, some of which `model`
    /// computes. The caller adds the rate and the validation loss.
    ///
    /// A step that has [overflowed](Record::overflowed) changed nothing, and neither did those after it:
    /// drop those, call [`Trainer::clear_overflow`] and repeat all of them, in their order. `model` has
    /// been [prepared](Model::follow) for that.
    ///
    /// # Errors
    /// When the step's work failed on the device.
    pub fn wait(self, model: &impl Model) -> Result<Record> {
        let sums = self.sums.wait()?;
        let overflowed = match self.overflow {
            Some(overflow) => scalar(overflow)? != 0.0,
            None => false,
        };
        model.follow(&sums.own_statistics());
        let metrics = model.metrics(&sums.statistics());
        let extra = metrics.extra.into_iter();
        Ok(Record {
            step: self.step,
            loss: f64::from(sums.loss) / f64::from(sums.weight),
            overflowed,
            lr: self.learning_rate,
            grad_norm: scalar(self.grad_norm)?,
            expert_load: metrics.expert_load,
            expert_shares: metrics.expert_shares,
            kernel_launches: self.kernel_launches,
            extra: extra.map(|(name, value)| (name, value.into())).collect(),
            ..Record::default()
        })
    }
}

/// The value of a scalar.
fn scalar(read: AsyncRead<f32>) -> Result<f64> {
    Ok(read.wait()?.into_iter().map(f64::from).sum())
}

impl<M: Model> TrainerBuilder<M> {
    /// Uses `optimizer` in place of `config.optimizer`, of which only the learning rate is read.
    #[must_use]
    pub fn optimizer(self, optimizer: Optimizer) -> TrainerBuilder<M> {
        TrainerBuilder { optimizer: Some(optimizer), ..self }
    }

    /// Trains the stages of `pipeline` that this rank has. `model` has only these
    /// ([`Model::part`]). `None` leaves the model whole.
    #[must_use]
    pub fn pipeline(self, pipeline: impl Into<Option<Pipeline<M::Stream>>>) -> TrainerBuilder<M> {
        TrainerBuilder { pipeline: pipeline.into(), ..self }
    }

    /// Uses `schedule` in place of `config.schedule`.
    #[must_use]
    pub fn schedule(self, schedule: Box<dyn Schedule>) -> TrainerBuilder<M> {
        TrainerBuilder { schedule: Some(schedule), ..self }
    }

    /// The trainer, with `config` for everything else.
    ///
    /// # Errors
    /// When the configuration is invalid or does not fit the parameters; when memory runs out.
    pub fn build(self, config: &Config, device: &Device) -> Result<Trainer<M>> {
        let TrainerBuilder { model, pipeline, optimizer, schedule } = self;
        let optimizer = match optimizer {
            Some(optimizer) => optimizer,
            None => Optimizer::new(&model, device, &config.optimizer, config.train.seed)?,
        };
        let pipeline = pipeline.unwrap_or_else(|| Pipeline::whole(&model));
        pipeline.check_reduction(config.train.reduction)?;
        let optimizer = optimizer.of_pipeline(&pipeline)?;
        let schedule = match schedule {
            Some(schedule) => schedule,
            None => Box::new(config.schedule.of_run(config.train.steps)?),
        };
        Ok(Trainer {
            pipeline,
            model,
            optimizer,
            events: Events::default(),
            schedule,
            learning_rate: config.optimizer.learning_rate,
            compute: configured::compute(&config.train),
            reduction: config.train.reduction,
            device: device.clone(),
            asleep: Vec::new(),
            overflow: None,
        })
    }
}

impl<M: Model> Trainer<M> {
    /// A trainer of `model`, whose parameters and buffers must have values, with the optimizer,
    /// schedule and dtype of `config`.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn new(model: M, config: &Config, device: &Device) -> Result<Trainer<M>> {
        Trainer::of(model).build(config, device)
    }

    /// A trainer of `model` to which an optimizer or a schedule of your own can be given.
    pub fn of(model: M) -> TrainerBuilder<M> {
        TrainerBuilder { model, pipeline: None, optimizer: None, schedule: None }
    }

    /// Enqueues step `step` (from 1): gradients of its microbatches, then the optimizer. The result
    /// depends on the model, the optimizer state, `step` and the batches only.
    ///
    /// With [`SumOrder::Tree`], microbatches are summed in a tree. For the same bits on any number
    /// of ranks, each has one sequence per data-parallel rank.
    ///
    /// # Errors
    /// Without batches; an error of a batch or of a subscriber; when memory
    /// runs out. If the optimizer has not started, the step changed nothing and can be repeated.
    pub fn step(
        &mut self,
        step: u64,
        microbatches: impl IntoIterator<Item = Result<M::Batch>, IntoIter: ExactSizeIterator>,
    ) -> Result<PendingStep> {
        let pending = self.enqueue(step, microbatches);
        if pending.is_err() {
            self.optimizer.grads().clear();
        }
        pending
    }

    fn enqueue(
        &mut self,
        step: u64,
        microbatches: impl IntoIterator<Item = Result<M::Batch>, IntoIter: ExactSizeIterator>,
    ) -> Result<PendingStep> {
        if !self.asleep.is_empty() {
            bail!(Invalid, "step: the tensor is asleep; call `wake` first");
        }
        let (started, before) = (Instant::now(), self.device.work().kernel_launches);
        self.events.report(Event::StepStarted { step })?;

        let GradientsAndSums { sums, gradients } = self.forward_backward(step, microbatches)?;
        let learning_rate = self.learning_rate * self.schedule.factor(step);
        let overflow = self.add_overflow(&sums)?;
        let skip = overflow.as_ref();
        let grad_norm = self.update(step, gradients, &sums.weight()?, skip, learning_rate)?;
        if let Some(scale) = self.optimizer.scale() {
            self.model.after_step(&sums.statistics()?, &scale.as_replicated()?)?;
        }

        let model = &self.model;
        self.events.report(Event::StepFinished { step, model })?;
        let launches = self.device.work().kernel_launches - before;
        Ok(PendingStep {
            step,
            learning_rate,
            sums: sums.read_async()?,
            grad_norm: grad_norm.read_async()?,
            overflow: overflow.map(|overflow| overflow.read_async()).transpose()?,
            started,
            enqueued: Instant::now(),
            kernel_launches: self.device.is_gpu().then_some(launches),
        })
    }

    /// The sum of the overflows of all steps since [`Trainer::clear_overflow`], with that of this step.
    fn add_overflow(&mut self, sums: &ReducedSums) -> Result<Option<Tensor>> {
        let Some(of_step) = self.model.overflow(&sums.statistics_of(|_| true)?)? else {
            return Ok(None);
        };
        let of_all = match &self.overflow {
            Some(of_all) => of_all,
            None => {
                let zero = Tensor::zeros(&self.device, &[], DType::F32, Kind::OptimizerState)?;
                self.overflow.insert(zero.local())
            }
        };
        ops::copy_into(&ops::add(of_all, &of_step.local())?, of_all)?;
        Ok(Some(of_all.clone()))
    }

    /// Lets steps change something again after one has overflowed ([`PendingStep::wait`]).
    ///
    /// # Errors
    /// When the device fails.
    pub fn clear_overflow(&self) -> Result<()> {
        self.overflow.as_ref().map_or(Ok(()), |overflow| ops::fill_into(overflow, 0.0))
    }

    /// Computes the gradients of all microbatches.
    fn forward_backward(
        &mut self,
        step: u64,
        microbatches: impl IntoIterator<Item = Result<M::Batch>, IntoIter: ExactSizeIterator>,
    ) -> Result<GradientsAndSums> {
        self.events.report(Event::ForwardBackwardStarted { step })?;
        let microbatches = microbatches.into_iter();
        if microbatches.len() == 0 {
            return Err(no_batch());
        }
        let passes = match self.reduction {
            SumOrder::Sum => self.accumulate(step, microbatches)?,
            SumOrder::Tree => self.add_in_tree(step, microbatches)?,
        };
        if !self.events.is_empty() {
            let gradients = match &passes.gradients {
                Some(gradients) => gradients.clone(),
                None => self.optimizer.grads().all()?,
            };
            self.events.report(Event::ForwardBackwardFinished {
                step,
                gradients: &gradients,
                weight: &passes.sums.weight()?,
            })?;
        }
        Ok(passes)
    }

    /// Accumulates the gradients of the microbatches.
    fn accumulate(
        &mut self,
        step: u64,
        microbatches: impl ExactSizeIterator<Item = Result<M::Batch>>,
    ) -> Result<GradientsAndSums> {
        let (pipeline, count) = (&self.pipeline, microbatches.len());
        let passes = Passes::new(&self.model, pipeline, self.compute, microbatches);
        let (grads, events) = (self.optimizer.grads(), &mut self.events);
        let sums =
            pipeline.run(passes, count, grads, &self.device, |passes, action, started| {
                events.report(passes.finished(step, action, started))
            })?;
        Ok(GradientsAndSums { sums, gradients: None })
    }

    /// Adds the gradients of the microbatches in a tree for each stage. Each is reduced by itself.
    fn add_in_tree(
        &mut self,
        step: u64,
        microbatches: impl ExactSizeIterator<Item = Result<M::Batch>>,
    ) -> Result<GradientsAndSums> {
        let (pipeline, device) = (&self.pipeline, &self.device);
        let program = pipeline.program(microbatches.len())?;
        let mut stages: BTreeMap<usize, StageTree> = BTreeMap::new();
        let mut passes = Passes::new(&self.model, pipeline, self.compute, microbatches);
        let grads = self.optimizer.grads();
        for action in &program.ranks()[pipeline.own()] {
            passes.expect(1);
            let started = Instant::now();
            if let Some((pass, sums)) = passes.apply(*action, grads)? {
                let gradients = grads.take(pipeline.params(pass.stage))?;
                let stage = stages.entry(pass.stage).or_default();
                stage.add(pass.microbatch, sums.reduced(device)?, &gradients)?;
            }
            self.events.report(passes.finished(step, *action, started))?;
        }
        passes.finish()?;
        let (mut sums, mut gradients) = (StepSums::default(), Vec::new());
        for (number, stage) in stages {
            let (of_stage, its) = stage.finish()?;
            sums.add(of_stage.of_stage(number)?)?;
            gradients.extend(pipeline.params(number).iter().cloned().zip(its));
        }
        let sums = pipeline.reduced(&sums, device)?;
        Ok(GradientsAndSums { sums, gradients: Some(gradients) })
    }

    /// Runs the optimizer and clears the gradients. Returns their norm.
    fn update(
        &mut self,
        step: u64,
        gradients: Option<Vec<(Param, Tensor)>>,
        weight: &Tensor,
        skip: Option<&Tensor>,
        learning_rate: f64,
    ) -> Result<Tensor> {
        self.events.report(Event::OptimizerStarted { step, learning_rate })?;
        self.optimizer.begin(step, learning_rate)?;
        let grad_norm = match (gradients, skip) {
            (None, None) => self.optimizer.apply(weight)?,
            (None, Some(skip)) => self.optimizer.apply_unless(skip, weight)?,
            (Some(gradients), _) => self.optimizer.apply_in_tree_order(gradients, weight)?,
        };
        self.events.report(Event::OptimizerFinished { step, grad_norm: &grad_norm })?;
        Ok(grad_norm)
    }

    /// Allocates what steps and validations allocate, without reading a value, for a meta device.
    /// Runs two steps of `count` microbatches, because gradient buffers are kept, and a validation
    /// batch.
    pub(crate) fn rehearse(
        &mut self,
        count: usize,
        microbatch: impl Fn() -> Result<M::Batch>,
    ) -> Result<()> {
        for step in 1..=2 {
            let passes = self.forward_backward(step, (0..count).map(|_| microbatch()))?;
            let skip = self.add_overflow(&passes.sums)?;
            self.update(step, passes.gradients, &passes.sums.weight()?, skip.as_ref(), 0.0)?;
        }
        let compute = self.without_checkpointing();
        self.optimizer.averaged(|| self.evaluate(microbatch(), compute))?;
        Ok(())
    }

    /// Moves `kept` from a GPU to pinned host memory and returns the GPU's memory to the driver, so
    /// that another program or model can use it, such as the generation of samples in reinforcement
    /// learning. Nothing is lost: after [`Trainer::wake`], training continues with the same bits.
    ///
    /// Call it between steps, when the results of the last one have been read. Repeating a call, or
    /// sleeping what already sleeps, does nothing. On a CPU, memory stays where it is, but cannot be
    /// used. On several ranks, all make the call, and
    /// [`RunRanks::agree`](crate::ranks::RunRanks::agree) makes the error of one rank that of all.
    ///
    /// ```
    /// use meshgrad_train::sleep::Kept;
    /// # use meshgrad_models::Model;
    /// # fn pause<M: Model>(trainer: &mut meshgrad_train::trainer::Trainer<M>) -> meshgrad_train::Result<()> {
    /// trainer.sleep(&[Kept::Gradients, Kept::Optimizer])?;
    /// // The model can generate text here.
    /// trainer.wake(&Kept::ALL)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`Tensor::sleep`], such as when the host has no memory left. What already sleeps
    /// stays asleep.
    pub fn sleep(&mut self, kept: &[Kept]) -> Result<()> {
        self.asleep.extend(kept);
        self.kept().sleep(kept, &self.device)
    }

    /// Moves `kept` back to the device, the last first. Until everything is awake, a step fails before
    /// it changes anything.
    ///
    /// # Errors
    /// Those of [`Tensor::wake`]: when the device has no memory, free some and call it again.
    pub fn wake(&mut self, kept: &[Kept]) -> Result<()> {
        self.kept().wake(kept)?;
        self.asleep.retain(|asleep| !kept.contains(asleep));
        Ok(())
    }

    fn kept(&self) -> KeptTensors<'_, M> {
        KeptTensors { model: &self.model, optimizer: &self.optimizer }
    }

    fn without_checkpointing(&self) -> Compute {
        Compute { checkpointing: false, ..self.compute }
    }

    /// The mean loss over `batches` after step `step`, weighted by their weights; in nats per token
    /// for a language model. It is computed with the averages of the weights, if there are any.
    ///
    /// # Errors
    /// An error of a batch or of a subscriber; when memory runs out.
    pub fn validate(
        &mut self,
        step: u64,
        batches: impl IntoIterator<Item = Result<M::Batch>>,
    ) -> Result<f64> {
        self.events.report(Event::EvaluationStarted { step })?;
        let compute = self.without_checkpointing();
        let loss = self.optimizer.averaged(|| {
            let sums = batches.into_iter().map(|batch| self.sums_of(batch, compute));
            mean_of(sums.collect::<Result<_>>()?, self.reduction)
        })?;
        self.events.report(Event::EvaluationFinished { step, loss })?;
        Ok(loss)
    }

    /// Starts to read the sums of a batch.
    fn sums_of(&self, batch: Result<M::Batch>, compute: Compute) -> Result<PendingSums> {
        let sums = self.evaluate(batch, compute)?;
        self.pipeline.reduced(&sums, &self.device)?.read_async()
    }

    /// The sums of a batch, through all stages.
    fn evaluate(&self, batch: Result<M::Batch>, compute: Compute) -> Result<StepSums> {
        let batches = std::iter::once(batch);
        let mut passes = Passes::new(&self.model, &self.pipeline, compute, batches);
        let mut sums = StepSums::default();
        for action in &self.pipeline.evaluation()?.ranks()[self.pipeline.own()] {
            if let Some(of_stage) = passes.evaluate(*action)? {
                sums.add(of_stage)?;
            }
        }
        passes.finish()?;
        Ok(sums)
    }

    /// The model in stages, to generate text; `None` for the whole model.
    pub(crate) fn staged_text(&self) -> Option<StagedText<'_, M>> {
        StagedText::new(&self.model, &self.pipeline)
    }

    /// Of each stage of a pipeline: its layers, and its share of the FLOPs of a forward pass.
    pub(crate) fn stages(&self) -> Option<Vec<(usize, f64)>> {
        self.pipeline.shares()
    }

    /// Whether the model is a part, of which other ranks have the rest.
    pub(crate) fn is_part(&self) -> bool {
        self.pipeline.is_part()
    }

    /// Whether the model has buffers, or a part of it on another rank.
    pub(crate) fn has_buffers(&self) -> bool {
        self.pipeline.has_buffers
    }

    /// The dtype of activations.
    pub fn dtype(&self) -> DType {
        self.compute.dtype
    }
}

/// Starts to read the sums of a batch.
pub(crate) fn sums_of<M: Model>(
    model: &M,
    batch: &M::Batch,
    compute: Compute,
) -> Result<PendingSums> {
    let loss = model.loss(batch, compute)?;
    let device = loss.sum.device().clone();
    StepSums::of(0, loss).reduced(&device)?.read_async()
}

/// The mean loss of several batches.
pub(crate) fn mean_of(sums: Vec<PendingSums>, reduction: SumOrder) -> Result<f64> {
    let (mut losses, mut weights) = (Vec::new(), Vec::new());
    for sums in sums {
        let sums = sums.wait()?;
        losses.push(sums.loss);
        weights.push(sums.weight);
    }
    let sum = |values: &[f32]| match reduction {
        SumOrder::Sum => values.iter().copied().map(f64::from).sum(),
        SumOrder::Tree => f64::from(sum_of_values(values)),
    };
    let (loss, weight) = (sum(&losses), sum(&weights));
    ensure!(
        weight > 0.0,
        Invalid,
        "no token of the validation text counts towards the loss; add text or conversations to it, or \
         lower train.seq_len"
    );
    Ok(loss / weight)
}
