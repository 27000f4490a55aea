//! Hugging Face folders: config.json and safetensors, read and written under the names that
//! transformers uses.
//!
//! A parameter here may be several tensors there: gate and up are one matrix, and so are all
//! experts of a layer. A [map](map()) says how; reading follows it in one direction, writing in the
//! other.

mod map;
mod memory;

use std::path::Path;

use meshgrad_autograd::{Module, Param};
use meshgrad_ckpt::exec::{Slices, check_ties, execute, gather, rows_at_a_time};
use meshgrad_ckpt::mapping::{Bound, TensorSpec, Waivers};
use meshgrad_ckpt::plan::{Catalog, LoadPlan, Options};
use meshgrad_ckpt::source::{Choice, Sources};
use meshgrad_ckpt::{Folder, FolderWriter, Staging, TensorInfo};
use meshgrad_runtime::{Device, Kind, Tensor};

pub use map::{Experts, map};
use memory::{Held, Lent, dtype_of};

use crate::config::Qwen3Config;
use crate::{Error, Qwen3, Result};

/// Bytes of a tensor that are gathered at a time to be written.
const AT_A_TIME: u64 = 8 << 20;

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

/// Reads back what [`write_tensors`] wrote to the folder `dir`, into tensors that may change.
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

/// Writes `model` as a Hugging Face folder that transformers reads as it is: config.json and the
/// f32 parameters.
///
/// `folder` is the place inside of `staging`, empty for its root.
///
/// # Errors
/// [`Error::Checkpoint`] when something cannot be written.
pub fn save(model: &Qwen3, experts: Experts, staging: &mut Staging, folder: &str) -> Result<()> {
    staging.write(
        &inside(folder, "config.json"),
        config_json(model.config())?.as_bytes(),
    )?;
    let values: Result<Vec<(Param, Tensor)>> = model
        .params()
        .into_iter()
        .map(|param| Ok((param.clone(), param.value()?)))
        .collect();
    write_tensors(&values?, experts, staging, folder)
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

/// Writes tensors that are named and shaped as their parameters, values, gradients or what an
/// optimizer keeps, under the names of Hugging Face.
///
/// # Errors
/// [`Error::Checkpoint`] when something cannot be written.
pub fn write_tensors(
    tensors: &[(Param, Tensor)],
    experts: Experts,
    staging: &mut Staging,
    folder: &str,
) -> Result<()> {
    let bound = to_write(tensors, experts)?;
    let mut writer = FolderWriter::new();
    for spec in bound.made() {
        let shape: Vec<usize> = spec.shape.iter().map(|extent| *extent as usize).collect();
        writer.add(&spec.name, spec.dtype, &shape)?;
    }
    writer.write(staging, folder, |tensor: &TensorInfo, sink| {
        let spec = TensorSpec::from(tensor);
        make(&bound, &spec, tensors, |bytes| Ok(sink.append(bytes)?))
    })
}

/// The bytes of each Hugging Face tensor that these tensors are, named and shaped as their
/// parameters.
///
/// # Errors
/// As [`write_tensors`].
pub fn tensors_of(
    tensors: &[(Param, Tensor)],
    experts: Experts,
) -> Result<Vec<(TensorSpec, Vec<u8>)>> {
    let bound = to_write(tensors, experts)?;
    let made = bound.made().map(|spec| {
        let mut all = Vec::new();
        make(&bound, &spec, tensors, |bytes| {
            all.extend_from_slice(bytes);
            Ok(())
        })?;
        Ok((spec, all))
    });
    made.collect()
}

fn to_write(tensors: &[(Param, Tensor)], experts: Experts) -> Result<Bound> {
    let map = map(experts, false)?.reversed();
    let bound = map.bind(&specs(tensors)?, None, &Waivers::none());
    bound.map_err(|report| Error::Unwritable { report })
}

/// Makes one tensor, a few rows at a time.
fn make(
    bound: &Bound,
    spec: &TensorSpec,
    tensors: &[(Param, Tensor)],
    mut give: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let Some(expr) = bound.expr(&spec.name) else {
        return Ok(());
    };
    let held = Held::of(bound.graph(), expr, tensors)?;
    let memory = |name: &str| held.bytes(name);
    let mut bytes = Vec::new();
    for region in rows_at_a_time(&spec.shape, spec.dtype, AT_A_TIME) {
        let elements: u64 = region.iter().map(|it| it.end - it.start).product();
        bytes.resize(elements as usize * spec.dtype.bits() / 8, 0);
        gather(bound.graph(), expr, &region, &memory, &mut bytes)?;
        give(&bytes)?;
    }
    Ok(())
}
