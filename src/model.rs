//! Opens the model of a run, of a checkpoint or of a Hugging Face folder.

use std::path::{Path, PathBuf};

use meshgrad::ckpt::Committed;
use meshgrad::models::{Decoder, hf};
use meshgrad::runtime::Device;
use meshgrad::train;
use meshgrad::train::checkpoint::{self, ReadOptions};
use meshgrad::train::decoder;
use meshgrad::train::intact::Candidates;
use meshgrad::train::report::with_loading_bar;

use crate::runs;

#[derive(clap::Args, Clone, Copy)]
pub(crate) struct Checks {
    /// Do not compare a checkpoint with the digests of its manifest, and accept weights that are
    /// NaN or infinite.
    #[arg(long)]
    no_verify: bool,
    /// Ignore tensors of a Hugging Face folder that the model does not have.
    #[arg(long)]
    ignore_unused: bool,
}

/// A model and the folder it was loaded from.
pub(crate) struct Opened {
    pub(crate) model: Decoder,
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
    read(path, checks, |folder, sealed, options| {
        let Some(checkpoint) = sealed else {
            return Ok(Opened {
                model: decoder::load(folder, device, options)?,
                folder: text_folder(folder),
                is_averaged: false,
            });
        };
        let model = decoder::load_checkpoint(checkpoint, device, options)?;
        let is_averaged = checkpoint::has_averages(folder) && !raw;
        if is_averaged {
            checkpoint::load_averages(checkpoint, &model, options)?;
        }
        Ok(Opened { model, folder: text_folder(folder), is_averaged })
    })
}

/// The folder with the tokenizer of the model in `folder`: that of its weights if an adapter has none.
fn text_folder(folder: &Path) -> PathBuf {
    match (folder.join("tokenizer.json").exists(), hf::base_folder(folder)) {
        (false, Ok(base)) => base,
        _ => folder.to_owned(),
    }
}

/// Calls `load` for the folder at `path`; if that is a run, for its newest intact checkpoint.
/// `load` gets the folder as a checkpoint, too, if it has a manifest.
pub(crate) fn read<T>(
    path: &Path,
    checks: Checks,
    load: impl Fn(&Path, Option<&Committed>, ReadOptions<'_>) -> train::Result<T>,
) -> anyhow::Result<T> {
    runs::check_exists(path, " or a Hugging Face folder")?;
    let verify = !checks.no_verify;
    let load = |folder: &Path, sealed: Option<&Committed>| {
        let note = |text: String| eprintln!("{text}");
        with_loading_bar(|progress| {
            let ignore_unused = checks.ignore_unused;
            let default = ReadOptions::default();
            let options = ReadOptions { verify, progress, ignore_unused, note: &note, ..default };
            load(folder, sealed, options)
        })
    };
    let Some(mut candidates) = Candidates::find(path, verify)? else {
        return Ok(load(path, None)?);
    };
    let found = candidates.read(|checkpoint| load(checkpoint.path(), Some(checkpoint)))?;
    for problem in candidates.skipped() {
        eprintln!("skipped: {problem}");
    }
    match found {
        Some((_, loaded)) => Ok(loaded),
        None => Ok(load(path, None)?),
    }
}
