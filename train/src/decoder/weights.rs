//! Weights of a Hugging Face folder, a checkpoint or a run.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use meshgrad_autograd::Module;
use meshgrad_ckpt::Committed;
use meshgrad_error::{bail, ensure};
use meshgrad_models::families::FamilyConfig;
use meshgrad_models::hf::{self, Loaded, Loader};
use meshgrad_models::load::LoadOptions;
use meshgrad_models::lora::is_lora;
use meshgrad_models::{Decoder, Model, folder};
use meshgrad_runtime::Device;

use crate::checkpoint::ReadOptions;
use crate::intact::Candidates;
use crate::report::with_loading_bar;
use crate::{Result, checkpoint};

const CONFIG: &str = "config.json";
pub(super) const TOKENIZER: &str = "tokenizer.json";

/// The folder with the model of `from`: a Hugging Face folder, a checkpoint, or the newest
/// checkpoint of a run that seems to be intact. Weights are not read; without `verify`, only
/// manifests and file sizes are checked.
pub(super) fn model_folder(from: &Path, verify: bool) -> Result<PathBuf> {
    let chosen = match Candidates::find(from, verify)? {
        Some(mut candidates) => candidates.choose()?,
        None => None,
    };
    Ok(chosen.map_or(from.to_owned(), |chosen| chosen.path().to_owned()))
}

pub(super) fn config_of(from: &Path, verify: bool) -> Result<Arc<dyn FamilyConfig>> {
    hf::read_config(&model_folder(from, verify)?)
}

/// Sets the values of `model` to those of `from`, found as in [`model_folder`]; if its weights are
/// damaged, to those of an older checkpoint with the same files. Returns messages to report.
pub(super) fn fill(
    model: &Decoder,
    from: &Path,
    device: &Device,
    verify: bool,
    ignore_unused: bool,
) -> Result<Vec<String>> {
    let notes = RefCell::new(Vec::new());
    let note = |text| notes.borrow_mut().push(text);
    let fill = |folder: &Path, sealed: Option<&Committed>| {
        with_loading_bar(|progress| {
            let part = !model.is_whole();
            let options = ReadOptions { verify, progress, ignore_unused, part, note: &note };
            fill_from(model, folder, sealed, device, options)
        })
    };
    let Some(mut candidates) = Candidates::find(from, verify)? else {
        refuse_unsealed_state(from)?;
        let taken = fill(from, None)?;
        let started = (!taken.is_empty()).then(|| started(from, &taken));
        return Ok(started.into_iter().chain(notes.take()).collect());
    };
    let configured = model_folder(from, verify)?;
    let filled = candidates.read(|checkpoint| {
        check_same_files(&configured, checkpoint.path())?;
        fill(checkpoint.path(), Some(checkpoint))
    })?;
    let skipped = candidates.skipped().iter();
    let skipped = skipped.map(|problem| format!("skipped: {problem}"));
    let started = filled.map(|(checkpoint, taken)| started(checkpoint.path(), &taken));
    Ok(skipped.chain(started).chain(notes.take()).collect())
}

/// The message that names what a run starts with.
fn started(from: &Path, taken: &[&str]) -> String {
    let with = match taken.is_empty() {
        true => String::new(),
        false => format!(", with {}", taken.join(", ")),
    };
    format!("starting with the weights of {}{with}", from.display())
}

/// The folder of the adapter `from`: a folder of PEFT, a checkpoint, or the newest one of a run.
pub(super) fn adapter_folder(from: &Path) -> PathBuf {
    model_folder(from, false).unwrap_or_else(|_| from.to_owned())
}

/// Sets the values of the adapter of `model` to those of the adapter `from`.
pub(super) fn fill_adapter(model: &Decoder, from: &Path, device: &Device) -> Result<()> {
    let mut loras = model.params();
    loras.retain(|param| is_lora(param.name()));
    let folder = adapter_folder(from);
    ensure!(
        hf::read_adapter(&folder)?.is_some(),
        Missing,
        "adapter.from = {} has no adapter (adapter_config.json)",
        from.display()
    );
    let sealed = folder::sealed(&folder)?;
    let options =
        LoadOptions { sealed_by: sealed.as_ref(), only_finite: true, ..LoadOptions::default() };
    hf::fill_adapter(&loras, model.is_whole(), &folder, device, &options)
}

/// Checks that the checkpoint `older` has the configuration, the tokenizer and the other files for
/// text generation of `configured`.
///
/// # Errors
/// When a file differs, with the first.
fn check_same_files(configured: &Path, older: &Path) -> Result<()> {
    if configured == older {
        return Ok(());
    }
    let [ours, theirs] = [files(configured)?, files(older)?];
    let mut names = ours.keys().chain(theirs.keys());
    if let Some(file) = names.find(|name| ours.get(*name) != theirs.get(*name)) {
        let (damaged, older) = (configured.display(), older.display());
        bail!(
            Invalid,
            "{damaged} is damaged (`meshgrad ckpt verify` shows where), and {older} has another {file}; \
             to start from that one, name it: --from {older}"
        );
    }
    Ok(())
}

/// The files of a folder that a new run takes besides tensors.
fn files(folder: &Path) -> Result<BTreeMap<String, String>> {
    let mut files: BTreeMap<_, _> = hf::companions(folder)?.into_iter().collect();
    for name in [CONFIG, TOKENIZER] {
        let path = folder.join(name);
        match fs::read_to_string(&path) {
            Ok(text) => drop(files.insert(name.to_owned(), text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(cause) => return Err(folder::unreadable(&path, cause)),
        }
    }
    Ok(files)
}

/// A checkpoint without its manifest is an error if it has more than weights.
fn refuse_unsealed_state(folder: &Path) -> Result<()> {
    if checkpoint::has_averages(folder) || checkpoint::has_buffers(folder) {
        Committed::open(folder)?;
    }
    Ok(())
}

/// Sets the values of `model` to those in `folder`. `sealed` is the folder as a checkpoint, if it
/// has a manifest. Returns what is taken besides weights.
fn fill_from(
    model: &Decoder,
    folder: &Path,
    sealed: Option<&Committed>,
    device: &Device,
    options: ReadOptions<'_>,
) -> Result<Vec<&'static str>> {
    let mut taken = Vec::new();
    // It shares the parameters of `model`, but has the low-rank updates of the folder, which are
    // merged below.
    let mut adapted = model.clone().without_adapter();
    hf::add_adapter(&mut adapted, folder)?;
    let filled = loader(folder, sealed, options).fill(&adapted, device)?;
    hf::ignored_note(folder, &filled.ignored).into_iter().for_each(options.note);
    if let Some(checkpoint) = sealed {
        if checkpoint::has_averages(folder) {
            checkpoint::load_averages(checkpoint, &adapted, options)?;
            taken.push("the averages of the run");
        }
        if checkpoint::has_buffers(folder) {
            checkpoint::init_buffers(model, device, 0)?;
            checkpoint::read_buffers(checkpoint, model, options)?;
            taken.push("its router biases");
        }
    }
    if adapted.adapter().is_some() {
        adapted.merge_adapter()?;
        taken.push("its adapter merged");
    }
    Ok(taken)
}

/// A loader of `folder`. If `sealed` is given, it compares contents with that checkpoint's
/// manifest.
fn loader<'a>(
    folder: &'a Path,
    sealed: Option<&'a Committed>,
    options: ReadOptions<'a>,
) -> Loader<'a> {
    let loader = Loader::new(folder).progress(options.progress);
    let loader = match options.ignore_unused {
        true => loader.ignore_unused(),
        false => loader,
    };
    match (options.verify, sealed) {
        (false, _) => loader,
        (true, None) => loader.only_finite(),
        (true, Some(checkpoint)) => loader.only_finite().sealed_by(checkpoint),
    }
}

/// Loads the decoder of a checkpoint or of a Hugging Face folder, with the low-rank updates and the
/// router biases that it has. The weights are those that training continues from;
/// [`checkpoint::load_averages`] replaces them. A folder with a manifest is compared with it.
///
/// # Errors
/// As [`Loader::load`]; when the router biases cannot be read; when a checkpoint of a run has lost
/// its manifest.
pub fn load(folder: &Path, device: &Device, options: ReadOptions<'_>) -> Result<Decoder> {
    load_from(folder, folder::sealed(folder)?.as_ref(), device, options)
}

/// As [`load`], from a checkpoint that is open.
///
/// # Errors
/// As [`load`].
pub fn load_checkpoint(
    checkpoint: &Committed,
    device: &Device,
    options: ReadOptions<'_>,
) -> Result<Decoder> {
    load_from(checkpoint.path(), Some(checkpoint), device, options)
}

fn load_from(
    folder: &Path,
    sealed: Option<&Committed>,
    device: &Device,
    options: ReadOptions<'_>,
) -> Result<Decoder> {
    if sealed.is_none() {
        refuse_unsealed_state(folder)?;
    }
    let Loaded { mut model, ignored, .. } = loader(folder, sealed, options).load(device)?;
    hf::ignored_note(folder, &ignored).into_iter().for_each(options.note);
    if checkpoint::has_buffers(folder) {
        model.add_router_biases();
    }
    checkpoint::init_buffers(&model, device, 0)?;
    if let Some(checkpoint) = sealed {
        checkpoint::read_buffers(checkpoint, &model, options)?;
    }
    Ok(model)
}
