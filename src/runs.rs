//! Checks that a path exists. The error lists the runs or checkpoints that the user may have meant.

use std::fs;
use std::path::Path;

use anyhow::bail;
use meshgrad::ckpt::{Listed, discover};

/// The folder of runs, relative to the working directory.
const RUNS: &str = "runs";

/// Checks that `path` exists. The error asks for a run, a checkpoint or `other`, and lists the
/// checkpoints of the run, or all runs.
pub(crate) fn check_exists(path: &Path, other: &str) -> anyhow::Result<()> {
    if path.exists() {
        return Ok(());
    }
    let run = path.parent().unwrap_or(path);
    let (path, checkpoints) = (path.display(), checkpoints(run));
    if !checkpoints.is_empty() {
        let (run, checkpoints) = (run.display(), Listed(&checkpoints));
        bail!("{path} does not exist; checkpoints of {run}: {checkpoints}");
    }
    let runs = runs(Path::new(RUNS));
    let known = match runs.is_empty() {
        true => format!("there are no runs with checkpoints in {RUNS}"),
        false => format!("runs: {}", Listed(&runs)),
    };
    bail!("{path} does not exist; name a run, a checkpoint{other}; {known}")
}

/// The names of the complete checkpoints in `run`.
fn checkpoints(run: &Path) -> Vec<String> {
    let found = discover(run).unwrap_or_default();
    let names = found.iter().filter_map(|it| it.path().file_name());
    let names = names.map(|name| name.to_string_lossy().into_owned());
    names.collect()
}

/// The folders in `folder` that have checkpoints.
fn runs(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let folders = entries.map(|entry| entry.path());
    let mut runs: Vec<String> = folders
        .filter(|folder| !checkpoints(folder).is_empty())
        .map(|folder| folder.display().to_string())
        .collect();
    runs.sort();
    runs
}
