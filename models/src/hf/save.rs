//! Writing a model as a Hugging Face folder.

use meshgrad_ckpt::Snapshot;

use super::map::{Experts, map};
use crate::folder::{self, Result};
use crate::{Model, Qwen3};

/// Adds a copy of `model` to a snapshot, as a Hugging Face folder that transformers reads
/// unchanged: config.json and the f32 parameters. If the model has low-rank updates, their shapes
/// are in `lora.json`, which [`hf::load`](super::load) reads and transformers does not.
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
    for (name, text) in model.files()? {
        let path = match folder.is_empty() {
            true => name,
            false => format!("{folder}/{name}"),
        };
        snapshot.add(&path, text);
    }
    folder::add_tensors(
        &folder::params(model)?,
        &map(experts, false)?,
        snapshot,
        folder,
    )
}
