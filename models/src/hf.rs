//! Hugging Face folders: config.json and safetensors, read and written under the names that
//! transformers uses.
//!
//! A parameter here may be several tensors there: gate and up are one matrix, and so are all
//! experts of a layer. Each of those tensors is a run of the parameter's elements, so that a
//! mapping is a list of [`Part`]s.

mod names;

use std::collections::BTreeSet;
use std::path::Path;

use meshgrad_autograd::{Module, Param};
use meshgrad_ckpt::{Dtype, Folder, FolderWriter, Staging, TensorInfo};
use meshgrad_runtime::{DType, Device, Element, Kind, Tensor};

pub use names::{Experts, Part, parts};

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
    let experts = Experts::of(folder.tensors().map(|tensor| tensor.name.as_str()));
    let params = model.params();
    check(
        &params,
        &folder,
        experts,
        model.config().tie_word_embeddings,
    )?;
    for param in params {
        let value = Tensor::zeros(device, param.shape(), param.spec().dtype, Kind::Parameter)?;
        for part in parts(&param, experts) {
            read_part(&folder, &part, &value)?;
        }
        param.set(&value)?;
    }
    Ok(experts)
}

/// Compares what the parameters need with what the folder has.
fn check(params: &[Param], folder: &Folder, experts: Experts, tied: bool) -> Result<()> {
    let (mut missing, mut wrong) = (Vec::new(), Vec::new());
    let mut unexpected: BTreeSet<String> =
        folder.tensors().map(|tensor| tensor.name.clone()).collect();
    for part in params.iter().flat_map(|param| parts(param, experts)) {
        unexpected.remove(&part.name);
        match folder.get(&part.name) {
            None => missing.push(part.name),
            Some(found) if found.shape != part.shape || float(found.dtype).is_none() => {
                let (dtype, shape) = (found.dtype.name(), &found.shape);
                wrong.push(format!(
                    "{} (is {dtype}{shape:?}, not a float{:?})",
                    part.name, part.shape
                ));
            }
            Some(_) => {}
        }
    }
    if tied {
        check_tied(folder, &mut unexpected, &mut wrong)?;
    }

    if missing.is_empty() && unexpected.is_empty() && wrong.is_empty() {
        return Ok(());
    }
    let folder = folder.path().to_owned();
    Err(Error::Tensors {
        folder,
        missing,
        unexpected: unexpected.into_iter().collect(),
        wrong,
    })
}

/// Some folders store tied embeddings twice. That is right as long as both are the same.
fn check_tied(
    folder: &Folder,
    unexpected: &mut BTreeSet<String>,
    wrong: &mut Vec<String>,
) -> Result<()> {
    const HEAD: &str = "lm_head.weight";
    const EMBEDDING: &str = "model.embed_tokens.weight";
    if unexpected.remove(HEAD)
        && folder.get(EMBEDDING).is_some()
        && folder.read(HEAD)? != folder.read(EMBEDDING)?
    {
        wrong.push(format!(
            "{HEAD} (differs from {EMBEDDING}, but the configuration ties them)"
        ));
    }
    Ok(())
}

/// Reads back what [`write_tensors`] wrote to the folder `dir`, into tensors that may change.
///
/// # Errors
/// As [`load`].
pub fn read_tensors(tensors: &[(Param, Tensor)], dir: &Path) -> Result<()> {
    let folder = Folder::open(dir)?;
    let experts = Experts::of(folder.tensors().map(|tensor| tensor.name.as_str()));
    let params: Vec<Param> = tensors.iter().map(|(param, _)| param.clone()).collect();
    check(&params, &folder, experts, false)?;
    for (param, tensor) in tensors {
        for part in parts(param, experts) {
            read_part(&folder, &part, tensor)?;
        }
    }
    Ok(())
}

/// Reads one tensor of the folder into its run of `value`.
fn read_part(folder: &Folder, part: &Part, value: &Tensor) -> Result<()> {
    let Some(info) = folder.get(&part.name) else {
        return Ok(());
    };
    let bytes = folder.read(&part.name)?;
    match float(info.dtype) {
        Some(DType::F64) => convert::<f64>(&bytes, part, value),
        Some(DType::BF16) => convert::<half::bf16>(&bytes, part, value),
        Some(DType::F16) => convert::<half::f16>(&bytes, part, value),
        _ => convert::<f32>(&bytes, part, value),
    }
}

fn convert<T: Element>(bytes: &[u8], part: &Part, value: &Tensor) -> Result<()> {
    let mut values = value.write::<f32>("load")?;
    let values = &mut values[part.elements.clone()];
    for (value, bytes) in values.iter_mut().zip(bytes.chunks_exact(size_of::<T>())) {
        // Files are little endian, and so are all machines this runs on.
        *value = bytemuck::pod_read_unaligned::<T>(bytes).to_f64() as f32;
    }
    Ok(())
}

fn float(dtype: Dtype) -> Option<DType> {
    match dtype {
        Dtype::F64 => Some(DType::F64),
        Dtype::F32 => Some(DType::F32),
        Dtype::BF16 => Some(DType::BF16),
        Dtype::F16 => Some(DType::F16),
        _ => None,
    }
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

/// Writes one f32 tensor for each [`Part`] of each parameter: its value, its gradient, or what an
/// optimizer keeps of it.
///
/// # Errors
/// [`Error::Checkpoint`] when something cannot be written.
pub fn write_tensors(
    tensors: &[(Param, Tensor)],
    experts: Experts,
    staging: &mut Staging,
    folder: &str,
) -> Result<()> {
    let mut writer = FolderWriter::new();
    let mut runs = std::collections::HashMap::new();
    for (param, tensor) in tensors {
        for part in parts(param, experts) {
            writer.add(&part.name, Dtype::F32, &part.shape)?;
            runs.insert(part.name.clone(), (tensor.clone(), part.elements));
        }
    }
    writer.write(staging, folder, |info: &TensorInfo, sink| {
        if let Some((tensor, run)) = runs.get(&info.name) {
            let elements = tensor.read::<f32>()?;
            let start = tensor.layout().offset();
            sink.append(bytemuck::cast_slice(
                &elements[start + run.start..start + run.end],
            ))?;
        }
        Ok::<(), Error>(())
    })
}
