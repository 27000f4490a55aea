//! Checks that a path exists. The error lists the runs or checkpoints that the user may have meant.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::{fs, io};

use anyhow::{Context, bail};
use meshgrad::ckpt::{Listed, discover};

/// The folder of runs, relative to the working directory.
const RUNS: &str = "runs";

/// Checks that `path` exists. The error asks for a run, a checkpoint or `other`, and lists the
/// checkpoints of the run, the runs with a checkpoint of this name, or all runs.
pub(crate) fn check_exists(path: &Path, other: &str) -> anyhow::Result<()> {
    let exists = path.try_exists();
    if exists.with_context(|| format!("cannot read {}", path.display()))? {
        return Ok(());
    }
    let parent = match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        parent => parent.unwrap_or(path),
    };
    let (name, checkpoints) = (path.display(), checkpoints(parent));
    if !checkpoints.is_empty() {
        let (run, checkpoints) = (parent.display(), Listed(&checkpoints));
        bail!("{name} does not exist; checkpoints of {run}: {checkpoints}");
    }
    let runs = match runs(Path::new(RUNS)) {
        Ok(runs) => runs,
        Err(error) => bail!("{name} does not exist; cannot list the runs in {RUNS}: {error}"),
    };
    let with_it = runs.iter().map(|run| run.join(path));
    let with_it: Vec<PathBuf> = with_it.filter(|path| path.exists()).collect();
    if !with_it.is_empty() {
        let with_it = shown(&with_it);
        bail!("{name} does not exist; name one of {}", Listed(&with_it));
    }
    let known = match runs.is_empty() {
        true => format!("there are no runs with checkpoints in {RUNS}"),
        false => format!("runs: {}", Listed(&shown(&runs))),
    };
    bail!("{name} does not exist; name a run, a checkpoint{other}; {known}")
}

/// The names of the complete checkpoints in `run`.
fn checkpoints(run: &Path) -> Vec<String> {
    let found = discover(run).unwrap_or_default();
    let names = found.iter().filter_map(|it| it.path().file_name());
    let names = names.map(|name| name.to_string_lossy().into_owned());
    names.collect()
}

/// The folders in `folder` that have checkpoints; none if it does not exist.
fn runs(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let folders = entries.flatten().map(|entry| entry.path());
    let mut runs: Vec<PathBuf> = folders.filter(|folder| !checkpoints(folder).is_empty()).collect();
    runs.sort();
    Ok(runs)
}

fn shown(paths: &[PathBuf]) -> Vec<String> {
    let shown = paths.iter().map(|path| path.display().to_string());
    shown.collect()
}
