//! The error of this crate.

use std::fmt;
use std::path::{Path, PathBuf};

use meshgrad_ckpt::mapping::Report;

use crate::config::ConfigError;
use crate::corpus::CorpusError;
use crate::metrics::MetricsError;
use crate::optim::OptimError;
#[cfg(feature = "plots")]
use crate::plot::PlotError;
use crate::report::format::bytes;
use crate::run_folder::RunFolderError;
use crate::sampler::SamplerError;
use crate::sampling::OutOfRange;
use crate::schedule::ScheduleError;
use crate::stop::EmptyStop;
use crate::tokenizer::TokenizerError;
use crate::tokens::TokensError;

/// A result with a [`TrainError`].
pub type Result<T, E = TrainError> = std::result::Result<T, E>;

/// An error of training. Errors of a part keep the message of that part.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// The configuration cannot be read or is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The text cannot be read.
    #[error(transparent)]
    Corpus(#[from] CorpusError),
    /// The tokenizer cannot be trained, read or used.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The token cache cannot be written or read.
    #[error(transparent)]
    Tokens(#[from] TokensError),
    /// The text is too short for one sequence.
    #[error(transparent)]
    Sampler(#[from] SamplerError),
    /// `metrics.jsonl` cannot be written or read.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// `loss.svg` cannot be drawn.
    #[cfg(feature = "plots")]
    #[error(transparent)]
    Plot(#[from] PlotError),
    /// The run folder cannot be used.
    #[error(transparent)]
    RunFolder(#[from] RunFolderError),
    /// The configuration of an optimizer is invalid, or its parts have changed.
    #[error(transparent)]
    Optim(#[from] OptimError),
    /// The phases of the schedule do not fit the run.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// The model, an op or the tape failed, or a checkpoint cannot be written or read.
    #[error(transparent)]
    Other(#[from] meshgrad_error::Error),
    /// The model or its state cannot be written or read.
    #[error(transparent)]
    Folder(#[from] meshgrad_models::folder::Error),
    /// The degrees of `[parallel]` do not fit each other or the number of ranks.
    #[error("[parallel]: {0}")]
    Parallel(#[from] meshgrad_dist::parallel::Violations),
    /// This rank does not see a file that rank 0 has.
    #[error(
        "{} is missing or not that of rank 0; use a run folder on a file system that all ranks share",
        path.display()
    )]
    NotShared {
        /// The file or folder.
        path: PathBuf,
    },
    /// Another rank failed.
    #[error("rank {rank}: {message}")]
    OnRank {
        /// The rank.
        rank: usize,
        /// Its error.
        message: String,
    },
    /// Ranks with different settings, programs or data.
    #[error(
        "the ranks of a run must be equal:\n  {}\nstart all ranks with the same program, configuration \
         and data",
        differences.join("\n  ")
    )]
    Unequal {
        /// Key, values and ranks of every difference.
        differences: Vec<String>,
    },
    /// `[model]` is invalid.
    #[error("[model]: {message}")]
    ModelTable {
        /// The problem.
        message: String,
    },
    /// A step without sequences.
    #[error("a step needs at least one sequence: raise train.batch_size")]
    NoBatch,
    /// The validation text has no label that the loss counts.
    #[error(
        "no token of the validation text counts towards the loss; add text or conversations to it, or \
         lower train.seq_len"
    )]
    NothingToValidate,
    /// A text that is too short to evaluate.
    #[error(
        "the text has fewer than two tokens, so there is nothing to predict; use a longer text"
    )]
    NoTokens,
    /// An empty prompt, for a tokenizer without a token that starts a document.
    #[error(
        "the prompt is empty and the tokenizer has no token that starts a document; give a prompt"
    )]
    EmptyPrompt,
    /// A parameter of sampling that is out of range.
    #[error(transparent)]
    Sampling(#[from] OutOfRange),
    /// A string that cannot end a text.
    #[error(transparent)]
    Stop(#[from] EmptyStop),
    /// A tokenizer with more tokens than the model.
    #[error(
        "the tokenizer has {tokenizer} tokens but model.vocab_size is {model}: \
         leave model.vocab_size out, or raise it to {tokenizer}"
    )]
    Vocabulary {
        /// Tokens of the tokenizer.
        tokenizer: usize,
        /// Tokens of the model.
        model: usize,
    },
    /// A checkpoint of another run.
    #[error(
        "{} was saved with {what} {saved}, but it is now {now}; \
         change it back, or start from scratch with --resume never or another --run-dir",
        checkpoint.display()
    )]
    OtherRun {
        /// The checkpoint.
        checkpoint: PathBuf,
        /// What differs.
        what: String,
        /// Its value in the checkpoint.
        saved: String,
        /// Its value now.
        now: String,
    },
    /// A checkpoint of another model than the program builds.
    #[error("{}", other_model(checkpoint, *adapters, report))]
    OtherModel {
        /// The checkpoint.
        checkpoint: PathBuf,
        /// Projections that have low-rank updates there.
        adapters: usize,
        /// The tensors that differ.
        report: Box<Report>,
    },
    /// A session that does not read the weights that the configuration names.
    #[error(
        "model.from = {}, but Session::train reads no weights: use qwen3::train_with, which reads them \
         and then changes the model (for example, adds adapters); a program that has read them itself \
         sets Config::weights_from to None", from.display()
    )]
    WeightsFrom {
        /// The folder.
        from: PathBuf,
    },
    /// A path without a checkpoint.
    #[error(
        "{} is neither a checkpoint nor a run with checkpoints", at.display()
    )]
    NoCheckpoint {
        /// The path.
        at: PathBuf,
    },
    /// All checkpoints of a run are damaged, or the one that was named is.
    #[error("no checkpoint of {} is intact:\n  {}\n{way_out}", at.display(), problems.join("\n  "))]
    NoneIntact {
        /// The run, or the checkpoint.
        at: PathBuf,
        /// Why each checkpoint cannot be used, the newest first.
        problems: Vec<String>,
        /// What the user can do.
        way_out: String,
    },
    /// A new run was configured from a checkpoint whose tensors are damaged, and the next older
    /// checkpoint has other files.
    #[error(
        "{} is damaged (`meshgrad ckpt verify` shows where), and {} has another {file}; to start \
         from that one, name it: --from {}",
        damaged.display(), older.display(), older.display()
    )]
    OtherFiles {
        /// The checkpoint with damaged tensors.
        damaged: PathBuf,
        /// The older checkpoint.
        older: PathBuf,
        /// The file that differs.
        file: String,
    },
    /// A checkpoint that may be intact, but cannot be read.
    #[error(
        "{source}; the checkpoint may be intact, so older ones are not tried; make it readable, or name \
         another checkpoint"
    )]
    Unreadable {
        /// The cause.
        source: meshgrad_models::folder::Error,
    },
    /// The trainer's part of a checkpoint cannot be read or written.
    #[error("{}: {message}; use a checkpoint that `meshgrad train` saved", path.display())]
    State {
        /// The file.
        path: PathBuf,
        /// The problem.
        message: String,
    },
    /// A subscriber of an event failed.
    #[error("subscriber `{name}` failed at {event}: {source}")]
    Subscriber {
        /// The subscriber.
        name: String,
        /// The event.
        event: String,
        /// Its error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A run that does not fit in memory.
    #[error(
        "training needs {}, but only {} are free on {device}; {}; to train anyway, set \
         train.check_memory = false",
        bytes(*needed), bytes(*free), fitting(fits)
    )]
    Memory {
        /// The device, or `the host`.
        device: String,
        /// The predicted peak, in bytes.
        needed: u64,
        /// Bytes that are free.
        free: u64,
        /// Settings that fit, and their peak.
        fits: Option<(String, u64)>,
    },
    /// Loss or gradient norm is not finite.
    #[error(
        "step {step} diverged: loss {loss}, gradient norm {grad_norm}; lower optimizer.learning_rate, or \
         raise schedule.warmup_steps; {}", last_good(checkpoint.as_deref())
    )]
    NotFinite {
        /// The step.
        step: u64,
        /// Its loss.
        loss: f64,
        /// Its gradient norm.
        grad_norm: f64,
        /// The newest checkpoint.
        checkpoint: Option<PathBuf>,
    },
}

/// Prints the message, because an error that `main` returns is printed with `Debug`.
impl fmt::Debug for TrainError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn other_model(checkpoint: &Path, adapters: usize, report: &Report) -> String {
    let checkpoint = checkpoint.display();
    match adapters {
        0 => format!(
            "{checkpoint} is of another model than this program builds; use the program that started \
             the run: {report}"
        ),
        _ => format!(
            "{checkpoint} has low-rank updates of {adapters} projections, which this program does not \
             add; resume it with the program that started the run, or start a new run with its merged \
             weights (--from {checkpoint})"
        ),
    }
}

fn fitting(fits: &Option<(String, u64)>) -> String {
    match fits {
        Some((settings, needed)) => format!("{settings} needs {}", bytes(*needed)),
        None => "not even train.micro_batch_size=1 with train.activation_checkpointing=true fits; \
                 use a smaller model or a smaller train.seq_len"
            .into(),
    }
}

fn last_good(checkpoint: Option<&Path>) -> String {
    match checkpoint {
        Some(path) => format!("the last checkpoint is {}", path.display()),
        None => "no checkpoint was saved".into(),
    }
}
