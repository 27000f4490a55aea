//! Checkpoints of a run: saving and resuming.
//!
//! ```text
//! step-000600/
//!   config.json, model.safetensors   the model as a Hugging Face folder: the f32 parameters
//!   tokenizer.json                   its tokenizer
//!   trainer/config.toml              the whole configuration of the run
//!   trainer/state.json               step, seed and digest of the text
//!   trainer/exp_avg/, exp_avg_sq/    AdamW's moments, under the names of the parameters
//!   trainer/router_bias/             the router biases, if the model has them
//!   manifest.json                    sizes and digests; written last
//! ```

use std::path::Path;

use meshgrad_autograd::{Init, Param};
use meshgrad_ckpt::{Committed, Snapshot, step_name};
use meshgrad_models::Qwen3;
use meshgrad_models::hf::{self, Experts, Loader};
use meshgrad_runtime::{Device, Tensor};
use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::optimizer::Optimizer;
use crate::{Result, TrainError};

const ROUTER_BIAS: &str = "trainer/router_bias";

/// The training state other than tensors. Everything else follows from it and the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// Steps done. The next batch, learning rate and random numbers follow from it.
    pub step: u64,
    /// The seed of the run.
    pub seed: u64,
    /// XXH3-128 of the text, in hexadecimal. A run resumes only with the text it started with.
    pub data_digest: String,
}

/// A copy of everything that a checkpoint stores. [`Snapshot::save`] writes it to `run`; with a
/// [`Saver`](meshgrad_ckpt::Saver) training continues meanwhile.
///
/// # Errors
/// When a value cannot be read.
pub fn snapshot(
    run: &Path,
    config: &Config,
    model: &Qwen3,
    optimizer: &Optimizer,
    tokenizer_json: &str,
    state: &State,
) -> Result<Snapshot> {
    let mut snapshot = Snapshot::new(run, &step_name(state.step));
    hf::add_model(model, Experts::OneByOne, &mut snapshot, "")?;
    snapshot.add("tokenizer.json", tokenizer_json);

    let entries = optimizer.entries().iter();
    let exp_avg: Vec<_> = entries
        .clone()
        .map(|e| (e.param.clone(), e.exp_avg.clone()))
        .collect();
    let exp_avg_sq: Vec<_> = entries
        .map(|e| (e.param.clone(), e.exp_avg_sq.clone()))
        .collect();
    let biases = router_biases(model)?;
    for (tensors, folder) in [
        (&exp_avg, "trainer/exp_avg"),
        (&exp_avg_sq, "trainer/exp_avg_sq"),
        (&biases, ROUTER_BIAS),
    ] {
        if !tensors.is_empty() {
            hf::add_tensors(tensors, Experts::OneByOne, &mut snapshot, folder)?;
        }
    }

    let json = serde_json::to_string_pretty(state).map_err(|error| TrainError::State {
        path: run.join(step_name(state.step)),
        message: error.to_string(),
    })?;
    snapshot.add("trainer/state.json", json + "\n");
    snapshot.add("trainer/config.toml", config.to_toml()?);
    snapshot.set_about("step", state.step);
    Ok(snapshot)
}

/// The newest complete checkpoint in `run`.
///
/// # Errors
/// When the folder cannot be read.
pub fn newest(run: &Path) -> Result<Option<Committed>> {
    Ok(meshgrad_ckpt::newest(run)?.committed)
}

/// Loads the optimizer state and the router biases of a checkpoint; [`Loader::fill`] loads the
/// parameters. If the checkpoint has no router biases, those of the model do not change.
///
/// `progress` is called with the bytes read so far and the total, separately for each part.
///
/// # Errors
/// When a tensor is missing, unexpected, damaged or of another shape.
pub fn load_state(
    checkpoint: &Committed,
    model: &mut Qwen3,
    optimizer: &Optimizer,
    device: &Device,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<State> {
    let state = read_state(checkpoint)?;
    let folder = checkpoint.path();
    let entries = optimizer.entries().iter();
    let exp_avg: Vec<(_, Tensor)> = entries
        .clone()
        .map(|e| (e.param.clone(), e.exp_avg.clone()))
        .collect();
    let exp_avg_sq: Vec<(_, Tensor)> = entries
        .map(|e| (e.param.clone(), e.exp_avg_sq.clone()))
        .collect();
    for (tensors, part) in [
        (&exp_avg, "trainer/exp_avg"),
        (&exp_avg_sq, "trainer/exp_avg_sq"),
    ] {
        let part = folder.join(part);
        Loader::new(&part)
            .progress(progress)
            .fill_tensors(tensors)?;
    }

    load_router_biases(folder, model, device)?;
    Ok(state)
}

/// Loads the router biases of the checkpoint `folder` into `model`, if there are any. They are not
/// part of a Hugging Face folder.
///
/// # Errors
/// As [`load_state`].
pub fn load_router_biases(folder: &Path, model: &mut Qwen3, device: &Device) -> Result<()> {
    let biases = folder.join(ROUTER_BIAS);
    if biases.is_dir() {
        model.add_router_biases(device)?;
        hf::read_tensors(&router_biases(model)?, &biases)?;
    }
    Ok(())
}

/// The router biases as named tensors.
fn router_biases(model: &Qwen3) -> Result<Vec<(Param, Tensor)>> {
    let biases = model.router_biases().map(|bias| {
        let named = Param::new(&bias.name, bias.value.shape(), Init::Zeros)?;
        Ok((named, bias.value.clone()))
    });
    biases.collect()
}

/// Reads the training state of a checkpoint.
///
/// # Errors
/// [`TrainError::State`] when it is not a checkpoint of a run.
pub fn read_state(checkpoint: &Committed) -> Result<State> {
    let path = checkpoint.path().join("trainer/state.json");
    let fail = |message: String| TrainError::State {
        path: path.clone(),
        message,
    };
    let text = std::fs::read_to_string(&path).map_err(|error| fail(error.to_string()))?;
    serde_json::from_str(&text).map_err(|error| fail(error.to_string()))
}
