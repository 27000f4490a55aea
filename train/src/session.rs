//! A whole training run: data, model, the loop, what it saves and says. It is made of this crate's
//! parts and nothing else, so that another loop can be made of them as well.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use meshgrad_ckpt::{Committed, Saver, Submitted, Task, WhenBusy, keep_last, scan, step_name};
use meshgrad_models::Qwen3;
use meshgrad_models::config::Qwen3Config;
use meshgrad_models::hf::Loader;
use meshgrad_runtime::{Device, Properties};

use crate::config::Config;
use crate::data::Data;
use crate::metrics::{MetricsFile, Record};
use crate::report::{self, Header, Reporter, Status, with_loading_bar};
use crate::run_folder::RunFolder;
use crate::sampler::{Order, Windows};
use crate::trainer::{PendingOutcome, Trainer};
use crate::{Result, TrainError, checkpoint, generate, metrics, plot};

/// What a run is asked for beside its configuration.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Where the run is kept.
    pub run_dir: PathBuf,
    /// Where it begins.
    pub resume: Resume,
    /// Save and stop after this step, before the last one.
    pub stop_after: Option<u64>,
}

/// Where a run begins.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Resume {
    /// At the newest complete checkpoint of the run folder, or at the beginning.
    #[default]
    Auto,
    /// At the beginning. What the folder holds is set aside.
    Never,
    /// At this checkpoint.
    From(PathBuf),
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// Steps done.
    pub step: u64,
    /// Steps in all.
    pub steps: u64,
    /// The last checkpoint.
    pub checkpoint: PathBuf,
    /// The curves, if there are any.
    pub plot: Option<PathBuf>,
    /// The last validation loss, in nats a token.
    pub val_loss: Option<f64>,
    /// The same in bits a byte.
    pub val_bits_per_byte: Option<f64>,
}

/// Trains as `config` says, until the last step, until `options.stop_after`, or until `stop` is
/// set: then the step at hand is finished and saved.
///
/// Begun, stopped and resumed at any step, a run gives the same bits as one that never stopped.
///
/// # Errors
/// [`TrainError`]; whatever was saved before stays.
pub fn run(
    config: &Config,
    options: &Options,
    device: &Device,
    stop: &AtomicBool,
) -> Result<Summary> {
    config.check()?;
    let folder = RunFolder::open(&options.run_dir)?;
    let from = beginning(&folder, options)?;
    let mut session = Session::new(config, options, device, folder, from)?;
    session.greet();
    let result = session.train(stop);
    session.reporter.finish();
    result
}

/// The checkpoint to begin at. Later checkpoints of the folder are set aside.
fn beginning(folder: &RunFolder, options: &Options) -> Result<Option<Committed>> {
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

/// A step whose tensors nobody has read yet.
struct Done {
    outcome: PendingOutcome,
    begun: Instant,
    /// When the host was free again. On a GPU the step goes on.
    given: Instant,
    /// On a GPU.
    kernel_launches: Option<u64>,
}

struct Session<'a> {
    config: &'a Config,
    device: &'a Device,
    folder: RunFolder,
    data: Data,
    trainer: Trainer,
    order: Order,
    windows: Windows,
    validation: Option<Windows>,
    metrics: MetricsFile,
    reporter: Reporter,
    /// Steps done before this session.
    begun_at: u64,
    last: u64,
    val_loss: Option<f64>,
    /// When a step's tensors were last read.
    last_read: Option<Instant>,
    /// Writes checkpoints while training goes on.
    saver: Saver,
}

impl<'a> Session<'a> {
    fn new(
        config: &'a Config,
        options: &Options,
        device: &'a Device,
        folder: RunFolder,
        from: Option<Committed>,
    ) -> Result<Session<'a>> {
        let data = Data::prepare(&config.data, &folder)?;
        let model_config = model_config(config, data.tokenizer.vocab_size())?;
        let (seq_len, rows) = (config.train.seq_len, config.train.batch_size);
        let windows = Windows::new("training", data.tokens.training().len(), seq_len)?;
        let held_out = data.tokens.validation();
        let validation = match held_out.is_empty() {
            true => None,
            false => Some(Windows::new("validation", held_out.len(), seq_len)?),
        };

        let model = Qwen3::new(&model_config)?;
        let (trainer, begun_at) = match &from {
            None => {
                let model = Qwen3::materialized(&model_config, device, config.train.seed)?;
                (Trainer::new(model, config, device)?, 0)
            }
            Some(checkpoint) => with_loading_bar(|progress| {
                let parameters = Loader::new(checkpoint.path()).progress(progress);
                parameters.fill(&model, device)?;
                let mut trainer = Trainer::new(model, config, device)?;
                let step = restore(checkpoint, &mut trainer, config, &data, device, progress)?;
                Ok::<_, TrainError>((trainer, step))
            })?,
        };

        folder.write(&folder.config(), &config.to_toml()?)?;
        let steps = config.train.steps;
        Ok(Session {
            metrics: MetricsFile::open_after(&folder.metrics(), begun_at)?,
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
            begun_at,
            val_loss: None,
            last_read: None,
            saver: Saver::new(WhenBusy::Wait),
        })
    }

    fn train(&mut self, stop: &AtomicBool) -> Result<Summary> {
        if self.begun_at >= self.last {
            self.reporter.note(&format!(
                "step {} of {} is done already; raise train.steps to go on",
                self.begun_at, self.config.train.steps
            ));
            return self.summary(self.begun_at);
        }

        let started = Instant::now();
        let mut waiting: Option<Done> = None;
        let mut step = self.begun_at;
        while step < self.last {
            step += 1;
            // A checkpoint that could not be saved ends the run now, not when it is needed.
            self.saver.poll().transpose()?;
            let done = self.step(step)?;
            // What a step did is looked at a step late, so that a GPU has the next one already.
            if let Some(before) = waiting.replace(done) {
                self.settle(before, started)?;
            }

            let stopping = stop.load(Ordering::Relaxed);
            if stopping || step == self.last || self.is_stop(step) {
                if let Some(done) = waiting.take() {
                    self.settle(done, started)?;
                }
                self.pause(step, stopping)?;
            }
            if stopping {
                self.reporter.note(&format!(
                    "stopped after step {step}; the same command goes on from there"
                ));
                break;
            }
        }
        self.summary(step)
    }

    fn step(&mut self, step: u64) -> Result<Done> {
        let (begun, before) = (Instant::now(), self.device.work());
        let tokens = self.data.tokens.training();
        let (order, windows) = (&self.order, self.windows);
        let outcome = self.trainer.step(step, order, windows, &tokens)?.later()?;
        let launches = self.device.work().kernel_launches - before.kernel_launches;
        Ok(Done {
            outcome,
            begun,
            given: Instant::now(),
            kernel_launches: self.device.is_gpu().then_some(launches),
        })
    }

    /// Whether something but the next step follows `step`.
    fn is_stop(&self, step: u64) -> bool {
        let due = |every: u64| every > 0 && step.is_multiple_of(every);
        due(self.config.checkpoint.every)
            || due(self.config.sample.every)
            || due(self.config.log.val_every)
    }

    /// Reads what a step did: keeps it, shows it, and ends the run where it is no number.
    fn settle(&mut self, done: Done, started: Instant) -> Result<()> {
        let Done {
            outcome,
            begun,
            given,
            kernel_launches,
        } = done;
        let (step, learning_rate) = (outcome.step, outcome.learning_rate);
        let measured = outcome.wait()?;
        let took = self.took(begun, given);
        if !measured.loss.is_finite() || !measured.grad_norm.is_finite() {
            self.saver.wait().transpose()?;
            return Err(TrainError::NotFinite {
                step,
                loss: measured.loss,
                grad_norm: measured.grad_norm,
                checkpoint: checkpoint::newest(self.folder.path())?
                    .map(|found| found.path().to_owned()),
            });
        }

        let tokens = (self.config.train.batch_size * self.config.train.seq_len) as f64;
        let tokens_per_s = tokens / took.as_secs_f64();
        let (val_loss, val_bits_per_byte) = match self.validates(step) {
            true => self.validate()?,
            false => (None, None),
        };
        self.metrics.append(&Record {
            step,
            loss: measured.loss,
            lr: learning_rate,
            grad_norm: measured.grad_norm,
            tokens_per_s,
            expert_load: measured.expert_imbalance,
            kernel_launches,
            val_loss,
            val_bits_per_byte,
            extra: serde_json::Map::new(),
        })?;
        let (done, steps) = (step - self.begun_at, self.last - self.begun_at);
        self.reporter.step(&Status {
            step,
            steps: self.config.train.steps,
            loss: measured.loss,
            val_loss: self.val_loss,
            lr: learning_rate,
            grad_norm: measured.grad_norm,
            tokens_per_s,
            memory: self.device.memory_stats().peak as u64,
            expert_load: measured.expert_load,
            eta: report::eta(started.elapsed(), done, steps),
        });
        Ok(())
    }

    /// How long a step took whose tensors have just been read: as long as the host had to do with
    /// it, or on a GPU, which begins with it when it is done with the one before, since that was
    /// known.
    fn took(&mut self, begun: Instant, given: Instant) -> Duration {
        let by_host = given - begun;
        if !self.device.is_gpu() {
            return by_host;
        }
        let now = Instant::now();
        let before = self.last_read.replace(now);
        let since = now - before.map_or(begun, |before| before.max(begun));
        since.max(by_host)
    }

    fn validates(&self, step: u64) -> bool {
        let every = self.config.log.val_every;
        step == self.config.train.steps || every > 0 && step.is_multiple_of(every)
    }

    /// Validation loss in nats a token and bits a byte, where something is held out.
    fn validate(&mut self) -> Result<(Option<f64>, Option<f64>)> {
        let Some(windows) = self.validation else {
            return Ok((None, None));
        };
        let tokens = self.data.tokens.validation();
        let loss = self
            .trainer
            .validate(windows, &tokens, self.config.log.val_batches)?;
        self.val_loss = Some(loss);
        Ok((Some(loss), Some(tokens.bits_per_byte(loss))))
    }

    /// What follows a step but another step: a sample, a checkpoint.
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

    /// Begins a checkpoint; training goes on when its copy is made.
    fn save(&mut self, step: u64) -> Result<()> {
        let state = checkpoint::State {
            step,
            seed: self.config.train.seed,
            data_digest: format!("{:032x}", self.data.digest),
        };
        let tokenizer = self.data.tokenizer.to_json()?;
        let run = self.folder.path();
        let (model, optimizer) = (&self.trainer.model, &self.trainer.optimizer);
        let config = self.config;
        let snapshot = checkpoint::snapshot(run, config, model, optimizer, &tokenizer, &state)?;

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
        // A saver that waits is never busy.
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

    fn greet(&self) {
        let (data, config) = (&self.data, self.trainer.model.config());
        let parameters = config.parameter_count();
        let (training, validation) = (data.tokens.training(), data.tokens.validation());
        self.reporter.header(&Header {
            version: format!("meshgrad {}", env!("CARGO_PKG_VERSION")),
            device: self.device.to_string(),
            hardware: hardware(self.device.properties()),
            dtype: self.config.train.dtype.name().into(),
            model: describe(config),
            parameters: parameters.total(),
            active_parameters: parameters.active(),
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
            self.reporter.note(&format!(
                "passed over an incomplete checkpoint: {incomplete}"
            ));
        }
        if self.begun_at > 0 {
            self.reporter
                .note(&format!("going on after step {}", self.begun_at));
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

/// Gives the trainer its state, after checking that the run is the same.
fn restore(
    from: &Committed,
    trainer: &mut Trainer,
    config: &Config,
    data: &Data,
    device: &Device,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<u64> {
    let Trainer {
        model, optimizer, ..
    } = trainer;
    let state = checkpoint::load_state(from, model, optimizer, device, progress)?;
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

/// The model that `[model]` describes, its vocabulary that of the tokenizer unless it says
/// otherwise.
///
/// # Errors
/// [`TrainError::Model`] for an unknown key, a wrong type or impossible sizes.
pub fn model_config(config: &Config, vocab_size: usize) -> Result<Qwen3Config> {
    let mut table = config.model.clone();
    let vocabulary = toml::Value::Integer(vocab_size as i64);
    table.entry("vocab_size").or_insert(vocabulary);
    let model: Qwen3Config =
        toml::Value::Table(table)
            .try_into()
            .map_err(|error: toml::de::Error| TrainError::Model {
                message: error.message().into(),
            })?;
    model.validate().map_err(meshgrad_models::Error::from)?;
    if model.vocab_size < vocab_size {
        return Err(TrainError::Vocabulary {
            tokenizer: vocab_size,
            model: model.vocab_size,
        });
    }
    Ok(model)
}

fn describe(config: &Qwen3Config) -> String {
    let layers = config.num_hidden_layers;
    let sparse = (0..layers).any(|layer| config.is_moe_layer(layer));
    let experts = match sparse {
        true => format!(
            ", {} experts, {} a token",
            config.num_experts, config.num_experts_per_tok
        ),
        false => String::new(),
    };
    format!(
        "{} {layers} layers of {}{experts}",
        config.model_type.name(),
        config.hidden_size
    )
}
