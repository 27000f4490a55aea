//! The whole configuration of a run: TOML tables as structs, every key with a default.
//!
//! The default configuration is also the schema: [`Config::read`] accepts exactly the keys it has,
//! with values of the same TOML type. `optimizer.name` and `schedule.kind` choose the keys of their
//! tables. A run writes its resolved configuration, defaults included,
//! with [`Config::to_toml`].
//!
//! The model's own tables, such as `[model]`, have a type of their own: [`ModelTables`].

mod check;
mod choice;
mod dtype;
pub mod keys;
mod optimizer;
mod parallel;
mod pipeline;
mod read;
mod schedule;
mod setting;
mod sources;
mod suggest;
mod tables;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use check::{Violation, Violations};
pub use dtype::ComputeDType;
pub use optimizer::{Algorithm, OptimizerConfig};
pub use parallel::{
    AttentionChoice, CapacityChoice, Degree, DispatchChoice, HomeChoice, ParallelTable,
};
pub(crate) use pipeline::ScheduleChoice;
pub use pipeline::{Balance, PipelineTable};
pub(crate) use read::not_toml;
pub use schedule::ScheduleConfig;
pub use sources::Override;
pub use tables::{Meaning, ModelTables, NoTables};
/// The TOML values of [`Config::tables`] and [`ModelTables::defaults`].
pub use toml;

/// A resolved configuration.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    /// The tables of the model, with every default. [`Config::model_tables`] gives them their type.
    #[serde(flatten)]
    pub tables: toml::Table,
    /// The folder whose weights a new run starts with ([`ModelTables::weights_from`]). A program
    /// that reads them itself sets this to `None`.
    #[serde(skip)]
    pub weights_from: Option<PathBuf>,
    /// Text and tokenizer.
    pub data: DataConfig,
    /// Steps, batches, dtype, seed.
    pub train: TrainConfig,
    /// How ranks share the work.
    pub parallel: ParallelTable,
    /// How the model is cut into stages.
    pub pipeline: PipelineTable,
    /// The optimizer.
    pub optimizer: OptimizerConfig,
    /// The learning rate schedule.
    pub schedule: ScheduleConfig,
    /// When to save, and how many checkpoints to keep.
    pub checkpoint: CheckpointConfig,
    /// Text generated during training.
    pub sample: SampleConfig,
    /// Output and validation.
    pub log: LogConfig,
}

/// `[data]`: text and tokenizer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DataConfig {
    /// Files, folders and globs. Empty: the default text, the Rust sources of meshgrad's
    /// dependencies.
    pub paths: Vec<String>,
    /// The tokenizer.
    pub tokenizer: TokenizerChoice,
    /// Fraction of the text that is held out for validation, in [0, 1). Not used with `validation`.
    pub val_fraction: f64,
    /// Files, folders and globs of the validation text. Empty: a fraction of the training text.
    pub validation: Vec<String>,
    /// Several training texts with weights, in place of `paths`.
    pub sources: Vec<SourceConfig>,
    /// With conversations: what happens to a document that is longer than a sequence.
    pub too_long: TooLong,
}

/// `data.too_long`: what happens to a document that is longer than `train.seq_len`, in data with
/// conversations. Other text is always divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TooLong {
    /// It is an error.
    #[default]
    Refuse,
    /// It is cut into documents of at most `train.seq_len` tokens.
    Cut,
}

/// A table of `[[data.sources]]`: a training text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceConfig {
    /// Files, folders and globs.
    pub paths: Vec<String>,
    /// The share of sequences that come from this source, relative to the other weights.
    #[serde(default = "one")]
    pub weight: f64,
}

fn one() -> f64 {
    1.0
}

impl Default for DataConfig {
    fn default() -> Self {
        Self {
            paths: Vec::new(),
            tokenizer: TokenizerChoice::Bpe(4096),
            val_fraction: 0.02,
            validation: Vec::new(),
            sources: Vec::new(),
            too_long: TooLong::default(),
        }
    }
}

/// `data.tokenizer`: `"byte"`, `"bpe:N"` or the path of a `tokenizer.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum TokenizerChoice {
    /// One id per byte and one for the end of a document: 257 ids.
    Byte,
    /// A byte-level BPE with this many ids, trained once on the training text.
    Bpe(usize),
    /// A `tokenizer.json` of the Hugging Face tokenizers library.
    File(PathBuf),
}

impl TryFrom<String> for TokenizerChoice {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let hint = "use \"byte\", \"bpe:4096\" or the path of a tokenizer.json";

        if text == "byte" {
            return Ok(Self::Byte);
        }
        if let Some(size) = text.strip_prefix("bpe:") {
            let size = size.parse();
            return size.map(Self::Bpe).map_err(|_| format!("`{text}` has no size; {hint}"));
        }
        if text.ends_with(".json") {
            return Ok(Self::File(PathBuf::from(text)));
        }
        Err(format!("unknown tokenizer `{text}`; {hint}"))
    }
}

impl From<TokenizerChoice> for String {
    fn from(choice: TokenizerChoice) -> Self {
        match choice {
            TokenizerChoice::Byte => "byte".to_owned(),
            TokenizerChoice::Bpe(size) => format!("bpe:{size}"),
            TokenizerChoice::File(path) => path.to_string_lossy().into_owned(),
        }
    }
}

/// `[train]`: steps, batches, dtype, seed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainConfig {
    /// Optimizer steps.
    pub steps: u64,
    /// Sequences per step over all ranks.
    pub batch_size: usize,
    /// Sequences per forward pass over all ranks; gradients of `batch_size / micro_batch_size`
    /// passes are summed.
    /// [`Config::parse`] sets it to `batch_size` if it is left out.
    pub micro_batch_size: usize,
    /// Tokens per sequence.
    pub seq_len: usize,
    /// The dtype of activations and of the weights' compute copies. Master weights are f32, and
    /// so is optimizer state unless `optimizer.state_dtype` says otherwise.
    pub dtype: ComputeDType,
    /// The seed of initial values, sample order and text generation.
    pub seed: u64,
    /// Whether to save only each layer's input and recompute the layer in the backward pass.
    pub activation_checkpointing: bool,
    /// Whether to refuse to start a run that needs more memory than is free.
    pub check_memory: bool,
    /// The order in which sequences are summed.
    pub reduction: SumOrder,
    /// Patterns of the names of the parameters that are trained; all others are frozen. Empty: all are
    /// trained.
    pub only: Vec<String>,
}

/// `train.reduction`: the order in which the gradients and losses of sequences are summed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SumOrder {
    /// The fastest one. It depends on microbatches and ranks.
    #[default]
    Sum,
    /// A fixed binary tree over the sequences of a step, each of which has a pass of its own on its
    /// rank. The result has the same bits for any number of data-parallel ranks that is a power of
    /// two, with auxiliary losses for equal numbers only.
    Tree,
}

impl TrainConfig {
    /// The sequences of a pass, over all ranks. `parts` is the number of data-parallel ranks.
    pub fn rows_of_pass(&self, parts: usize) -> usize {
        match self.reduction {
            SumOrder::Sum => self.micro_batch_size,
            SumOrder::Tree => parts,
        }
    }
}

impl Default for TrainConfig {
    fn default() -> Self {
        Self {
            steps: 300,
            batch_size: 8,
            micro_batch_size: 8,
            seq_len: 256,
            dtype: ComputeDType::F32,
            seed: 1,
            activation_checkpointing: false,
            check_memory: true,
            reduction: SumOrder::Sum,
            only: Vec::new(),
        }
    }
}

/// `[checkpoint]`: when to save, and how many checkpoints to keep.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CheckpointConfig {
    /// Steps between checkpoints; 0 saves only at the end.
    pub every: u64,
    /// The number of newest checkpoints to keep; 0 keeps all.
    pub keep: usize,
    /// Whether the contents of a checkpoint are compared with its digests when the run resumes, and
    /// NaN or infinite weights are errors. Manifest and sizes are always checked.
    pub verify: bool,
}

impl Default for CheckpointConfig {
    fn default() -> Self {
        Self { every: 200, keep: 2, verify: true }
    }
}

/// `[sample]`: text generated during training.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SampleConfig {
    /// Steps between samples, with one at the end; 0 never samples.
    pub every: u64,
    /// The prompt. Empty: the start of a line of the held-out text.
    pub prompt: String,
    /// Tokens to generate.
    pub tokens: usize,
    /// Divides the logits. With 0, the most likely token is always chosen.
    pub temperature: f64,
    /// The number of most likely tokens to sample from; 0 means all.
    pub top_k: usize,
}

impl Default for SampleConfig {
    fn default() -> Self {
        Self { every: 100, prompt: String::new(), tokens: 64, temperature: 0.8, top_k: 40 }
    }
}

/// `[log]`: output and validation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LogConfig {
    /// Steps between progress lines.
    pub every: u64,
    /// Steps between validations; 0 validates only at the end.
    pub val_every: u64,
    /// Batches per validation; 0 uses the whole validation part.
    pub val_batches: usize,
    /// Whether metrics are also written for TensorBoard.
    pub tensorboard: bool,
    /// The step of which each rank writes a trace; 0 for none.
    pub trace_step: u64,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { every: 10, val_every: 50, val_batches: 8, tensorboard: true, trace_step: 0 }
    }
}
