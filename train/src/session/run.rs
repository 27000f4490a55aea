//! The loop of a run.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use meshgrad_autograd::{Module, Param};
use meshgrad_ckpt::{Saver, WhenBusy, step_name};
use meshgrad_comm::{CommStats, chrome_trace};
use meshgrad_models::{Generate, Model, TokenBatch};
use meshgrad_runtime::Device;
use serde_json::json;
use twox_hash::XxHash3_64;

use super::Diverged;
use super::opened::Opened;
use super::records::Records;
use super::utilization::{Utilization, devices};
use super::whole_model::WholeModel;
use super::{Session, Summary};
use crate::batches::TokenBatches;
use crate::config::Config;
use crate::data::Data;
use crate::events::Event;
use crate::metrics::{self, Record};
use crate::optimizer::Optimizer;
use crate::pipeline::Pipeline;
use crate::prompt::Prompt;
use crate::ranks::RunRanks;
use crate::report::{self, Reporter, RunProgress};
use crate::run_folder::RunFolder;
use crate::sampler::{Order, Rows};
use crate::trainer::{PendingStep, Trainer};
use crate::{Error, Kind, Result, checkpoint, configured, generate, memory, prompt};

/// What a run is made of.
pub(super) struct Parts<'a, M, I> {
    pub(super) opened: Opened<'a>,
    /// The model, whose values are not needed yet.
    pub(super) model: M,
    /// Sets the values of a new run's model; adds messages to report.
    pub(super) init: I,
    pub(super) ranks: RunRanks<'a>,
    /// Messages to report.
    pub(super) notes: Vec<String>,
}

/// Trains a model until the run ends.
pub(super) fn train<'a, M, I>(session: Session<'a>, mut parts: Parts<'a, M, I>) -> Result<Summary>
where
    M: Model<Batch = TokenBatch> + Generate,
    I: FnOnce(&M, &Device, &mut Vec<String>) -> Result<()>,
{
    // Dropped if the run cannot start.
    let rollback = parts.opened.rollback.take();
    let ranks = parts.ranks.clone();
    let configured = Run::new(session, parts).and_then(|mut run| {
        run.configured()?;
        Ok(run)
    });
    let mut run = ranks.agree(configured)?;
    if let Some(rollback) = rollback {
        rollback.keep();
    }
    run.print_header();
    let result = run.train();
    run.reporter.finish();
    result
}

/// A run whose trainer has its state.
pub(super) struct Run<'a, M: Model> {
    pub(super) config: &'a Config,
    pub(super) device: &'a Device,
    pub(super) folder: RunFolder,
    pub(super) data: Data,
    pub(super) model: WholeModel,
    pub(super) trainer: Trainer<M>,
    pub(super) ranks: RunRanks<'a>,
    utilization: Option<Utilization>,
    pub(super) order: Order,
    /// The digest of how conversations are packed.
    pub(super) packing_digest: Option<String>,
    pub(super) validation: Option<Rows>,
    /// On rank 0.
    records: Option<Records>,
    pub(super) reporter: Reporter,
    pub(super) stop: Option<&'a AtomicBool>,
    /// Steps done before this run.
    pub(super) first_step: u64,
    /// Messages to print: what happened to checkpoints, and which settings have changed.
    pub(super) notes: Vec<String>,
    last: u64,
    val_loss: Option<f64>,
    /// When a step's metrics were last read.
    last_read: Option<Instant>,
    /// Writes checkpoints in the background.
    pub(super) saver: Saver,
    /// The step that was saved last.
    pub(super) saved_step: Option<u64>,
    /// How often the step that comes next was repeated.
    repeats: u64,
    /// How long the last save held up training, until a record has it.
    pub(super) save_stall: Option<Duration>,
}

impl<'a, M: Model<Batch = TokenBatch> + Generate> Run<'a, M> {
    fn new<I>(session: Session<'a>, parts: Parts<'a, M, I>) -> Result<Run<'a, M>>
    where
        I: FnOnce(&M, &Device, &mut Vec<String>) -> Result<()>,
    {
        let Parts { opened, model, init, ranks, mut notes } = parts;
        let Opened { folder, data, start, .. } = opened;
        let Session { config, device, .. } = session;
        let (seq_len, rows) = (config.train.seq_len, config.train.batch_size);
        let order = data.order(seq_len, rows, config.train.seed)?;
        let validation = data.validation_rows(seq_len)?;
        let packing_digest = order.packing_digest();

        let (stop, stop_after) = (session.stop, session.stop_after);
        ranks.check_equal(&json!({ "model.parameters": parameters(&model) }))?;
        // The model may have changed since it was sketched. The state of a program's own optimizer is
        // known only after its construction.
        if session.optimizer.is_none() {
            memory::check(Some(&model), config, device, &ranks)?;
        }
        let whole = WholeModel::of(&model);
        let (like, dtype) = (device.properties(), configured::dtype(config.train.dtype));
        let utilization = Utilization::of(&model, like, dtype, devices(&ranks, device)?, seq_len);
        let (model, pipeline) = match ranks.divide(&model)? {
            Some((part, pipeline)) => (part, Some(pipeline)),
            None => (model, None),
        };
        let is_of_other_run = start.is_of_other_run();
        let (trainer, first_step) = match start.checkpoint() {
            None => {
                ranks.agree(init(&model, device, &mut notes))?;
                let skipped = notes.iter().filter(|note| note.starts_with("skipped: ")).count();
                ranks.check_equal(&json!({ "model.from": { "damaged checkpoints": skipped } }))?;
                (trainer(session, model, pipeline)?, 0)
            }
            Some(_) => {
                match model.adapter().is_some_and(|adapter| adapter.base.is_some()) {
                    // The checkpoint has only the adapter.
                    true => ranks.agree(init(&model, device, &mut notes))?,
                    false => memory::allocate_params(&model, device)?,
                }
                let trainer = trainer(session, model, pipeline)?;
                let packing = packing_digest.as_deref();
                let step = start.restore(&data, packing, &trainer, &ranks, device, &mut notes)?;
                (trainer, step)
            }
        };

        // The steps in the folder that belong to this run. What follows them is set aside.
        let kept_steps = match is_of_other_run {
            true => 0,
            false => first_step,
        };
        let records = match ranks.is_first() {
            true => Some(Records::open(&folder, config, kept_steps, &mut notes)?),
            false => None,
        };
        let steps = config.train.steps;
        let reporter = match ranks.is_first() {
            true => Reporter::new(steps, config.log.every),
            false => Reporter::silent(),
        };
        let saver = Saver::new(WhenBusy::Wait);
        let saver = match ranks.count() {
            1 => saver,
            // If a rank fails during a save, rank 0 reports that, and no rank its consequences.
            _ => saver.report_to(|_| ()),
        };
        Ok(Run {
            saver,
            records,
            reporter,
            ranks,
            utilization,
            order,
            packing_digest,
            last: stop_after.unwrap_or(steps).min(steps),
            stop,
            config,
            device,
            folder,
            data,
            model: whole,
            trainer,
            validation,
            first_step,
            notes,
            val_loss: None,
            last_read: None,
            saved_step: None,
            save_stall: None,
            repeats: 0,
        })
    }

    /// Reports that the configuration is finished.
    fn configured(&mut self) -> Result<()> {
        let Trainer { events, model, .. } = &mut self.trainer;
        let step = self.first_step;
        events.report(Event::ConfigurationFinished { step, model })
    }

    fn train(&mut self) -> Result<Summary> {
        if self.first_step >= self.last {
            self.reporter.message(&format!(
                "step {} of {} is already done; raise train.steps to continue",
                self.first_step, self.config.train.steps
            ));
            return self.summary(self.first_step);
        }

        let started = Instant::now();
        let mut pending: Option<Enqueued> = None;
        let mut step = self.first_step;
        while step < self.last {
            step += 1;
            let signals = self.signals()?;
            let enqueued = self.step(step)?;
            // Metrics are read one step late, so that a GPU always has work enqueued.
            let is_done = match pending.replace(enqueued) {
                Some(previous) => self.finish_step(previous, started)?,
                None => true,
            };
            let stopping = self.stopping(signals)?;
            if !is_done {
                (pending, step) = (None, step - 2);
                continue;
            }
            if stopping || step == self.last || self.is_pause(step) {
                if let Some(last) = pending.take()
                    && !self.finish_step(last, started)?
                {
                    step -= 1;
                    continue;
                }
                self.pause(step, stopping)?;
            }
            if stopping {
                self.reporter.message(&format!(
                    "stopped after step {step}; the same command resumes from there"
                ));
                break;
            }
        }
        self.summary(step)
    }

    fn step(&mut self, step: u64) -> Result<Enqueued> {
        let tokens = self.data.tokens.training();
        let batches = TokenBatches::new(tokens, self.device).on(&self.ranks);
        let (rows, at_a_time) = (self.config.train.batch_size, self.rows_of_pass());
        let before = self.ranks.stats();
        let is_traced = step == self.config.log.trace_step;
        let recording = is_traced.then(|| self.ranks.record());
        let recording = recording.transpose()?;
        let microbatches = batches.of_step(&self.order, step, rows, at_a_time);
        let pending = self.trainer.step(step, microbatches)?;
        if let Some(recording) = recording {
            let path = self.folder.trace(self.ranks.rank());
            self.folder.write(&path, &chrome_trace(&[recording.finish()]))?;
        }
        let after = self.ranks.stats();
        let communication = after.zip(before).map(|(after, before)| after - before);
        Ok(Enqueued { pending, communication })
    }

    /// The sequences of a pass over all ranks.
    fn rows_of_pass(&self) -> usize {
        let parts = self.ranks.batch_parts();
        self.config.train.rows_of_pass(parts)
    }

    /// Whether a checkpoint, a sample or a validation follows `step`.
    fn is_pause(&self, step: u64) -> bool {
        let due = |every: u64| every > 0 && step.is_multiple_of(every);
        due(self.config.checkpoint.every)
            || due(self.config.sample.every)
            || due(self.config.log.val_every)
    }

    /// Waits for a step, records and shows its metrics, and fails if they are not finite. Returns whether
    /// the step is done; otherwise it and those after it, which changed nothing, must be repeated.
    fn finish_step(&mut self, enqueued: Enqueued, training_started: Instant) -> Result<bool> {
        let Enqueued { pending, communication } = enqueued;
        let (started, enqueued) = (pending.started, pending.enqueued);
        let mut record = pending.wait(&self.trainer.model)?;
        let duration = self.step_duration(started, enqueued);
        let step = record.step;
        if record.overflowed {
            self.trainer.clear_overflow()?;
            self.repeats += 1;
            return Ok(false);
        }
        if self.repeats > 0 {
            record.extra.insert("repeats".to_owned(), std::mem::take(&mut self.repeats).into());
        }
        let is_skipped = self.config.optimizer.skip_nonfinite && !record.grad_norm.is_finite();
        if is_skipped {
            record.extra.insert("skipped".to_owned(), 1.into());
            self.reporter.message(&format!("step {step} is skipped: its gradient is not finite"));
        } else if !record.loss.is_finite() || !record.grad_norm.is_finite() {
            let saved = self.saver.wait();
            self.saved(saved)?;
            let newest = checkpoint::newest(self.folder.path())?;
            let diverged = Diverged {
                step,
                loss: record.loss,
                grad_norm: record.grad_norm,
                checkpoint: newest.map(|found| found.path().to_owned()),
            };
            return Err(Error::with_details(Kind::NotFinite, diverged));
        }

        let tokens = (self.config.train.batch_size * self.config.train.seq_len) as f64;
        record.tokens_per_s = tokens / duration.as_secs_f64();
        record.mfu = self.utilization.map(|it| it.at(record.tokens_per_s));
        record.save_stall_s = self.save_stall.take().map(|it| it.as_secs_f64());
        if let Some(of_step) = communication {
            record.ranks = Some(self.ranks.count());
            record.comm_bytes = Some(of_step.bytes);
            record.comm_exposed_s = Some(of_step.exposed.as_secs_f64());
        }
        if let Some(packing) = self.order.packing_of(step) {
            record.extra.insert("padding".to_owned(), packing.padding.into());
            record.extra.insert("trained_tokens".to_owned(), packing.trained.into());
        }
        let mut validated = Ok(());
        if self.validates(step) {
            validated = self.validate(step).map(|(loss, bits_per_byte)| {
                (record.val_loss, record.val_bits_per_byte) = (loss, bits_per_byte);
            });
        }
        if let Some(records) = &mut self.records {
            records.append(&record)?;
        }
        let measured = Event::Measured { record: &record };
        self.trainer.events.report(measured)?;

        let (done, steps) = (step - self.first_step, self.last - self.first_step);
        let progress = RunProgress {
            steps: self.config.train.steps,
            val_loss: self.val_loss,
            memory: self.device.memory_stats().peak as u64,
            eta: report::eta(training_started.elapsed(), done, steps),
        };
        self.reporter.step(&record, &progress);
        match self.validates(step) {
            true => self.or_save(step, validated).map(|()| true),
            false => Ok(true),
        }
    }

    /// The duration of a step whose metrics have just been read. On a CPU it is the host's time. A
    /// GPU starts a step when it has finished the previous one. There the duration is the time
    /// since the metrics of the previous step were read, but at least the host's time.
    fn step_duration(&mut self, started: Instant, enqueued: Instant) -> Duration {
        let on_host = enqueued - started;
        if !self.device.is_gpu() {
            return on_host;
        }
        let now = Instant::now();
        let previous = self.last_read.replace(now);
        let since = now - previous.map_or(started, |previous| previous.max(started));
        since.max(on_host)
    }

    fn validates(&self, step: u64) -> bool {
        let every = self.config.log.val_every;
        step == self.config.train.steps || every > 0 && step.is_multiple_of(every)
    }

    /// Validation loss in nats per token and bits per byte; `None` if no text is held out.
    fn validate(&mut self, step: u64) -> Result<(Option<f64>, Option<f64>)> {
        let Some(held_out) = &self.validation else {
            return Ok((None, None));
        };
        let tokens = self.data.tokens.validation();
        let batches = TokenBatches::new(tokens, self.device).on(&self.ranks);
        // As many rows at a time as in training, so that a validation needs no more memory.
        let rows = self.rows_of_pass();
        let microbatches = self.config.train.batch_size / rows;
        let count = self.config.log.val_batches.saturating_mul(microbatches);
        let loss = self.trainer.validate(step, batches.in_order(held_out, rows, count))?;
        self.val_loss = Some(loss);
        Ok((Some(loss), Some(tokens.bits_per_byte(loss))))
    }

    /// Writes the checkpoint and the sample that are due after `step`.
    fn pause(&mut self, step: u64, stopping: bool) -> Result<()> {
        let due = |every: u64| every > 0 && step.is_multiple_of(every);
        let ends = step == self.last;
        // The checkpoint comes first: an error of sampling must not lose it.
        if due(self.config.checkpoint.every) || ends || stopping {
            self.save(step)?;
        }
        if ends || stopping {
            let saved = self.saver.wait();
            self.saved(saved)?;
        }
        let is_last = step == self.config.train.steps;
        let samples = match ends || stopping {
            true => is_last && self.config.sample.every > 0,
            false => due(self.config.sample.every),
        };
        if samples {
            let sampled = self.sample(step);
            self.or_save(step, sampled)?;
        }
        Ok(())
    }

    fn sample(&mut self, step: u64) -> Result<()> {
        let seed = self.config.train.seed.wrapping_add(step);
        let (config, tokenizer) = (&self.config.sample, &self.data.tokenizer);
        let prompt = match config.prompt.as_str() {
            "" => prompt::held_out(&self.data, self.config.train.seed, step)?,
            text => Prompt::new(tokenizer, text)?,
        };
        let (model, dtype, device) = (&self.trainer.model, self.trainer.dtype(), self.device);
        let sample = || match self.trainer.staged_text() {
            None => generate::sample_from(model, tokenizer, prompt, config, seed, dtype, device),
            Some(staged) => {
                generate::sample_from(&staged, tokenizer, prompt, config, seed, dtype, device)
            }
        };
        let sample = || self.trainer.optimizer.averaged(sample);
        let text = self.ranks.decode(&self.trainer.model, sample)?;
        self.reporter.sample(step, &text);
        let sampled = Event::Sampled { step, text: &text };
        self.trainer.events.report(sampled)
    }

    /// Draws the curves of the run.
    #[cfg(feature = "plots")]
    fn plot(&self, step: u64, records: &[Record]) -> Result<Option<PathBuf>> {
        let title = format!("{} to step {step}", self.folder.path().display());
        crate::plot::save(&self.folder.plot(), &title, records)?;
        Ok(Some(self.folder.plot()))
    }

    #[cfg(not(feature = "plots"))]
    fn plot(&self, _: u64, _: &[Record]) -> Result<Option<PathBuf>> {
        Ok(None)
    }

    fn summary(&self, step: u64) -> Result<Summary> {
        self.ranks.broadcast(|| self.summary_of_first(step))
    }

    fn summary_of_first(&self, step: u64) -> Result<Summary> {
        let records = metrics::read(&self.folder.metrics())?;
        let drawn = match records.is_empty() {
            true => None,
            false => self.plot(step, &records)?,
        };
        let validated = records.iter().rev().find(|record| record.val_loss.is_some());
        Ok(Summary {
            step,
            steps: self.config.train.steps,
            checkpoint: self.folder.path().join(step_name(step)),
            plot: drawn,
            val_loss: validated.and_then(|record| record.val_loss),
            val_bits_per_byte: validated.and_then(|record| record.val_bits_per_byte),
            has_conversations: self.data.tokens.training().is_masked(),
        })
    }
}

/// The number of a model's parameters, and a digest of their names, shapes and dtypes.
fn parameters(model: &impl Module) -> String {
    let params = model.params();
    let of =
        |param: &Param| format!("{} {} {:?}\n", param.name(), param.spec().dtype, param.shape());
    let listed: String = params.iter().map(of).collect();
    format!("{} with digest {:016x}", params.len(), XxHash3_64::oneshot(listed.as_bytes()))
}

/// A step that the host has enqueued, and what it communicated; `None` for a single rank.
struct Enqueued {
    pending: PendingStep,
    communication: Option<CommStats>,
}

/// The trainer of a session. `model` has values.
fn trainer<M: Model>(
    session: Session<'_>,
    model: M,
    pipeline: Option<Pipeline<M::Stream>>,
) -> Result<Trainer<M>> {
    let Session { config, device, .. } = session;
    let options = &config.optimizer;
    let optimizer = match session.optimizer {
        None => Optimizer::new(&model, device, options, config.train.seed)?,
        Some(make) => {
            let optimizer = Optimizer::with(&model, device, options.max_grad_norm, make)?;
            optimizer.configured(options)?
        }
    };
    let builder = Trainer::of(model).optimizer(optimizer);
    let builder = match session.schedule {
        None => builder,
        Some(schedule) => builder.schedule(schedule),
    };
    let builder = builder.pipeline(pipeline);
    let mut trainer = builder.build(config, device)?;
    trainer.events = session.events;
    Ok(trainer)
}
