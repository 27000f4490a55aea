//! A whole training run: data, model, loop, checkpoints and output. It uses only the public parts
//! of this crate, so another loop can be built from the same parts.

mod header;
mod opened;
mod records;
mod resume;
mod run;
mod saving;
mod start;
mod utilization;
mod whole_model;

use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use meshgrad_autograd::Param;
use meshgrad_ckpt::Committed;
use meshgrad_comm::{LocalRank, Rank};
use meshgrad_error::bail;
use meshgrad_models::{Generate, Model, TokenBatch};
use meshgrad_runtime::Device;
use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

use crate::config::{Config, ScheduleChoice, ScheduleConfig};
use crate::data::Data;
use crate::events::{Event, Events, Outcome};
use crate::optim::groups::{matched, parse};
use crate::optim::{OptimizerPart, UpdateRule};
use crate::ranks::{RunRanks, check_equal, weigh};
use crate::schedule::Schedule;
use crate::{Result, memory};
use opened::Opened;
pub use resume::Resume;

/// A training run of any language model, with its options.
///
/// ```no_run
/// use meshgrad_models::{Generate, Model, TokenBatch};
/// use meshgrad_runtime::Device;
/// use meshgrad_train::config::Config;
/// use meshgrad_train::events::Event;
/// use meshgrad_train::optim::{Groups, Lion, LionConfig};
/// use meshgrad_train::session::Session;
///
/// # fn train<M: Model<Batch = TokenBatch> + Generate>(build: fn(usize) -> M) -> meshgrad_train::Result<()> {
/// let config = Config::default();
/// let device = Device::cpu();
/// let summary = Session::new(&config, &device)
///     .run_dir("runs/mine")
///     .optimizer(|parts| Lion::new(parts, LionConfig::default(), &Groups::default()))
///     .schedule(|step: u64| 1.0 / (step as f64).sqrt())
///     .subscribe("losses", |event| {
///         if let Event::Measured { record } = event {
///             println!("{}", record.loss);
///         }
///         Ok(())
///     })
///     .train(|data, _| Ok(build(data.tokenizer.vocab_size())))?;
/// # Ok(())
/// # }
/// ```
pub struct Session<'a> {
    pub(crate) config: &'a Config,
    device: &'a Device,
    rank: Option<&'a dyn Rank>,
    run_dir: PathBuf,
    resume: Resume,
    stop_after: Option<u64>,
    stop: Option<&'a AtomicBool>,
    optimizer: Option<MakeOptimizer<'a>>,
    schedule: Option<Box<dyn Schedule>>,
    events: Events,
}

type MakeOptimizer<'a> = Box<dyn FnOnce(&[OptimizerPart]) -> Result<Box<dyn UpdateRule>> + 'a>;

impl<'a> Session<'a> {
    /// A run of `config` on `device`, in the folder `runs/default`.
    pub fn new(config: &'a Config, device: &'a Device) -> Session<'a> {
        Session {
            config,
            device,
            rank: None,
            run_dir: "runs/default".into(),
            resume: Resume::default(),
            stop_after: None,
            stop: None,
            optimizer: None,
            schedule: None,
            events: Events::default(),
        }
    }

    /// Trains on all ranks of the world of `rank`, as `config.parallel` says, with the device of
    /// `rank`. All ranks make the same calls with the same configuration, and see the same run
    /// folder, which rank 0 owns. Only rank 0 prints. Events occur on every rank, for its own
    /// subscribers.
    ///
    /// ```
    /// use meshgrad_comm::{Local, Rank};
    /// use meshgrad_train::config::Config;
    /// use meshgrad_train::decoder::{self, Tables};
    /// use meshgrad_train::session::Session;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let place = tempfile::tempdir()?;
    /// # let text = place.path().join("text.txt");
    /// # std::fs::write(&text, "the quick brown fox jumps over the lazy dog\n".repeat(50))?;
    /// let settings = format!(
    ///     "data = {{ paths = [{text:?}], tokenizer = 'byte' }}
    ///      train = {{ steps = 2, batch_size = 4, seq_len = 16 }}
    ///      parallel.dp_shard = 2"
    /// );
    /// let config = Config::parse::<Tables>(&settings, "example", &[])?;
    /// let run = place.path().join("run");
    /// let summaries = Local::run(2, |rank| {
    ///     let session = Session::new(&config, rank.device()).on(rank).run_dir(&run);
    ///     decoder::train(session)
    /// })?;
    /// assert_eq!(summaries[0], summaries[1]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn on(mut self, rank: &'a dyn Rank) -> Self {
        (self.rank, self.device) = (Some(rank), rank.device());
        self
    }

    /// The run folder, which is created if it is missing.
    pub fn run_dir(mut self, run_dir: impl Into<PathBuf>) -> Self {
        self.run_dir = run_dir.into();
        self
    }

    /// Where the run starts; by default at the newest checkpoint in its folder.
    pub fn resume(mut self, resume: Resume) -> Self {
        self.resume = resume;
        self
    }

    /// Saves and stops after this step, if it comes before the last.
    pub fn stop_after(mut self, step: impl Into<Option<u64>>) -> Self {
        self.stop_after = step.into();
        self
    }

    /// Finishes the step, saves and stops once `stop` is set, from any thread or subscriber. All
    /// ranks stop together if it is set on one, up to one step later.
    pub fn stop_when(mut self, stop: &'a AtomicBool) -> Self {
        self.stop = Some(stop);
        self
    }

    /// Trains with the optimizer that `make` returns for the parts of the model's parameters. From
    /// `config.optimizer`, only the keys that every optimizer has are read: the peak learning rate,
    /// the largest gradient norm and the decay of averages.
    pub fn optimizer<O: UpdateRule + 'static>(
        mut self,
        make: impl FnOnce(&[OptimizerPart]) -> Result<O> + 'a,
    ) -> Self {
        self.optimizer = Some(Box::new(|parts| Ok(Box::new(make(parts)?))));
        self
    }

    /// Trains with `schedule` in place of `config.schedule`, which is not read. The run folder has
    /// `schedule.kind = "own"`.
    pub fn schedule(mut self, schedule: impl Schedule + 'static) -> Self {
        self.schedule = Some(Box::new(schedule));
        self
    }

    /// Calls `subscriber` at every event of the run. Its first error ends the run and is returned
    /// under `name`.
    pub fn subscribe(
        mut self,
        name: impl Into<String>,
        subscriber: impl FnMut(Event<'_>) -> Outcome + Send + 'static,
    ) -> Self {
        self.events.subscribe(name, subscriber);
        self
    }

    /// Trains the model that `build` returns, until the last step or until the run is stopped.
    /// `build` gets the data, and the checkpoint that the run resumes from, if any; the parameters
    /// of the model need no values yet. It may read its sizes from [`Config::model_tables`].
    ///
    /// A run resumes only with the `[model]`, seed, text, order and split of data, tokenizer and
    /// optimizer that it started with. Other changes are reported. A run that is refused, or fails
    /// before its first step, changes no file, and leaves no folder behind. Damaged checkpoints are
    /// reported, and the run resumes from the newest intact one.
    ///
    /// A run that was stopped and resumed at any step is bit-identical to an uninterrupted one.
    ///
    /// # Errors
    /// When the run cannot start, or a step fails; those of `build`. Checkpoints saved before remain.
    pub fn train<M: Model<Batch = TokenBatch> + Generate>(
        self,
        build: impl FnOnce(&Data, Option<&Committed>) -> Result<M>,
    ) -> Result<Summary> {
        let (seed, from) = (self.config.train.seed, self.config.weights_from.clone());
        self.train_from(None, build, move |model, device, _| match from {
            None => model.materialize_missing(device, seed),
            Some(from) => bail!(
                Invalid,
                "model.from = {}, but Session::train reads no weights: use decoder::train_with, which \
                 reads them and then changes the model (for example, adds adapters); a program that has \
                 read them itself sets Config::weights_from to None",
                from.display()
            ),
        })
    }

    /// As [`Session::train`]; `init` sets the values of a new run's model, and adds messages to
    /// report. `sketch` is the model if it is known without data: its memory is then checked before
    /// there are files.
    pub(crate) fn train_from<M: Model<Batch = TokenBatch> + Generate>(
        self,
        sketch: Option<M>,
        build: impl FnOnce(&Data, Option<&Committed>) -> Result<M>,
        init: impl FnOnce(&M, &Device, &mut Vec<String>) -> Result<()>,
    ) -> Result<Summary> {
        let mut config = self.config.clone();
        if self.schedule.is_some() {
            config.schedule = ScheduleConfig::Own {};
        }
        let config = &config;
        Session { config, ..self }.run(sketch, build, init)
    }

    fn run<M: Model<Batch = TokenBatch> + Generate>(
        mut self,
        sketch: Option<M>,
        build: impl FnOnce(&Data, Option<&Committed>) -> Result<M>,
        init: impl FnOnce(&M, &Device, &mut Vec<String>) -> Result<()>,
    ) -> Result<Summary> {
        let notes = self.check_equal()?;
        self.config.check()?;
        if self.schedule.is_none() {
            self.config.schedule.of_run(self.config.train.steps)?;
        }
        let alone;
        let rank = match self.rank {
            Some(rank) => rank,
            None => {
                alone = LocalRank::alone(self.device)?;
                &alone
            }
        };
        let ranks = RunRanks::new(rank, self.config)?;
        if let Some(sketch) = &sketch {
            freeze_others(sketch, &self.config.train.only)?;
        }
        if self.optimizer.is_none() {
            memory::check(sketch.as_ref(), self.config, self.device, &ranks)?;
        }
        let opened = Opened::new(self.config, &self.run_dir, &self.resume, &ranks)?;
        let config = self.config;
        ranks.on_mesh(|| {
            self.events.report(Event::ConfigurationStarted { config })?;
            let model = build(&opened.data, opened.start.checkpoint())?;
            freeze_others(&model, &config.train.only)?;
            let parts = run::Parts { opened, model, init, ranks: ranks.clone(), notes };
            run::train(self, parts)
        })
    }

    /// Checks that all ranks train the same run. Returns messages to report.
    fn check_equal(&self) -> Result<Vec<String>> {
        let Some(rank) = self.rank else {
            return Ok(Vec::new());
        };
        let mut settings = self.config.shared()?;
        let last = self.stop_after.unwrap_or(self.config.train.steps);
        let has_own_optimizer = self.optimizer.is_some();
        settings.insert("stop_after".into(), last.to_string().into());
        settings.insert("has_own_optimizer".into(), has_own_optimizer.into());
        if let Ok(ScheduleChoice::File(path)) = self.config.pipeline.choice() {
            // Where it is may differ.
            let content = match fs::read(&path) {
                Ok(bytes) => format!("a file with digest {:016x}", XxHash3_64::oneshot(&bytes)),
                Err(error) => format!("{}: {error}", path.display()),
            };
            settings["pipeline"]["schedule"] = content.into();
        }
        weigh(check_equal(rank, &settings)?, self.config.train.reduction)
    }
}

/// Freezes the parameters whose names none of the patterns of `train.only` matches.
fn freeze_others(model: &impl Model, only: &[String]) -> Result<()> {
    let patterns = only.iter().map(|pattern| parse(pattern));
    let patterns = patterns.collect::<Result<Vec<_>>>()?;
    if patterns.is_empty() {
        return Ok(());
    }
    let params = model.params();
    let names: Vec<&str> = params.iter().map(Param::name).collect();
    for pattern in &patterns {
        matched(pattern, &names).map_err(|error| error.context("train.only"))?;
    }
    for param in &params {
        if !patterns.iter().any(|pattern| pattern.matches(param.name())) {
            param.freeze();
        }
    }
    Ok(())
}

/// Loss or gradient norm is not finite: details of an error that all ranks return.
#[derive(Debug, Clone, PartialEq)]
pub struct Diverged {
    /// The step.
    pub step: u64,
    /// Its loss.
    pub loss: f64,
    /// Its gradient norm.
    pub grad_norm: f64,
    /// The newest checkpoint.
    pub checkpoint: Option<PathBuf>,
}

impl fmt::Display for Diverged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Diverged { step, loss, grad_norm, checkpoint } = self;
        write!(
            f,
            "step {step} diverged: loss {loss}, gradient norm {grad_norm}; lower \
             optimizer.learning_rate, or raise schedule.warmup_steps; "
        )?;
        match checkpoint {
            Some(path) => write!(f, "the last checkpoint is {}", path.display()),
            None => f.write_str("no checkpoint was saved"),
        }
    }
}

/// The result of a run, the same on all ranks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Steps done.
    pub step: u64,
    /// Steps of the whole run.
    pub steps: u64,
    /// The last checkpoint.
    pub checkpoint: PathBuf,
    /// The plot of the loss, if any step was recorded and the feature `plots` is on.
    pub plot: Option<PathBuf>,
    /// The last validation loss, in nats per token.
    pub val_loss: Option<f64>,
    /// The last validation loss, in bits per byte.
    pub val_bits_per_byte: Option<f64>,
    /// Whether the training text has conversations.
    pub has_conversations: bool,
}
