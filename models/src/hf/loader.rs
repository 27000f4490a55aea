//! Loads a folder into a model's parameters, on any device.

use std::path::Path;
use std::sync::Arc;

use meshgrad_autograd::{Module, Param};
use meshgrad_ckpt::exec::Stats;
use meshgrad_ckpt::mapping::{AllowedProblems, Problem, Report};
use meshgrad_ckpt::{Committed, Folder};
use meshgrad_error::{Error, Result, ensure, error};
use meshgrad_load::LoadOptions;
use meshgrad_runtime::Device;

use super::adapters::{self, base_folder, read_adapter};
use super::map::Experts;
use super::{foreign, read_text};
use crate::families::{self, FamilyConfig};
use crate::folder::StoredValues;
use crate::lora::is_lora;
use crate::{Decoder, Model, folder};

/// Tensors of Hugging Face folders that do not change what a model computes: the frequencies that
/// old versions of transformers saved, and the layers that predict further tokens.
const WITHOUT_EFFECT: [&str; 3] =
    ["{r:path}.rotary_emb.inv_freq", "model.mtp.{r:path}", "mtp.{r:path}"];

/// Loads the model in `dir` (config.json and safetensors files) to `device`. If `dir` has an adapter, also
/// that of PEFT, the model is the one that it updates, with the adapter.
///
/// # Errors
/// When config.json or adapter_config.json is not valid; for quantized weights; when tensors
/// are missing, unexpected or of another shape, with all of them; when a file is damaged or memory
/// runs out.
pub fn load(dir: &Path, device: &Device) -> Result<Loaded> {
    Loader::new(dir).load(device)
}

/// Reads config.json of `dir`, or of the model that the adapter in `dir` updates.
///
/// # Errors
/// When it cannot be read or is not valid.
pub fn read_config(dir: &Path) -> Result<Arc<dyn FamilyConfig>> {
    let path = base_folder(dir)?.join("config.json");
    let config = families::from_json(&read_text(&path)?);
    config.map_err(|error| error.context(path.display()))
}

/// A loaded model, and how its folder stores experts.
pub struct Loaded {
    /// The model.
    pub model: Decoder,
    /// How the folder stores experts.
    pub experts: Experts,
    /// Bytes that were read and written.
    pub stats: Stats,
    /// As [`Filled::ignored`].
    pub ignored: Vec<String>,
}

/// What [`Loader::fill`] found and read.
#[derive(Clone, Debug)]
pub struct Filled {
    /// How the folder stores experts.
    pub experts: Experts,
    /// Bytes that were read and written.
    pub stats: Stats,
    /// The tensors of the folder that the whole model does not have; see
    /// [`Loader::ignore_unused`]. Empty for a part of a model.
    pub ignored: Vec<String>,
}

/// The line that tells a user which tensors of `dir` were ignored, if any.
pub fn ignored_note(dir: &Path, ignored: &[String]) -> Option<String> {
    let first = ignored.first()?.escape_debug();
    let tensors = match ignored.len() {
        1 => "1 tensor".to_owned(),
        count => format!("{count} tensors"),
    };
    Some(format!(
        "{}: ignored {tensors} without a use in the model, such as `{first}`",
        dir.display()
    ))
}

/// Loads a folder with options.
///
/// ```no_run
/// use std::path::Path;
///
/// use meshgrad_models::hf::Loader;
/// use meshgrad_runtime::Device;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let loaded = Loader::new(Path::new("Qwen3-30B-A3B"))
///     .progress(&|read, all| eprintln!("{read} of {all} bytes"))
///     .load(&Device::cuda(0)?)?;
/// # let _ = loaded.model;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Loader<'a> {
    dir: &'a Path,
    options: LoadOptions<'a>,
    ignores_unused: bool,
}

impl<'a> Loader<'a> {
    /// A loader of the folder `dir`.
    pub fn new(dir: &'a Path) -> Loader<'a> {
        Loader { dir, options: LoadOptions::default(), ignores_unused: false }
    }

    /// Calls `progress` after each read, from any thread, with the bytes read so far and the total.
    pub fn progress(mut self, progress: &'a (dyn Fn(u64, u64) + Sync)) -> Loader<'a> {
        self.options.progress = progress;
        self
    }

    /// Pins at most `bytes` of host memory when loading to a GPU.
    pub fn pinned(mut self, bytes: u64) -> Loader<'a> {
        self.options.pinned = bytes;
        self
    }

    /// Reads ranges that are at most `bytes` apart as one ([`LoadOptions::max_gap`]).
    pub fn max_gap(mut self, bytes: u64) -> Loader<'a> {
        self.options.max_gap = Some(bytes);
        self
    }

    /// Compares the files with the manifest of `checkpoint`, which the folder belongs to.
    pub fn sealed_by(mut self, checkpoint: &'a Committed) -> Loader<'a> {
        self.options.sealed_by = Some(checkpoint);
        self
    }

    /// Rejects weights that are NaN or infinite.
    pub fn only_finite(mut self) -> Loader<'a> {
        self.options.only_finite = true;
        self
    }

    /// Ignores all tensors that the model does not have. By default they are an error, because
    /// they may belong to what the folder's model computes, except for a few that never do, such as
    /// `rotary_emb.inv_freq`.
    pub fn ignore_unused(mut self) -> Loader<'a> {
        self.ignores_unused = true;
        self
    }

    /// Loads the model of the folder.
    ///
    /// # Errors
    /// As [`hf::load`](super::load); if this is checked, when the checkpoint has
    /// [`Damage`](folder::Damage) or a weight is not finite.
    pub fn load(&self, device: &Device) -> Result<Loaded> {
        if let Some(checkpoint) = self.options.sealed_by {
            folder::check_texts(checkpoint)?;
        }
        let loaded = self.load_unchecked(device);
        loaded.map_err(|error| match self.options.sealed_by {
            Some(checkpoint) => folder::or_damage(checkpoint, error),
            None => error,
        })
    }

    fn load_unchecked(&self, device: &Device) -> Result<Loaded> {
        let mut model = Decoder::new(&*read_config(self.dir)?)?;
        adapters::add_adapter(&mut model, self.dir)?;
        let Filled { experts, stats, ignored } = self.fill(&model, device)?;
        Ok(Loaded { model, experts, stats, ignored })
    }

    /// Loads every parameter of `model`, except an adapter that the folder does not have. Float dtypes are
    /// converted. Of a sharded parameter ([`Param::shard`](meshgrad_autograd::Param::shard)), only the region
    /// of this rank is read. A [`Model::part`](crate::Model::part) leaves the tensors of other parts out.
    ///
    /// ```no_run
    /// use std::path::Path;
    ///
    /// use meshgrad_autograd::Module;
    /// use meshgrad_mesh::{Mesh, Placement, Sharding};
    /// use meshgrad_models::Decoder;
    /// use meshgrad_models::hf::{Loader, read_config};
    /// use meshgrad_runtime::Device;
    ///
    /// # fn load(rank: usize) -> Result<(), Box<dyn std::error::Error>> {
    /// let dir = Path::new("Qwen3-30B-A3B");
    /// let model = Decoder::new(&*read_config(dir)?)?;
    /// let mesh = Mesh::new(&[8], &["ep"])?;
    /// for param in model.params() {
    ///     let placements = match param.name().contains(".experts.") {
    ///         true => vec![("ep", Placement::shard(0))],
    ///         false => vec![],
    ///     };
    ///     param.shard(&Sharding::new(&mesh, placements, param.shape())?, rank)?;
    /// }
    /// Loader::new(dir).fill(&model, &Device::cuda(rank)?)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`hf::load`](super::load). After an error the parameters keep their values.
    pub fn fill(&self, model: &Decoder, device: &Device) -> Result<Filled> {
        let is_adapter = |param: &Param| is_lora(param.name());
        let (loras, params): (Vec<Param>, Vec<Param>) =
            model.params().into_iter().partition(is_adapter);
        let weights = StoredValues { params, buffers: model.stored_buffers() };
        if read_adapter(self.dir)?.is_none() {
            return self.fill_weights(self.dir, &self.options, model, &weights, device);
        }
        let base = base_folder(self.dir)?;
        ensure!(
            model.adapter().is_some(),
            Invalid,
            "{} has an adapter, but the model that it is loaded into has none: use hf::load, or merge the \
             adapter first (meshgrad ckpt merge)",
            self.dir.display()
        );
        // The manifest is that of the adapter.
        let sealed_by = self.options.sealed_by.filter(|_| base == self.dir);
        let options = LoadOptions { sealed_by, ..self.options };
        let filled = self.fill_weights(&base, &options, model, &weights, device)?;
        adapters::fill_adapter(&loras, model.is_whole(), self.dir, device, &self.options)?;
        Ok(filled)
    }

    fn fill_weights(
        &self,
        dir: &Path,
        options: &LoadOptions<'_>,
        model: &Decoder,
        weights: &StoredValues,
        device: &Device,
    ) -> Result<Filled> {
        let folder = &Folder::open(dir)?;
        foreign::check_not_quantized(folder)?;
        let experts = Experts::of(folder.tensors().map(|tensor| tensor.name.as_str()));
        let map = model.config().mapping(experts, true)?;
        if !model.is_whole() {
            let stats = folder::fill_part(weights, device, folder, &map, options)?;
            return Ok(Filled { experts, stats, ignored: Vec::new() });
        }
        let names = match self.ignores_unused {
            true => vec!["{all:path}".to_owned()],
            false => {
                let of_all = WITHOUT_EFFECT.map(str::to_owned);
                [&of_all[..], &model.config().without_effect()].concat()
            }
        };
        let allow =
            |allowed: AllowedProblems, name: &String| allowed.and(&format!("unexpected:{name}"));
        let allowed = names.iter().try_fold(AllowedProblems::none(), allow)?;
        let filled = folder::fill_allowing(weights, device, folder, &map, &allowed, options);
        let (stats, ignored) = filled.map_err(|error| or_unused(folder, error))?;
        Ok(Filled { experts, stats, ignored })
    }
}

/// Another error with a way out, if unused tensors are all that is wrong.
fn or_unused(folder: &Folder, error: Error) -> Error {
    let is_unused = |problem: &Problem| matches!(problem, Problem::Unused { .. });
    match error.details::<Report>() {
        Some(report) if report.problems.iter().all(is_unused) => error!(
            Mismatch,
            "{}: the model does not use all tensors: {report}\nif config.json is right and they do \
             not matter, load it with --ignore-unused (in a program: Loader::ignore_unused)",
            folder.path().display()
        ),
        _ => error,
    }
}
