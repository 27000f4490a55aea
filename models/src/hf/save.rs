//! Writes parameters, or tensors of their shapes, as Hugging Face tensors.

use std::collections::{BTreeMap, BTreeSet};

use meshgrad_autograd::{Module, Param};
use meshgrad_ckpt::exec::gather;
use meshgrad_ckpt::mapping::{AllowedProblems, TensorSpec};
use meshgrad_ckpt::{FolderWriter, Snapshot};
use meshgrad_runtime::Tensor;

use super::map::{Experts, map};
use super::memory::{SourceBytes, specs};
use crate::config::Qwen3Config;
use crate::{Error, Qwen3, Result};

/// Adds a copy of `model` to a snapshot, as a Hugging Face folder that transformers reads
/// unchanged: config.json and the f32 parameters.
///
/// `folder` is the path inside the checkpoint, empty for its root.
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
    snapshot.add(&path_in(folder, "config.json"), config);
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

fn path_in(folder: &str, file: &str) -> String {
    if folder.is_empty() {
        file.into()
    } else {
        format!("{folder}/{file}")
    }
}

/// Adds a copy of tensors with the names and shapes of their parameters (values, gradients,
/// optimizer state) to a snapshot, under Hugging Face names.
///
/// # Errors
/// [`Error::Unwritable`], [`Error::Load`]; errors of reading the tensors.
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
        // Freed as soon as it is written.
        sink.append(&copied.remove(&tensor.name).unwrap_or_default())
    });
    Ok(())
}

/// Converts tensors with the names and shapes of their parameters to Hugging Face tensors, and
/// returns their bytes.
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

    let requests = bound.requests();
    let sources: Vec<BTreeSet<&str>> = requests
        .iter()
        .map(|request| bound.graph().sources_of(request.expr))
        .collect();
    let mut sources_open = SourceBytes::new(tensors, &sources);
    let mut written = Vec::new();
    for (request, names) in requests.iter().zip(&sources) {
        let spec = TensorSpec::new(
            &request.target,
            bound.graph().dtype(request.expr),
            bound.graph().shape(request.expr),
        );
        let elements: u64 = spec.shape.iter().product();
        let mut bytes = vec![0; elements as usize * spec.dtype.bits() / 8];
        sources_open.open(names)?;
        let memory = |name: &str| sources_open.bytes(name);
        gather(
            bound.graph(),
            request.expr,
            &request.region,
            &memory,
            &mut bytes,
        )?;
        sources_open.close(names);
        written.push((spec, bytes));
    }
    Ok(written)
}
