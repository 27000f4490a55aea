//! The low-rank updates of a model in a folder. `lora.json` has the rank and the scale of each, by
//! the path of its projection. The matrices are stored as tensors.

use std::collections::BTreeMap;
use std::path::Path;

use meshgrad_ckpt::Folder;
use meshgrad_error::{Result, error};
use serde::{Deserialize, Serialize};

use super::read_text;
use crate::layers::Linear;

/// The file beside config.json.
pub const FILE: &str = "lora.json";

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Shape {
    rank: usize,
    /// alpha / rank.
    scale: f64,
}

/// The text of the file, if any of `projections` has a low-rank update.
pub(crate) fn written<'a>(
    projections: impl Iterator<Item = &'a Linear>,
) -> serde_json::Result<Option<String>> {
    let of_each = projections.filter_map(|linear| {
        let lora = linear.lora.as_ref()?;
        let (rank, scale) = (lora.a.shape()[0], lora.scale);
        Some((linear.path().to_string(), Shape { rank, scale }))
    });
    let shapes: BTreeMap<String, Shape> = of_each.collect();
    match shapes.is_empty() {
        true => Ok(None),
        false => Ok(Some(serde_json::to_string_pretty(&shapes)? + "\n")),
    }
}

/// The low-rank updates of the folder `dir`: their scales, by the paths of their projections. Empty
/// without a lora.json.
///
/// # Errors
/// When the file cannot be read or is not a lora.json.
pub fn adapters(dir: &Path) -> Result<BTreeMap<String, f64>> {
    let shapes = read(&dir.join(FILE))?.into_iter();
    Ok(shapes.map(|(path, shape)| (path, shape.scale)).collect())
}

/// Empty if the file does not exist.
fn read(path: &Path) -> Result<BTreeMap<String, Shape>> {
    if !path.exists() {
        return Ok(BTreeMap::new());
    }
    let shapes = serde_json::from_str(&read_text(path)?);
    shapes.map_err(|problem| error!(Malformed, "{}: {problem}", path.display()))
}

/// Adds the low-rank updates of `folder` to `projections`. Their parameters have no values yet.
///
/// # Errors
/// When lora.json cannot be read, or has not the shapes of the folder or the paths of the model.
pub(crate) fn add<'a>(
    projections: impl Iterator<Item = &'a mut Linear>,
    folder: &Folder,
) -> Result<()> {
    let path = folder.path().join(FILE);
    let mut shapes = read(&path)?;
    let invalid = |problem: String| error!(Malformed, "{}: {problem}", path.display());
    for linear in projections {
        if let Some(Shape { rank, scale }) = shapes.remove(&linear.path().to_string()) {
            check_rank(linear, rank, folder).map_err(invalid)?;
            linear.add_lora(rank, scale * rank as f64);
            if let Some(lora) = &mut linear.lora {
                lora.scale = scale;
            }
        }
    }
    match shapes.keys().next() {
        None => Ok(()),
        Some(unknown) => Err(invalid(format!("the model has no projection `{unknown}`"))),
    }
}

/// Checks that `folder` has a tensor of this rank for `linear`. So a wrong number in lora.json
/// cannot cause a large allocation.
fn check_rank(linear: &Linear, rank: usize, folder: &Folder) -> Result<(), String> {
    let path = linear.path();
    if rank == 0 {
        return Err(format!("`{path}` has rank 0, but must have at least 1"));
    }
    let name = path.sub("lora_A.weight").to_string();
    match folder.get(&name).map(|stored| &stored.shape[..]) {
        Some([rows, ..]) if *rows == rank => Ok(()),
        Some(shape) => Err(format!("`{path}` has rank {rank}, but `{name}` has shape {shape:?}")),
        None => Err(format!("`{path}` has rank {rank}, but there is no tensor `{name}`")),
    }
}
