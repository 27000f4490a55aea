//! Writing: from parameters, or tensors shaped like them, to Hugging Face tensors.

use std::collections::{BTreeMap, BTreeSet};

use meshgrad_autograd::{Module, Param};
use meshgrad_ckpt::exec::gather;
use meshgrad_ckpt::mapping::{AllowedProblems, TensorSpec};
use meshgrad_ckpt::{FolderWriter, Snapshot};
use meshgrad_runtime::Tensor;

use super::map::{Experts, map};
use super::memory::{Held, specs};
use crate::config::Qwen3Config;
use crate::{Error, Qwen3, Result};

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
