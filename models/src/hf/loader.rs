//! Loads a folder into a model's parameters, on any device.

use std::path::Path;

use meshgrad_ckpt::exec::Stats;
use meshgrad_ckpt::{Committed, Folder};
use meshgrad_load::LoadOptions;
use meshgrad_runtime::Device;

use super::adapters;
use super::map::{Experts, map};
use crate::Qwen3;
use crate::config::Qwen3Config;
use crate::folder::{self, Error, Result};

/// Loads the model in `dir` (config.json and safetensors files) to `device`, with its low-rank
/// updates if it has any.
///
/// # Errors
/// [`Error::ConfigFile`]; [`Error::Adapters`]; [`Error::Tensors`] with all tensors that are
/// missing, unexpected or of another shape; [`Error::Load`] when a file is damaged or memory runs
/// out.
pub fn load(dir: &Path, device: &Device) -> Result<Loaded> {
    Loader::new(dir).load(device)
}

/// Reads config.json of `dir`.
///
/// # Errors
/// [`Error::File`], [`Error::ConfigFile`].
pub fn read_config(dir: &Path) -> Result<Qwen3Config> {
    let path = dir.join("config.json");
    let text = std::fs::read_to_string(&path)
        .map_err(|source| Error::File { path: path.clone(), source })?;
    Qwen3Config::from_json(&text).map_err(|source| Error::ConfigFile { path, source })
}

/// Adds the low-rank updates of `folder` to `model`. Their parameters have no values yet.
///
/// # Errors
/// [`Error::File`], [`Error::Adapters`].
pub fn add_adapters(model: &mut Qwen3, folder: &Folder) -> Result<()> {
    adapters::add(model.projections_mut(), folder)
}

/// A loaded model, and how its folder stores experts.
pub struct Loaded {
    /// The model.
    pub model: Qwen3,
    /// How the folder stores experts.
    pub experts: Experts,
    /// Bytes that were read and written.
    pub stats: Stats,
}

/// What [`Loader::fill`] found and read.
#[derive(Clone, Copy, Debug)]
pub struct Filled {
    /// How the folder stores experts.
    pub experts: Experts,
    /// Bytes that were read and written.
    pub stats: Stats,
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
}

impl<'a> Loader<'a> {
    /// A loader of the folder `dir`.
    pub fn new(dir: &'a Path) -> Loader<'a> {
        Loader { dir, options: LoadOptions::default() }
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

    /// Loads the model of the folder.
    ///
    /// # Errors
    /// As [`hf::load`](super::load); [`Error::Damaged`] and [`Error::NotFinite`] if these are
    /// checked.
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
        let mut model = Qwen3::new(&read_config(self.dir)?)?;
        let folder = Folder::open(self.dir)?;
        add_adapters(&mut model, &folder)?;
        let Filled { experts, stats } = self.fill_from(&folder, &model, device)?;
        Ok(Loaded { model, experts, stats })
    }

    /// Loads every parameter of `model`. Float dtypes are converted. Of a sharded parameter
    /// ([`Param::shard`](meshgrad_autograd::Param::shard)), only the region of this rank is read.
    ///
    /// ```no_run
    /// use std::path::Path;
    ///
    /// use meshgrad_autograd::Module;
    /// use meshgrad_mesh::{Mesh, Placement, Sharding};
    /// use meshgrad_models::Qwen3;
    /// use meshgrad_models::hf::{Loader, read_config};
    /// use meshgrad_runtime::Device;
    ///
    /// # fn load(rank: usize) -> Result<(), Box<dyn std::error::Error>> {
    /// let dir = Path::new("Qwen3-30B-A3B");
    /// let model = Qwen3::new(&read_config(dir)?)?;
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
    pub fn fill(&self, model: &Qwen3, device: &Device) -> Result<Filled> {
        self.fill_from(&Folder::open(self.dir)?, model, device)
    }

    fn fill_from(&self, folder: &Folder, model: &Qwen3, device: &Device) -> Result<Filled> {
        let experts = Experts::of(folder.tensors().map(|tensor| tensor.name.as_str()));
        let map = map(experts, model.config().tie_word_embeddings)?;
        let stats = folder::fill(model, device, folder, &map, &self.options)?;
        Ok(Filled { experts, stats })
    }
}
