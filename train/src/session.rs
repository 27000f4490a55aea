//! A whole training run: data, model, loop, checkpoints and output. It uses only the public parts
//! of this crate, so another loop can be built from the same parts.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use meshgrad_autograd::Param;
use meshgrad_ckpt::{Committed, Saver, Submitted, Task, WhenBusy, keep_last, scan, step_name};
use meshgrad_models::config::Qwen3Config;
use meshgrad_models::{Balancing, Generate, Model, Qwen3, TokenBatch, folder};
use meshgrad_runtime::{Device, Properties};

use crate::batches::TokenBatches;
use crate::config::Config;
use crate::data::Data;
use crate::metrics::MetricsFile;
use crate::report::{self, Header, Progress, Reporter, with_loading_bar};
use crate::run_folder::RunFolder;
use crate::sampler::{Order, Windows};
use crate::trainer::{PendingStep, Trainer};
use crate::{Result, TrainError, checkpoint, generate, metrics, plot};

/// Options of a run that are not part of its configuration.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The run folder.
    pub run_dir: PathBuf,
    /// Where to start.
    pub resume: Resume,
    /// Save and stop after this step, if it comes before the last.
    pub stop_after: Option<u64>,
}

/// Where a run starts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Resume {
    /// At the newest complete checkpoint of the run folder, otherwise from scratch.
    #[default]
    Auto,
    /// From scratch. Checkpoints in the folder are moved to `set-aside-N`.
    Never,
    /// At this checkpoint.
    From(PathBuf),
}

/// The result of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// Steps done.
    pub step: u64,
    /// Steps of the whole run.
    pub steps: u64,
    /// The last checkpoint.
    pub checkpoint: PathBuf,
    /// The plot of the loss, if any step was recorded.
    pub plot: Option<PathBuf>,
    /// The last validation loss, in nats per token.
    pub val_loss: Option<f64>,
    /// The last validation loss, in bits per byte.
    pub val_bits_per_byte: Option<f64>,
}

/// Trains as configured until the last step, until `options.stop_after`, or until `stop` is set. If
/// `stop` is set, the current step is finished and a checkpoint is saved.
///
/// A run that was stopped and resumed at any step is bit-identical to an uninterrupted one.
///
/// The model is the Qwen3 of `config.model`; [`run_model`] trains any other.
///
/// # Errors
/// [`TrainError`]; checkpoints saved before remain.
pub fn run(
    config: &Config,
    options: &Options,
    device: &Device,
    stop: &AtomicBool,
) -> Result<Summary> {
    run_model(config, options, device, stop, |data, from| {
        let mut model = qwen3(config, data.tokenizer.vocab_size())?;
        // Saved biases are kept if the configuration no longer updates them.
        if from.is_some_and(|from| checkpoint::has_buffers(from.path())) {
            model.add_router_biases();
        }
        Ok(model)
    })
}

/// The Qwen3 of `config.model`, balanced as `config.balancing` says, with router biases if that
/// updates them. `vocab_size` is that of the tokenizer.
///
/// # Errors
/// As [`model_config`].
pub fn qwen3(config: &Config, vocab_size: usize) -> Result<Qwen3> {
    let shapes = model_config(config, vocab_size)?;
    let mut model = Qwen3::new(&shapes)?.balanced(Balancing {
        auxiliary: shapes.router_aux_loss_coef,
        z: config.balancing.z_loss_coef,
        bias_update_rate: config.balancing.bias_update_rate,
    });
    if config.balancing.bias_update_rate > 0.0 {
        model.add_router_biases();
    }
    Ok(model)
}

/// As [`run`], for the language model that `build` returns. It gets the data, and the checkpoint that
/// the run resumes from, if any; its parameters need no values yet. `config.model` and
/// `config.balancing` are not read.
///
/// # Errors
/// As [`run`], and those of `build`.
pub fn run_model<M: Model<Batch = TokenBatch> + Generate>(
    config: &Config,
    options: &Options,
    device: &Device,
    stop: &AtomicBool,
    build: impl FnOnce(&Data, Option<&Committed>) -> Result<M>,
) -> Result<Summary> {
    config.check()?;
    let folder = RunFolder::open(&options.run_dir)?;
    let from = starting_checkpoint(&folder, options)?;
    let data = Data::prepare(&config.data, &folder)?;
    let model = build(&data, from.as_ref())?;
    let mut session = Session::new(config, options, device, folder, data, model, from)?;
    session.print_header();
    let result = session.train(stop);
    session.reporter.finish();
    result
}

/// The checkpoint to resume from. Later checkpoints of the folder are set aside.
fn starting_checkpoint(folder: &RunFolder, options: &Options) -> Result<Option<Committed>> {
    let from = match &options.resume {
        Resume::Auto => checkpoint::newest(folder.path())?,
        Resume::Never => None,
        Resume::From(path) => Some(Committed::open(path)?),
    };
    let state = from.as_ref().map(checkpoint::read_state).transpose()?;
    let step = state.map_or(0, |state| state.step);
    folder.set_aside_after(step)?;
    Ok(from)
}

struct Session<'a, M> {
    config: &'a Config,
    device: &'a Device,
    folder: RunFolder,
    data: Data,
    trainer: Trainer<M>,
    order: Order,
    windows: Windows,
    validation: Option<Windows>,
    metrics: MetricsFile,
    reporter: Reporter,
    /// Steps done before this session.
    first_step: u64,
    last: u64,
    val_loss: Option<f64>,
    /// When a step's metrics were last read.
    last_read: Option<Instant>,
    /// Writes checkpoints in the background.
    saver: Saver,
}

impl<'a, M: Model<Batch = TokenBatch> + Generate> Session<'a, M> {
    fn new(
        config: &'a Config,
        options: &Options,
        device: &'a Device,
        folder: RunFolder,
        data: Data,
        model: M,
        from: Option<Committed>,
    ) -> Result<Session<'a, M>> {
        let (seq_len, rows) = (config.train.seq_len, config.train.batch_size);
        let windows = Windows::new("training", data.tokens.training().len(), seq_len)?;
        let held_out = data.tokens.validation();
        let validation = match held_out.is_empty() {
            true => None,
            false => Some(Windows::new("validation", held_out.len(), seq_len)?),
        };

        let (trainer, first_step) = match &from {
            None => {
                model.materialize(device, config.train.seed)?;
                (Trainer::new(model, config, device)?, 0)
            }
            Some(checkpoint) => with_loading_bar(|progress| {
                checkpoint::load_params(checkpoint, &model, device, progress)?;
                for buffer in model.buffers() {
                    buffer.materialize(device, config.train.seed)?;
                }
                let trainer = Trainer::new(model, config, device)?;
                let step = restore(checkpoint, &trainer, config, &data, progress)?;
                Ok::<_, TrainError>((trainer, step))
            })?,
        };

        folder.write(&folder.config(), &config.to_toml()?)?;
        let steps = config.train.steps;
        Ok(Session {
            metrics: MetricsFile::open_after(&folder.metrics(), first_step)?,
            reporter: Reporter::new(steps, config.log.every),
            order: Order::new(windows, rows, config.train.seed),
            last: options.stop_after.unwrap_or(steps).min(steps),
            config,
            device,
            folder,
            data,
            trainer,
            windows,
            validation,
            first_step,
            val_loss: None,
            last_read: None,
            saver: Saver::new(WhenBusy::Wait),
        })
    }

    fn train(&mut self, stop: &AtomicBool) -> Result<Summary> {
        if self.first_step >= self.last {
            self.reporter.message(&format!(
                "step {} of {} is already done; raise train.steps to continue",
                self.first_step, self.config.train.steps
            ));
            return self.summary(self.first_step);
        }

        let started = Instant::now();
        let mut pending: Option<PendingStep> = None;
        let mut step = self.first_step;
        while step < self.last {
            step += 1;
            // A checkpoint that failed to save ends the run now.
            self.saver.poll().transpose()?;
            let enqueued = self.step(step)?;
            // Metrics are read one step late, so that a GPU always has work enqueued.
            if let Some(previous) = pending.replace(enqueued) {
                self.finish_step(previous, started)?;
            }

            let stopping = stop.load(Ordering::Relaxed);
            if stopping || step == self.last || self.is_pause(step) {
                if let Some(last) = pending.take() {
                    self.finish_step(last, started)?;
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

    fn step(&mut self, step: u64) -> Result<PendingStep> {
        let tokens = self.data.tokens.training();
        let batches = TokenBatches::new(self.windows, tokens, self.device);
        let (rows, at_a_time) = (
            self.config.train.batch_size,
            self.config.train.micro_batch_size,
        );
        self.trainer
            .step(step, batches.of_step(self.order, step, rows, at_a_time))
    }

    /// Whether a checkpoint, a sample or a validation follows `step`.
    fn is_pause(&self, step: u64) -> bool {
        let due = |every: u64| every > 0 && step.is_multiple_of(every);
        due(self.config.checkpoint.every)
            || due(self.config.sample.every)
            || due(self.config.log.val_every)
    }

    /// Waits for a step, records and shows its metrics, and fails if they are not finite.
    fn finish_step(&mut self, pending: PendingStep, training_started: Instant) -> Result<()> {
        let (started, enqueued) = (pending.started, pending.enqueued);
        let mut record = pending.wait(&self.trainer.model)?;
        let duration = self.step_duration(started, enqueued);
        let step = record.step;
        if !record.loss.is_finite() || !record.grad_norm.is_finite() {
            self.saver.wait().transpose()?;
            return Err(TrainError::NotFinite {
                step,
                loss: record.loss,
                grad_norm: record.grad_norm,
                checkpoint: checkpoint::newest(self.folder.path())?
                    .map(|found| found.path().to_owned()),
            });
        }

        let tokens = (self.config.train.batch_size * self.config.train.seq_len) as f64;
        record.tokens_per_s = tokens / duration.as_secs_f64();
        if self.validates(step) {
            (record.val_loss, record.val_bits_per_byte) = self.validate()?;
        }
        self.metrics.append(&record)?;

        let (done, steps) = (step - self.first_step, self.last - self.first_step);
        let progress = Progress {
            steps: self.config.train.steps,
            val_loss: self.val_loss,
            memory: self.device.memory_stats().peak as u64,
            eta: report::eta(training_started.elapsed(), done, steps),
        };
        self.reporter.step(&record, &progress);
        Ok(())
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
    fn validate(&mut self) -> Result<(Option<f64>, Option<f64>)> {
        let Some(windows) = self.validation else {
            return Ok((None, None));
        };
        let tokens = self.data.tokens.validation();
        let batches = TokenBatches::new(windows, tokens, self.device);
        let (rows, count) = (self.config.train.batch_size, self.config.log.val_batches);
        let loss = self.trainer.validate(batches.in_order(rows, count))?;
        self.val_loss = Some(loss);
        Ok((Some(loss), Some(tokens.bits_per_byte(loss))))
    }

    /// Writes the sample and the checkpoint that are due after `step`.
    fn pause(&mut self, step: u64, stopping: bool) -> Result<()> {
        let due = |every: u64| every > 0 && step.is_multiple_of(every);
        let ends = step == self.last;
        if due(self.config.sample.every) && !ends && !stopping {
            self.sample(step)?;
        }
        if due(self.config.checkpoint.every) || ends || stopping {
            self.save(step)?;
        }
        if ends || stopping {
            self.saver.wait().transpose()?;
        }
        if step == self.config.train.steps {
            self.sample(step)?;
        }
        Ok(())
    }

    fn sample(&self, step: u64) -> Result<()> {
        let seed = self.config.train.seed.wrapping_add(step);
        let (model, dtype) = (&self.trainer.model, self.trainer.dtype());
        let tokenizer = &self.data.tokenizer;
        let text = generate::sample(
            model,
            tokenizer,
            &self.config.sample,
            seed,
            dtype,
            self.device,
        )?;
        self.reporter.sample(step, &text);
        Ok(())
    }

    /// Copies the state and starts to write it in the background.
    fn save(&mut self, step: u64) -> Result<()> {
        let state = checkpoint::State {
            step,
            seed: self.config.train.seed,
            data_digest: format!("{:032x}", self.data.digest),
        };
        let tokenizer = self.data.tokenizer.to_json()?;
        let run = self.folder.path();
        let (model, updater) = (&self.trainer.model, &self.trainer.updater);
        let config = self.config;
        let snapshot = checkpoint::snapshot(run, config, model, updater, &tokenizer, &state)?;

        let (run, keep) = (
            run.to_owned(),
            NonZeroUsize::new(self.config.checkpoint.keep),
        );
        let task = Task::new(snapshot.path(), move || {
            let committed = snapshot.save()?;
            if let Some(keep) = keep {
                keep_last(run, keep)?;
            }
            Ok(committed)
        });
        // A saver with `WhenBusy::Wait` is never busy.
        if let Submitted::Started { previous } = self.saver.submit(task) {
            previous.transpose()?;
        }
        Ok(())
    }

    fn summary(&self, step: u64) -> Result<Summary> {
        let records = metrics::read(&self.folder.metrics())?;
        let title = format!("{} to step {step}", self.folder.path().display());
        let drawn = match records.is_empty() {
            true => None,
            false => {
                plot::save(&self.folder.plot(), &title, &records)?;
                Some(self.folder.plot())
            }
        };
        let validated = records
            .iter()
            .rev()
            .find(|record| record.val_loss.is_some());
        Ok(Summary {
            step,
            steps: self.config.train.steps,
            checkpoint: self.folder.path().join(step_name(step)),
            plot: drawn,
            val_loss: validated.and_then(|record| record.val_loss),
            val_bits_per_byte: validated.and_then(|record| record.val_bits_per_byte),
        })
    }

    fn print_header(&self) {
        let (data, model) = (&self.data, &self.trainer.model);
        let elements = |param: &Param| param.shape().elements() as u64;
        let (training, validation) = (data.tokens.training(), data.tokens.validation());
        self.reporter.header(&Header {
            version: format!("meshgrad {}", env!("CARGO_PKG_VERSION")),
            device: self.device.to_string(),
            hardware: hardware(self.device.properties()),
            dtype: self.config.train.dtype.name().into(),
            model: model.title(),
            parameters: model.params().iter().map(elements).sum(),
            active_parameters: model.active_parameters(),
            data: data.title.clone(),
            digest: data.digest,
            documents: data.documents,
            text_bytes: training.text_bytes() + validation.text_bytes(),
            replaced_bytes: data.replaced_bytes,
            vocab_size: data.tokenizer.vocab_size(),
            training_tokens: training.len() as u64,
            validation_tokens: validation.len() as u64,
            run: self.folder.path().display().to_string(),
        });
        for incomplete in scan(self.folder.path())
            .map(|found| found.incomplete)
            .unwrap_or_default()
        {
            self.reporter
                .message(&format!("skipped an incomplete checkpoint: {incomplete}"));
        }
        if self.first_step > 0 {
            self.reporter
                .message(&format!("resuming after step {}", self.first_step));
        }
    }
}

/// A device's threads and instruction sets, or the GPU's model and memory.
fn hardware(properties: &Properties) -> String {
    let Properties {
        threads,
        simd,
        native_bf16,
        gpu,
        ..
    } = properties;
    match gpu {
        Some(gpu) => format!("{}, {} GiB", gpu.model, gpu.memory >> 30),
        None if *native_bf16 => format!("x{threads} {simd} bf16"),
        None => format!("x{threads} {simd}"),
    }
}

/// Loads the trainer's state, and checks that seed and text have not changed.
fn restore(
    from: &Committed,
    trainer: &Trainer<impl Model>,
    config: &Config,
    data: &Data,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<u64> {
    let state = checkpoint::load_state(from, &trainer.model, &trainer.updater, progress)?;
    let differs = |what, saved: String, now: String| TrainError::OtherRun {
        checkpoint: from.path().to_owned(),
        what,
        saved,
        now,
    };
    if state.seed != config.train.seed {
        return Err(differs(
            "train.seed",
            state.seed.to_string(),
            config.train.seed.to_string(),
        ));
    }
    let digest = format!("{:032x}", data.digest);
    if state.data_digest != digest {
        return Err(differs("the text's digest", state.data_digest, digest));
    }
    Ok(state.step)
}

/// The model configuration in `[model]`. `vocab_size` defaults to the tokenizer's.
///
/// # Errors
/// [`TrainError::ModelTable`] for an unknown key, a wrong type or invalid sizes.
pub fn model_config(config: &Config, vocab_size: usize) -> Result<Qwen3Config> {
    let mut table = config.model.clone();
    let vocabulary = toml::Value::Integer(vocab_size as i64);
    table.entry("vocab_size").or_insert(vocabulary);
    let model: Qwen3Config =
        toml::Value::Table(table)
            .try_into()
            .map_err(|error: toml::de::Error| TrainError::ModelTable {
                message: error.message().into(),
            })?;
    model.validate().map_err(folder::Error::from)?;
    if model.vocab_size < vocab_size {
        return Err(TrainError::Vocabulary {
            tokenizer: vocab_size,
            model: model.vocab_size,
        });
    }
    Ok(model)
}
