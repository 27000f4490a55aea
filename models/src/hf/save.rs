//! Writing a model as a Hugging Face folder.

use meshgrad_ckpt::Snapshot;

use super::map::{Experts, map};
use crate::Qwen3;
use crate::folder::{self, Result};

/// Adds a copy of `model` to a snapshot, as a Hugging Face folder that transformers reads
/// unchanged: config.json and the f32 parameters.
///
/// `folder` is the path inside the checkpoint, empty for its root.
///
/// # Errors
/// As [`folder::add_tensors`].
pub fn add_model(
    model: &Qwen3,
    experts: Experts,
    snapshot: &mut Snapshot,
    folder: &str,
) -> Result<()> {
    let config = if folder.is_empty() {
        "config.json".to_owned()
    } else {
        format!("{folder}/config.json")
    };
    snapshot.add(&config, model.config().to_json_of_f32()?);
    folder::add_tensors(
        &folder::params(model)?,
        &map(experts, false)?,
        snapshot,
        folder,
    )
}
