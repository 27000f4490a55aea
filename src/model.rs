//! Opens the model of a run, of a checkpoint or of a Hugging Face folder.

use std::path::{Path, PathBuf};

use meshgrad::ckpt::Committed;
use meshgrad::models::Qwen3;
use meshgrad::runtime::Device;
use meshgrad::train::checkpoint::{self, ReadOptions};
use meshgrad::train::intact::Candidates;
use meshgrad::train::qwen3;
use meshgrad::train::report::with_loading_bar;

use crate::runs;

#[derive(clap::Args, Clone, Copy)]
pub(crate) struct Checks {
    /// Do not compare a checkpoint with the digests of its manifest, and accept weights that are
    /// NaN or infinite.
    #[arg(long)]
    no_verify: bool,
}

impl Checks {
    pub(crate) fn verify(self) -> bool {
        !self.no_verify
    }
}

/// A model and the folder it was loaded from.
pub(crate) struct Opened {
    pub(crate) model: Qwen3,
    pub(crate) folder: PathBuf,
    /// Whether the weights are the averages that the run kept.
    pub(crate) is_averaged: bool,
}

/// Loads the model at `path`; if it is a run, from its newest intact checkpoint. The weights are
/// the run's averages, if it has any and `raw` is false.
pub(crate) fn open(
    path: &Path,
    checks: Checks,
    raw: bool,
    device: &Device,
) -> anyhow::Result<Opened> {
    runs::check_exists(path, " or a Hugging Face folder")?;
    let verify = checks.verify();
    let load = |checkpoint: &Committed| {
        with_loading_bar(|progress| {
            let options = ReadOptions { verify, progress };
            let model = qwen3::load_checkpoint(checkpoint, device, options)?;
            let is_averaged = checkpoint::has_averages(checkpoint.path()) && !raw;
            if is_averaged {
                checkpoint::load_averages(checkpoint, &model, options)?;
            }
            Ok(Opened {
                model,
                folder: checkpoint.path().to_owned(),
                is_averaged,
            })
        })
    };
    let Some(mut candidates) = Candidates::find(path, verify)? else {
        return load_folder(path, verify, device);
    };
    let found = candidates.read(load)?;
    for problem in candidates.passed_over() {
        eprintln!("passed over: {problem}");
    }
    Ok(match found {
        Some((_, opened)) => opened,
        None => load_folder(path, verify, device)?,
    })
}

/// Loads a folder without a manifest.
fn load_folder(path: &Path, verify: bool, device: &Device) -> anyhow::Result<Opened> {
    let load = |progress: &(dyn Fn(u64, u64) + Sync)| {
        qwen3::load(path, device, ReadOptions { verify, progress })
    };
    Ok(Opened {
        model: with_loading_bar(load)?,
        folder: path.to_owned(),
        is_averaged: false,
    })
}
