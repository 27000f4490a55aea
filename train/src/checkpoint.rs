//! Checkpoints of a run: saving and loading.
//!
//! ```text
//! step-000600/
//!   model.safetensors, config.json   the parameters and the model's own files; for a decoder this is a
//!                                    Hugging Face folder
//!   adapter_model.safetensors, adapter_config.json
//!                                    an adapter, as PEFT stores it; the weights that it updates are in
//!                                    the folder that the run started from, not in model.safetensors
//!   generation_config.json           the tokens that end a text, and how text is generated
//!   tokenizer.json                   its tokenizer
//!   trainer/config.toml              the whole configuration of the run, with the model's tables
//!   trainer/state.json               step, seed and digest of the text
//!   trainer/optimizer.json           the optimizer's name, and the names of its state
//!   trainer/exp_avg/, exp_avg_sq/    the optimizer's state, here AdamW's, with the tensor names of
//!                                    model.safetensors
//!   trainer/ema/                     the averages of the weights, if they are averaged
//!   trainer/buffers/                 the buffers, such as router biases, if the model has any
//!   manifest.json                    sizes and digests; written last
//! ```

mod end_of_text;
mod settings;

use std::collections::HashSet;
use std::fmt;
use std::path::Path;

use meshgrad_autograd::{Module, Param};
use meshgrad_ckpt::mapping::{Mapping, Report};
use meshgrad_ckpt::ranks::ShardedSnapshot;
use meshgrad_ckpt::{Committed, Folder, step_name};
use meshgrad_error::{ensure, error};
use meshgrad_models::folder::{self, NamedTensor, StoredValues};
use meshgrad_models::load::LoadOptions;
use meshgrad_models::lora::LoraConfig;
use meshgrad_models::{Model, hf};
use meshgrad_runtime::Device;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use toml::Table;

use crate::config::Config;
use crate::optim;
use crate::optimizer::{Optimizer, SKIPPED};
use crate::tokenizer::Tokenizer;
use crate::{Error, Result};
use end_of_text::Ends;
pub use end_of_text::ends_of_text;
pub use settings::{Change, check_config};

/// The folder of a checkpoint that has the averages of the weights, if the run keeps them.
pub const AVERAGES: &str = "trainer/ema";
const BUFFERS: &str = "trainer/buffers";
const STATE: &str = "trainer/state.json";
const OPTIMIZER: &str = "trainer/optimizer.json";
const CONFIG: &str = "trainer/config.toml";
const TOKENIZER: &str = "tokenizer.json";

/// The training state other than tensors. Everything else follows from it and the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunState {
    /// Steps done. The next batch, learning rate and random numbers follow from it.
    pub step: u64,
    /// The seed of the run.
    pub seed: u64,
    /// XXH3-128 of the text, in hexadecimal. A run resumes only with the text it started with.
    pub data_digest: String,
    /// The digest of how conversations are packed
    /// ([`Order::packing_digest`](crate::sampler::Order::packing_digest)); `None` for windows of text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packing_digest: Option<String>,
}

/// The optimizer that a checkpoint was saved with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedOptimizer {
    name: String,
    /// The names of its state; each is a folder of the checkpoint.
    state: Vec<String>,
}

impl SavedOptimizer {
    fn of(optimizer: &Optimizer) -> SavedOptimizer {
        let names = optimizer.state().into_iter().map(|state| state.name.to_owned());
        SavedOptimizer { name: optimizer.name().to_owned(), state: names.collect() }
    }

    /// Whether `checkpoint` was saved with this optimizer.
    fn check(&self, checkpoint: &Committed) -> Result<()> {
        let saved: SavedOptimizer = read_json(checkpoint, OPTIMIZER)?;
        let differs = |what, saved, now| other_run(checkpoint, what, saved, now);
        if saved.name != self.name {
            return Err(differs("the optimizer", saved.name, self.name.clone()));
        }
        if saved.state != self.state {
            let listed = |state: &[String]| state.join(", ");
            let (saved, now) = (listed(&saved.state), listed(&self.state));
            return Err(differs("the optimizer state", saved, now));
        }
        Ok(())
    }
}

/// What a checkpoint stores.
pub struct SavedRun<'s, M> {
    /// The configuration of the run.
    pub config: &'s Config,
    /// The model, with its values.
    pub model: &'s M,
    /// The optimizer, with its state.
    pub optimizer: &'s Optimizer,
    /// The tokenizer.
    pub tokenizer: &'s Tokenizer,
    /// The rest.
    pub state: &'s RunState,
    /// Whether this rank's part of the model or that of another rank has buffers.
    pub has_buffers: bool,
}

/// The text files and the tensors of a checkpoint.
struct Contents {
    texts: Vec<(String, String)>,
    /// By folder, with their names there.
    tensors: Vec<(String, Vec<NamedTensor>, Mapping)>,
}

impl<M: Model> SavedRun<'_, M> {
    fn contents(&self, run: &Path) -> Result<Contents> {
        let (model, at) = (self.model, run.join(step_name(self.state.step)));
        let mut texts = end_of_text::declared(hf::all_files(model)?, Ends::of(self.tokenizer));
        let mut add = |name: &str, text: String| texts.push((name.to_owned(), text));
        add(TOKENIZER, self.tokenizer.to_json()?);
        add(STATE, json(self.state, &at)?);
        add(OPTIMIZER, json(&SavedOptimizer::of(self.optimizer), &at)?);
        add(CONFIG, self.config.to_toml()?);

        let mut tensors = Vec::new();
        for (path, values, mapping) in hf::stored_parts(model)? {
            tensors.push((path.to_owned(), folder::values(&values)?, mapping));
        }
        for part in self.optimizer.state() {
            let (folder, mapping) = (folder_of(&part), mapping_of(&part, model)?);
            tensors.push((folder, folder::beside(model, part.tensors)?, mapping));
        }
        if self.has_buffers {
            tensors.push((BUFFERS.to_owned(), folder::buffers(model)?, folder::by_name()?));
        }
        Ok(Contents { texts, tensors })
    }
}

/// A copy of what this rank has of everything that a checkpoint stores. All ranks write it to `run`
/// together with [`ShardedSnapshot::save`], which also takes the error; with a
/// [`Saver`](meshgrad_ckpt::Saver) training continues meanwhile. The files are the same on any
/// mesh.
///
/// # Errors
/// When a value cannot be read.
pub fn snapshot<M: Model>(run: &Path, saved: &SavedRun<'_, M>) -> Result<ShardedSnapshot<'static>> {
    let mut snapshot = ShardedSnapshot::new(run, &step_name(saved.state.step));
    let Contents { texts, tensors } = saved.contents(run)?;
    for (folder, tensors, mapping) in tensors {
        folder::add_shard_copies(&tensors, mapping, &mut snapshot, &folder)?;
    }
    for (name, text) in texts {
        snapshot.add(&name, text);
    }
    snapshot.set_about("step", saved.state.step);
    Ok(snapshot)
}

/// Checks that the digest of the text and the tokenizer are those of the run that saved
/// `checkpoint`.
///
/// # Errors
/// When one is not; when it is not a checkpoint of a run; when a tokenizer cannot be read or used.
pub fn check_data(checkpoint: &Committed, digest: u128, tokenizer: &Tokenizer) -> Result<()> {
    let saved = read_state(checkpoint)?.data_digest;
    let now = format!("{digest:032x}");
    if saved != now {
        let [saved, now] = [saved, now].map(|digest| format!("of a text with xxh3 {digest}"));
        return Err(other_run(checkpoint, &text_keys(checkpoint)?, saved, now));
    }
    let shown = |of: &Tokenizer| -> Result<String> {
        let (tokens, digest) = (of.vocab_size(), of.digest()?);
        Ok(format!("of {tokens} tokens (xxh3 {digest:032x})"))
    };
    let saved = Tokenizer::from_file(&checkpoint.path().join(TOKENIZER))?;
    let (saved, now) = (shown(&saved)?, shown(tokenizer)?);
    match saved == now {
        true => Ok(()),
        false => Err(other_run(checkpoint, "data.tokenizer", saved, now)),
    }
}

/// Checks that `saved`, the state in `checkpoint`, is of a run whose rows have the digest `now`.
///
/// # Errors
/// When they have another one.
pub(crate) fn check_packing(
    checkpoint: &Committed,
    saved: &RunState,
    now: Option<&str>,
) -> Result<()> {
    let saved = saved.packing_digest.as_deref();
    let shown = |digest: Option<&str>| match digest {
        None => "in windows of the text".to_owned(),
        Some(digest) => format!("packed with xxh3 {digest}"),
    };
    match saved == now {
        true => Ok(()),
        false => Err(other_run(checkpoint, "documents", shown(saved), shown(now))),
    }
}

/// The keys that name the texts of the run that saved `checkpoint`, as in `data.sources`.
fn text_keys(checkpoint: &Committed) -> Result<String> {
    let config = read_config(checkpoint)?;
    let data = config.get("data");
    let is_set = |key: &&str| {
        let list = data.and_then(|data| data.get(key)?.as_array());
        list.is_some_and(|list| !list.is_empty())
    };
    let texts = ["paths", "sources"].into_iter().find(is_set);
    let validation = Some("validation").filter(is_set);
    let keys = [Some(texts.unwrap_or("paths")), validation];
    let keys: Vec<String> = keys.into_iter().flatten().map(|key| format!("data.{key}")).collect();
    Ok(keys.join(" or "))
}

fn other_run(checkpoint: &Committed, what: &str, saved: String, now: String) -> Error {
    error!(
        Invalid,
        "{} was saved with {what} {saved}, but it is now {now}; change it back, or start from scratch \
         with --resume never or another --run-dir",
        checkpoint.path().display()
    )
}

/// How a checkpoint is read.
#[derive(Clone, Copy)]
pub struct ReadOptions<'a> {
    /// Whether contents are compared with the digests of the manifest as they are read, and NaN or
    /// infinite weights are errors. Default `true`.
    pub verify: bool,
    /// Called after each read, from any thread, with the bytes read so far and the total,
    /// separately for each part.
    pub progress: &'a (dyn Fn(u64, u64) + Sync),
    /// Whether tensors of a Hugging Face folder that the model does not have are ignored
    /// ([`Loader::ignore_unused`](meshgrad_models::hf::Loader::ignore_unused)). Default `false`.
    pub ignore_unused: bool,
    /// Whether the model is a part of that in the checkpoint, as on a rank of a pipeline. Default
    /// `false`.
    pub part: bool,
    /// Called with messages for the user, such as how many tensors were ignored.
    pub note: &'a dyn Fn(String),
}

impl Default for ReadOptions<'_> {
    fn default() -> Self {
        ReadOptions {
            verify: true,
            progress: &|_, _| {},
            ignore_unused: false,
            part: false,
            note: &|_| {},
        }
    }
}

impl<'a> ReadOptions<'a> {
    /// Options for a part of `checkpoint` that may hold NaN and infinite values.
    fn of_state(self, checkpoint: &'a Committed) -> LoadOptions<'a> {
        LoadOptions {
            progress: self.progress,
            sealed_by: self.verify.then_some(checkpoint),
            ..LoadOptions::default()
        }
    }

    fn read(
        self,
        tensors: &[NamedTensor],
        folder: &Folder,
        mapping: &Mapping,
        options: &LoadOptions<'_>,
    ) -> Result<()> {
        let read = if self.part { folder::read_part } else { folder::read };
        read(tensors, folder, mapping, options).map(drop)
    }

    /// Options for weights.
    fn of_weights(self, checkpoint: &'a Committed) -> LoadOptions<'a> {
        LoadOptions { only_finite: self.verify, ..self.of_state(checkpoint) }
    }
}

/// The newest checkpoint in `run` whose manifest and file sizes are right.
///
/// # Errors
/// When the folder cannot be read.
pub fn newest(run: &Path) -> Result<Option<Committed>> {
    Ok(meshgrad_ckpt::newest(run)?.committed)
}

/// The folder of the optimizer's state of this name.
fn folder_of(state: &optim::OptimizerState) -> String {
    format!("trainer/{}", state.name)
}

/// How a state is stored: as the parameters that it is named after, if it is.
fn mapping_of(state: &optim::OptimizerState, model: &impl Model) -> Result<Mapping> {
    match state.name == SKIPPED {
        true => folder::by_name(),
        false => model.stored_as(),
    }
}

/// Loads a model for inference: the buffers of a checkpoint, and the averages of its parameters or,
/// if the run has none, the parameters. The run validates and samples with the same weights.
/// `model` must have the parameters and buffers of the run; [`decoder::model`](crate::decoder::model)
/// builds such a model from the checkpoint.
///
/// ```no_run
/// # use meshgrad_runtime::Device;
/// # use meshgrad_train::config::{Config, NoTables as Tables};
/// # use meshgrad_train::tokenizer::Tokenizer;
/// # fn load<M: meshgrad_models::Model>(new: fn(usize, &Tables) -> M) -> meshgrad_train::Result<()> {
/// use meshgrad_ckpt::Committed;
/// use meshgrad_train::checkpoint;
///
/// let saved = Committed::open("runs/mine/step-000300")?;
/// let config = Config::read::<Tables>(Some(&saved.path().join("trainer/config.toml")), &[])?;
/// let tokenizer = Tokenizer::from_file(&saved.path().join("tokenizer.json"))?;
/// let model = new(tokenizer.vocab_size(), &config.model_tables()?);
/// checkpoint::load_model(&saved, &model, &Device::cpu())?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// When a tensor is missing, unexpected, damaged or of another shape.
pub fn load_model(checkpoint: &Committed, model: &impl Model, device: &Device) -> Result<()> {
    let options = ReadOptions::default();
    folder::check_texts(checkpoint)?;
    load_params(checkpoint, model, device, options)?;
    init_buffers(model, device, 0)?;
    read_buffers(checkpoint, model, options)?;
    match has_averages(checkpoint.path()) {
        true => load_averages(checkpoint, model, options),
        false => Ok(()),
    }
}

/// Loads the parameters of a checkpoint to `device`.
///
/// # Errors
/// When a tensor is missing, unexpected, damaged or of another shape.
pub fn load_params(
    checkpoint: &Committed,
    model: &impl Model,
    device: &Device,
    options: ReadOptions<'_>,
) -> Result<()> {
    each_part(checkpoint, model, |values, stored, mapping| {
        let load = options.of_weights(checkpoint);
        match options.part {
            true => folder::fill_part(values, device, stored, mapping, &load).map(drop),
            false => folder::fill(values, device, stored, mapping, &load).map(drop),
        }
    })
}

/// Calls `read` with the values, the tensors and the mapping of each part of a checkpoint.
fn each_part(
    checkpoint: &Committed,
    model: &impl Model,
    read: impl Fn(&StoredValues, &Folder, &Mapping) -> Result<()>,
) -> Result<()> {
    check_adapter(checkpoint, model)?;
    for (path, values, mapping) in hf::stored_parts(model)? {
        let stored = match path {
            "" => Folder::open(checkpoint.path())?,
            file => Folder::open_file(checkpoint.path().join(file))?,
        };
        read(&values, &stored, &mapping).map_err(|error| or_other_model(checkpoint, error))?;
    }
    Ok(())
}

/// Checks that the model and the checkpoint have the same adapter, or none.
fn check_adapter(checkpoint: &Committed, model: &impl Model) -> Result<()> {
    let saved = hf::read_adapter(checkpoint.path())?;
    let sizes = |of: &LoraConfig| format!("rank {} and scale {:?}", of.rank, of.scale());
    let shown = |of: Option<&LoraConfig>| match of {
        Some(of) => format!("an adapter of {}", sizes(of)),
        None => "no adapter".to_owned(),
    };
    let [saved, now] = [saved.as_ref(), model.adapter()].map(shown);
    ensure!(
        saved == now,
        Invalid,
        "{} was saved with {saved}, but the model of this program has {now}; resume it with the program and \
         the [adapter] that started the run, or start a new run with its merged weights (--from {})",
        checkpoint.path().display(),
        checkpoint.path().display()
    );
    Ok(())
}

/// Another error with a way out, if the tensors do not match.
fn or_other_model(checkpoint: &Committed, error: Error) -> Error {
    let Some(report) = error.details::<Report>() else {
        return error;
    };
    // The kind is not `Mismatch`: damage of the checkpoint is not the cause.
    error!(
        Invalid,
        "{} is of another model than this program builds; use the program that started the run: {report}",
        checkpoint.path().display()
    )
}

/// Loads the optimizer state and the buffers of a checkpoint. If it has no buffers, those of the
/// model keep their values.
///
/// # Errors
/// For another optimizer; when a tensor is missing, unexpected, damaged or
/// of another shape.
pub fn load_state(
    checkpoint: &Committed,
    model: &impl Model,
    optimizer: &Optimizer,
    options: ReadOptions<'_>,
) -> Result<RunState> {
    let state = read_state(checkpoint)?;
    SavedOptimizer::of(optimizer).check(checkpoint)?;
    for part in optimizer.state() {
        let (name, mapping) = (folder_of(&part), mapping_of(&part, model)?);
        let load = match name == AVERAGES {
            true => options.of_weights(checkpoint),
            false => options.of_state(checkpoint),
        };
        let stored = Folder::open(checkpoint.path().join(name))?;
        let tensors = folder::beside(model, part.tensors)?;
        options.read(&tensors, &stored, &mapping, &load)?;
    }
    read_buffers(checkpoint, model, options)?;
    Ok(state)
}

/// Replaces the whole state of a run by that of `checkpoint`. Parameters and buffers must be
/// allocated; their values do not matter.
///
/// # Errors
/// As [`load_state`]. The state is then unspecified.
pub(crate) fn restore(
    checkpoint: &Committed,
    model: &impl Model,
    optimizer: &Optimizer,
    options: ReadOptions<'_>,
) -> Result<RunState> {
    each_part(checkpoint, model, |values, stored, mapping| {
        let tensors = folder::values(values)?;
        options.read(&tensors, stored, mapping, &options.of_weights(checkpoint))
    })?;
    model.params().iter().for_each(Param::rows_written);
    load_state(checkpoint, model, optimizer, options)
}

/// Whether the checkpoint `folder` has averages of the weights.
pub fn has_averages(folder: &Path) -> bool {
    folder.join(AVERAGES).is_dir()
}

/// Sets each parameter of `model` that the run trained to its average in `checkpoint`.
///
/// # Errors
/// When a tensor is unexpected, damaged or of another shape.
pub fn load_averages(
    checkpoint: &Committed,
    model: &impl Model,
    options: ReadOptions<'_>,
) -> Result<()> {
    let stored = Folder::open(checkpoint.path().join(AVERAGES))?;
    let stored_as = model.stored_as()?;
    let params = folder::params(model)?;
    let names = folder::stored_names(&params, &stored_as)?.into_iter();
    let names = names.filter(|(name, _)| stored.get(name).is_some());
    let averaged: HashSet<String> = names.flat_map(|(_, made_of)| made_of).collect();
    let averaged = params.into_iter().filter(|named| averaged.contains(&named.name));
    let averaged: Vec<NamedTensor> = averaged.collect();
    options.read(&averaged, &stored, &stored_as, &options.of_weights(checkpoint))?;
    model.params().iter().for_each(Param::rows_written);
    Ok(())
}

/// Whether the checkpoint `folder` has buffers.
pub fn has_buffers(folder: &Path) -> bool {
    folder.join(BUFFERS).is_dir()
}

/// Gives the buffers of `model` that have no value their initial one.
pub(crate) fn init_buffers(model: &impl Module, device: &Device, seed: u64) -> Result<()> {
    for buffer in model.buffers() {
        if buffer.value().is_err() {
            buffer.materialize(device, seed)?;
        }
    }
    Ok(())
}

/// Sets the buffers of `model`, which must be allocated, to the values in `checkpoint`, if it has
/// buffers.
///
/// # Errors
/// When a tensor is missing, unexpected, damaged or of another shape.
pub(crate) fn read_buffers(
    checkpoint: &Committed,
    model: &impl Module,
    options: ReadOptions<'_>,
) -> Result<()> {
    if has_buffers(checkpoint.path()) {
        let stored = Folder::open(checkpoint.path().join(BUFFERS))?;
        let (buffers, by_name) = (folder::buffers(model)?, folder::by_name()?);
        options.read(&buffers, &stored, &by_name, &options.of_state(checkpoint))?;
    }
    Ok(())
}

/// Reads the training state of a checkpoint.
///
/// # Errors
/// When it is not a checkpoint of a run.
pub fn read_state(checkpoint: &Committed) -> Result<RunState> {
    read_json(checkpoint, STATE)
}

fn json(value: &impl Serialize, checkpoint: &Path) -> Result<String> {
    let text = serde_json::to_string_pretty(value);
    Ok(text.map_err(|problem| bad_state(checkpoint, problem))? + "\n")
}

fn read_json<T: DeserializeOwned>(checkpoint: &Committed, file: &str) -> Result<T> {
    let text = read_text(checkpoint, file)?;
    serde_json::from_str(&text).map_err(|problem| bad_state(&checkpoint.path().join(file), problem))
}

/// The configuration of the run that saved `checkpoint`.
fn read_config(checkpoint: &Committed) -> Result<Table> {
    let text = read_text(checkpoint, CONFIG)?;
    toml::from_str(&text)
        .map_err(|problem| bad_state(&checkpoint.path().join(CONFIG), problem.message()))
}

fn read_text(checkpoint: &Committed, file: &str) -> Result<String> {
    let path = checkpoint.path().join(file);
    std::fs::read_to_string(&path).map_err(|problem| bad_state(&path, problem))
}

/// The error for the trainer's part of a checkpoint.
fn bad_state(path: &Path, problem: impl fmt::Display) -> Error {
    let path = path.display();
    error!(Invalid, "{path}: {problem}; use a checkpoint that `meshgrad train` saved")
}
