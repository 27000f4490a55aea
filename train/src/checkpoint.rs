//! What a run saves, and how it goes on from there.
//!
//! ```text
//! step-000600/
//!   config.json, model.safetensors   the model as a Hugging Face folder: the f32 parameters
//!   tokenizer.json                   its tokenizer
//!   trainer/config.toml              the whole configuration of the run
//!   trainer/state.json               step and seed, from which learning rate, samples and draws follow
//!   trainer/exp_avg/, trainer/exp_avg_sq/   AdamW's running means, under the names of the parameters
//!   trainer/router_bias/             what steers the routers' choice, where experts are balanced so
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

/// What a checkpoint knows beside tensors. Everything else is a function of these and the
/// configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// Steps done. The next sample, learning rate and random draw follow from it.
    pub step: u64,
    /// The seed of the run.
    pub seed: u64,
    /// XXH3-128 of the text, in hexadecimal: a run goes on with the text it began with.
    pub data_digest: String,
}

/// A copy of all that is saved of this moment. It is written aside and published in `run` by
/// [`Snapshot::save`], while training goes on if a [`Saver`](meshgrad_ckpt::Saver) does it.
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

/// Gives the optimizer and the routers what a checkpoint saved beside the parameters, which
/// [`Loader::fill`] gives the model. Biases that are not there stay as they are.
///
/// `progress` is called with the bytes read and all there are, of one part after the other.
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

/// Gives `model` the router biases of the checkpoint `folder`, if it has any: what it was trained to
/// route with, and no part of a Hugging Face folder.
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

/// The routers' biases as named tensors.
fn router_biases(model: &Qwen3) -> Result<Vec<(Param, Tensor)>> {
    let biases = model.router_biases().map(|bias| {
        let named = Param::new(&bias.name, bias.value.shape(), Init::Zeros)?;
        Ok((named, bias.value.clone()))
    });
    biases.collect()
}

/// Reads what a checkpoint knows beside tensors.
///
/// # Errors
/// [`TrainError::State`] when it is no checkpoint of a run.
pub fn read_state(checkpoint: &Committed) -> Result<State> {
    let path = checkpoint.path().join("trainer/state.json");
    let fail = |message: String| TrainError::State {
        path: path.clone(),
        message,
    };
    let text = std::fs::read_to_string(&path).map_err(|error| fail(error.to_string()))?;
    serde_json::from_str(&text).map_err(|error| fail(error.to_string()))
}
