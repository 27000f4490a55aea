//! Loads a folder into a model's parameters, on any device.

use std::path::Path;

use meshgrad_autograd::{Module, Param};
use meshgrad_ckpt::Folder;
use meshgrad_ckpt::exec::check_ties;
use meshgrad_ckpt::mapping::{AllowedProblems, TensorSpec};
use meshgrad_ckpt::plan::{LoadRequest, PlanError};
use meshgrad_load::LoadOptions;
use meshgrad_runtime::{Device, Kind, Tensor, UninitTensor};

use super::map::{Experts, map};
use super::memory::specs;
use crate::config::Qwen3Config;
use crate::{Error, Qwen3, Result};

/// Loads the model in `dir` (config.json and safetensors files) to `device`.
///
/// # Errors
/// [`Error::ConfigFile`]; [`Error::Tensors`] with all tensors that are missing, unexpected or of
/// another shape; [`Error::Load`] when a file is damaged or memory runs out.
pub fn load(dir: &Path, device: &Device) -> Result<Loaded> {
    Loader::new(dir).load(device)
}

/// Reads config.json of `dir`.
///
/// # Errors
/// [`Error::File`], [`Error::ConfigFile`].
pub fn read_config(dir: &Path) -> Result<Qwen3Config> {
    let path = dir.join("config.json");
    let text = std::fs::read_to_string(&path).map_err(|source| Error::File {
        path: path.clone(),
        source,
    })?;
    Qwen3Config::from_json(&text).map_err(|source| Error::ConfigFile { path, source })
}

/// Reads tensors that [`add_tensors`](super::add_tensors) saved to the folder `dir`, into tensors
/// of a mutable kind.
///
/// # Errors
/// As [`load`]. The tensors' contents are then unspecified.
pub fn read_tensors(tensors: &[(Param, Tensor)], dir: &Path) -> Result<()> {
    Loader::new(dir).fill_tensors(tensors)
}

/// A loaded model, and how its folder stores experts.
pub struct Loaded {
    /// The model.
    pub model: Qwen3,
    /// How the folder stores experts.
    pub experts: Experts,
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
        Loader {
            dir,
            options: LoadOptions::default(),
        }
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

    /// Loads the model of the folder.
    ///
    /// # Errors
    /// As [`hf::load`](super::load).
    pub fn load(&self, device: &Device) -> Result<Loaded> {
        let model = Qwen3::new(&read_config(self.dir)?)?;
        let experts = self.fill(&model, device)?;
        Ok(Loaded { model, experts })
    }

    /// Loads every parameter of `model`. Float dtypes are converted.
    ///
    /// # Errors
    /// As [`hf::load`](super::load). After an error the parameters keep their values.
    pub fn fill(&self, model: &Qwen3, device: &Device) -> Result<Experts> {
        let folder = Folder::open(self.dir)?;
        let mut tensors = Vec::new();
        for param in model.params() {
            let value = unfilled(&param, device)?;
            tensors.push((param, value));
        }
        let experts = self.read(&tensors, &folder, model.config().tie_word_embeddings)?;
        for (param, value) in &tensors {
            param.set(value)?;
        }
        Ok(experts)
    }

    /// Loads tensors that have the names and shapes of their parameters.
    ///
    /// # Errors
    /// As [`hf::read_tensors`](super::read_tensors).
    pub fn fill_tensors(&self, tensors: &[(Param, Tensor)]) -> Result<()> {
        self.read(tensors, &Folder::open(self.dir)?, false)?;
        Ok(())
    }

    /// Reads each byte once, directly to its destination.
    fn read<'t>(
        &self,
        tensors: &'t [(Param, Tensor)],
        folder: &Folder,
        tied: bool,
    ) -> Result<Experts> {
        let experts = Experts::of(folder.tensors().map(|tensor| tensor.name.as_str()));
        let stored: Vec<TensorSpec> = folder.tensors().map(TensorSpec::from).collect();
        let expected = specs(tensors)?;
        let waivers = AllowedProblems::none().and("narrowed")?;
        let bound = map(experts, tied)?.bind(&stored, Some(&expected), &waivers);
        let bound = bound.map_err(|report| Error::Tensors {
            folder: folder.path().to_owned(),
            report,
        })?;
        check_ties(&bound, folder)?;

        let request = |(param, tensor): &'t (Param, Tensor)| {
            let expr = bound.expr(param.name()).ok_or_else(|| PlanError::Missing {
                names: vec![param.name().to_owned()],
            })?;
            Ok((LoadRequest::all(param.name(), bound.graph(), expr), tensor))
        };
        let wants = tensors.iter().map(request);
        let wants = wants.collect::<Result<Vec<_>>>()?;
        meshgrad_load::load(folder, bound.graph(), &wants, &self.options)?;
        Ok(experts)
    }
}

/// Uninitialized memory for a parameter's value.
fn unfilled(param: &Param, device: &Device) -> Result<Tensor> {
    let fresh =
        UninitTensor::with_kind(device, *param.shape(), param.spec().dtype, Kind::Parameter);
    let fresh = fresh.map_err(|source| meshgrad_load::Error::not_loaded(param.name(), source))?;
    Ok(fresh.finish())
}
