//! Hugging Face folders: config.json and safetensors, read and written under the names that
//! transformers uses.
//!
//! A parameter here may be several tensors there: gate and up are one matrix, and so are all
//! experts of a layer. A [map](map()) says how; reading follows it in one direction, writing in the
//! other. Parameters may live on any device that computes ([`load`](crate::load)).

mod loader;
mod map;
mod memory;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use meshgrad_autograd::{Module, Param};
use meshgrad_ckpt::exec::gather;
use meshgrad_ckpt::mapping::{AllowedProblems, TensorSpec};
use meshgrad_ckpt::{FolderWriter, Snapshot};
use meshgrad_runtime::{Device, Tensor};

pub use loader::{Loaded, Loader};
pub use map::{Experts, map};
use memory::Held;

use crate::config::Qwen3Config;
use crate::load::dtype_of;
use crate::{Error, Qwen3, Result};

/// Loads the model of `dir`, config.json and one or several safetensors files, to `device`.
///
/// # Errors
/// [`Error::ConfigFile`]; [`Error::Tensors`] when tensors are missing, unexpected or of another
/// shape, all at once; [`Error::Checkpoint`] when a file is damaged; [`Error::NotLoaded`] when
/// memory runs out.
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

/// Gives every parameter of `model` its value from the safetensors files of `dir`, on `device`.
/// Floats of any width are converted.
///
/// # Errors
/// As [`load`]; the parameters keep their values then.
pub fn load_into(model: &Qwen3, dir: &Path, device: &Device) -> Result<Experts> {
    Loader::new(dir).fill(model, device)
}

/// Reads back what [`add_tensors`] saved to the folder `dir`, into tensors that may change.
///
/// # Errors
/// As [`load`]; nobody knows then what the tensors hold.
pub fn read_tensors(tensors: &[(Param, Tensor)], dir: &Path) -> Result<()> {
    Loader::new(dir).fill_tensors(tensors)
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
    let bound = map.bind(&specs(tensors)?, None, &AllowedProblems::none());
    let bound = bound.map_err(|report| Error::Unwritable { report })?;

    let wants = bound.requests();
    let sources: Vec<BTreeSet<&str>> = wants
        .iter()
        .map(|want| bound.graph().sources_of(want.expr))
        .collect();
    let mut held = Held::new(tensors, &sources);
    let mut made = Vec::new();
    for (want, names) in wants.iter().zip(&sources) {
        let spec = TensorSpec::new(
            &want.target,
            bound.graph().dtype(want.expr),
            bound.graph().shape(want.expr),
        );
        let elements: u64 = spec.shape.iter().product();
        let mut bytes = vec![0; elements as usize * spec.dtype.bits() / 8];
        held.hold(names)?;
        let memory = |name: &str| held.bytes(name);
        gather(bound.graph(), want.expr, &want.region, &memory, &mut bytes)?;
        held.release(names);
        made.push((spec, bytes));
    }
    Ok(made)
}
