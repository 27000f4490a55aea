//! Writing a model as a Hugging Face folder.

use meshgrad_ckpt::Snapshot;
use meshgrad_ckpt::ranks::ShardedSnapshot;
use meshgrad_error::{Result, ensure};

use super::adapters::{all_files, parts_of};
use super::map::Experts;
use crate::folder::{self, NamedTensor};
use crate::{Decoder, Model};

/// Adds a copy of `model` to a snapshot, as a Hugging Face folder that transformers reads
/// unchanged: config.json and the parameters. An adapter is written as PEFT does, without the weights that it
/// updates if [`LoraConfig::base`](crate::lora::LoraConfig::base) names another folder.
///
/// `folder` is the path inside the checkpoint, empty for its root.
///
/// # Errors
/// As [`folder::add_tensors`].
pub fn add_model(
    model: &Decoder,
    experts: Experts,
    snapshot: &mut Snapshot,
    folder: &str,
) -> Result<()> {
    for (path, text) in files(model, folder)? {
        snapshot.add(&path, text);
    }
    for (name, stored, mapping) in parts_of(model, model.config().mapping(experts, false)?)? {
        let path = [folder, name].into_iter().filter(|part| !part.is_empty());
        let path = path.collect::<Vec<_>>().join("/");
        folder::add_tensors(&folder::values(&stored)?, &mapping, snapshot, &path)?;
    }
    Ok(())
}

/// As [`add_model`], for a model of which each rank has shards. `params` are the values of its
/// parameters ([`folder::params`]); the snapshot reads them when it is saved. The folder equals that
/// of [`add_model`] for the whole model.
///
/// # Errors
/// As [`folder::add_shards`]; when the model has an adapter.
pub fn add_shards<'t>(
    model: &Decoder,
    params: &'t [NamedTensor],
    experts: Experts,
    snapshot: &mut ShardedSnapshot<'t>,
    folder: &str,
) -> Result<()> {
    ensure!(
        model.adapter().is_none(),
        Unsupported,
        "add_shards does not write adapters; use train::checkpoint, or merge the adapter first"
    );
    for buffer in model.stored_buffers() {
        ensure!(
            params.iter().any(|named| *named.name == *buffer.name()),
            Invalid,
            "the values of the model lack its buffer `{}`; add those of stored_buffers to params",
            buffer.name()
        );
    }
    for (path, text) in files(model, folder)? {
        snapshot.add(&path, text);
    }
    folder::add_shards(params, model.config().mapping(experts, false)?, snapshot, folder)
}

/// The text files of a model, by path inside the checkpoint.
fn files(model: &Decoder, folder: &str) -> Result<Vec<(String, String)>> {
    let below = |(name, text)| match folder.is_empty() {
        true => (name, text),
        false => (format!("{folder}/{name}"), text),
    };
    Ok(all_files(model)?.into_iter().map(below).collect())
}
