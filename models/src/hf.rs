//! Hugging Face folders: config.json and safetensors, read and written under the names that
//! transformers uses.
//!
//! A parameter here may be several tensors there: gate and up are one matrix, and so are all
//! experts of a layer. A [map](map()) says how; reading follows it in one direction, writing in the
//! other.

mod map;
mod memory;

use std::collections::BTreeMap;
use std::path::Path;

use meshgrad_autograd::{Module, Param};
use meshgrad_ckpt::exec::{Slices, check_ties, execute, gather};
use meshgrad_ckpt::mapping::{TensorSpec, Waivers};
use meshgrad_ckpt::plan::{Catalog, LoadPlan, Options};
use meshgrad_ckpt::source::{Choice, Sources};
use meshgrad_ckpt::{Folder, FolderWriter, Snapshot};
use meshgrad_runtime::{Device, Kind, Tensor};

pub use map::{Experts, map};
use memory::{Held, Lent, dtype_of};

use crate::config::Qwen3Config;
use crate::{Error, Qwen3, Result};

/// A model from a folder, and how that folder stores experts.
pub struct Loaded {
    /// The model, its parameters loaded.
    pub model: Qwen3,
    /// How the folder stores experts.
    pub experts: Experts,
}

/// Loads the model of `dir`: config.json and one or several safetensors files.
///
/// # Errors
/// [`Error::ConfigFile`]; [`Error::Tensors`] when tensors are missing, unexpected or of another
/// shape, all at once; [`Error::Checkpoint`] when a file is damaged.
pub fn load(dir: &Path, device: &Device) -> Result<Loaded> {
    let model = Qwen3::new(&read_config(dir)?)?;
    let experts = load_into(&model, dir, device)?;
    Ok(Loaded { model, experts })
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

/// Gives every parameter of `model` its value from the safetensors files of `dir`. Floats of any
/// width are converted.
///
/// # Errors
/// As [`load`].
pub fn load_into(model: &Qwen3, dir: &Path, device: &Device) -> Result<Experts> {
    let folder = Folder::open(dir)?;
    let mut tensors = Vec::new();
    for param in model.params() {
        let dtype = param.spec().dtype;
        let value = Tensor::zeros(device, param.shape(), dtype, Kind::Parameter)?;
        tensors.push((param, value));
    }
    let experts = read(&tensors, &folder, model.config().tie_word_embeddings)?;
    for (param, value) in &tensors {
        param.set(value)?;
    }
    Ok(experts)
}

/// Reads back what [`add_tensors`] saved to the folder `dir`, into tensors that may change.
///
/// # Errors
/// As [`load`].
pub fn read_tensors(tensors: &[(Param, Tensor)], dir: &Path) -> Result<()> {
    read(tensors, &Folder::open(dir)?, false)?;
    Ok(())
}

/// Reads tensors, named and shaped as their parameters: each byte once, straight to its place.
fn read(tensors: &[(Param, Tensor)], folder: &Folder, tied: bool) -> Result<Experts> {
    let experts = Experts::of(folder.tensors().map(|tensor| tensor.name.as_str()));
    let there: Vec<TensorSpec> = folder.tensors().map(TensorSpec::from).collect();
    let wanted = specs(tensors)?;
    let waivers = Waivers::none().and("narrowed")?;
    let bound = map(experts, tied)?.bind(&there, Some(&wanted), &waivers);
    let bound = bound.map_err(|report| Error::Tensors {
        folder: folder.path().to_owned(),
        report,
    })?;
    check_ties(&bound, folder)?;

    let wants = bound.wants();
    let plan = LoadPlan::new(
        bound.graph(),
        &Catalog::of(folder),
        &wants,
        &Options::default(),
    )?;
    let mut places = Vec::new();
    for want in &wants {
        let tensor = tensors
            .iter()
            .find(|(param, _)| param.name() == want.target);
        if let Some((_, tensor)) = tensor {
            places.push(Lent::of(tensor)?);
        }
    }
    let slices = Slices::new(places.iter_mut().map(Lent::bytes));
    execute(&plan, &Sources::of(folder, Choice::Auto)?, &slices, &|_| {})?;
    Ok(experts)
}

fn specs(tensors: &[(Param, Tensor)]) -> Result<Vec<TensorSpec>> {
    let spec = |(param, tensor): &(Param, Tensor)| {
        let shape: Vec<u64> = param.shape().iter().map(|extent| *extent as u64).collect();
        Ok(TensorSpec::new(
            param.name(),
            dtype_of(tensor.dtype())?,
            &shape,
        ))
    };
    tensors.iter().map(spec).collect()
}

/// Puts a copy of `model` into a snapshot, as a Hugging Face folder that transformers reads as it
/// is: config.json and the f32 parameters.
///
/// `folder` is the place inside of the checkpoint, empty for its root.
///
/// # Errors
/// As [`add_tensors`].
pub fn add_model(
    model: &Qwen3,
    experts: Experts,
    snapshot: &mut Snapshot,
    folder: &str,
) -> Result<()> {
    let config = config_json(model.config())?;
    snapshot.add(&inside(folder, "config.json"), config);
    let value = |param: Param| Ok((param.clone(), param.value()?));
    let values: Result<Vec<(Param, Tensor)>> = model.params().into_iter().map(value).collect();
    add_tensors(&values?, experts, snapshot, folder)
}

fn config_json(config: &Qwen3Config) -> Result<String> {
    let mut json: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(&config.to_json()?).unwrap_or_default();
    json.insert("dtype".into(), "float32".into());
    Ok(serde_json::to_string_pretty(&json).unwrap_or_default() + "\n")
}

fn inside(folder: &str, file: &str) -> String {
    if folder.is_empty() {
        file.into()
    } else {
        format!("{folder}/{file}")
    }
}

/// Puts a copy of tensors that are named and shaped as their parameters, values, gradients or what
/// an optimizer keeps, into a snapshot under the names of Hugging Face.
///
/// # Errors
/// [`Error::Unwritable`], [`Error::NotStored`]; those of reading the tensors.
pub fn add_tensors(
    tensors: &[(Param, Tensor)],
    experts: Experts,
    snapshot: &mut Snapshot,
    folder: &str,
) -> Result<()> {
    let mut writer = FolderWriter::new();
    let mut copied = BTreeMap::new();
    for (spec, bytes) in tensors_of(tensors, experts)? {
        let shape: Vec<usize> = spec.shape.iter().map(|extent| *extent as usize).collect();
        writer.add(&spec.name, spec.dtype, &shape)?;
        copied.insert(spec.name, bytes);
    }
    snapshot.add_model(folder, writer, move |tensor, sink| {
        // Given back as soon as it is written.
        sink.append(&copied.remove(&tensor.name).unwrap_or_default())
    });
    Ok(())
}

/// The bytes of each Hugging Face tensor that these tensors are, named and shaped as their
/// parameters.
///
/// # Errors
/// As [`add_tensors`].
pub fn tensors_of(
    tensors: &[(Param, Tensor)],
    experts: Experts,
) -> Result<Vec<(TensorSpec, Vec<u8>)>> {
    let map = map(experts, false)?.reversed();
    let bound = map.bind(&specs(tensors)?, None, &Waivers::none());
    let bound = bound.map_err(|report| Error::Unwritable { report })?;

    let mut made = Vec::new();
    for want in bound.wants() {
        let spec = TensorSpec::new(
            &want.target,
            bound.graph().dtype(want.expr),
            bound.graph().shape(want.expr),
        );
        let elements: u64 = spec.shape.iter().product();
        let mut bytes = vec![0; elements as usize * spec.dtype.bits() / 8];
        let held = Held::of(bound.graph(), want.expr, tensors)?;
        let memory = |name: &str| held.bytes(name);
        gather(bound.graph(), want.expr, &want.region, &memory, &mut bytes)?;
        made.push((spec, bytes));
    }
    Ok(made)
}
