//! The runs that a user may have meant, for errors that name none.

use std::fs;
use std::path::Path;

use anyhow::bail;
use meshgrad::ckpt::discover;

/// The folder of runs, relative to the working directory.
const RUNS: &str = "runs";

/// Runs that are listed.
const LISTED: usize = 20;

/// Checks that there is something at `path`, which is to be a run, a checkpoint, or `other`. The
/// error lists the runs there are.
pub(crate) fn check_exists(path: &Path, other: &str) -> anyhow::Result<()> {
    // The error of opening a checkpoint that is gone names the newest one of its run.
    let is_in_run = path.parent().is_some_and(|parent| has_checkpoints(parent));
    if path.exists() || is_in_run {
        return Ok(());
    }
    let path = path.display();
    bail!(
        "{path} does not exist; name a run, a checkpoint{other}; {}",
        listed(Path::new(RUNS))
    )
}

fn has_checkpoints(folder: &Path) -> bool {
    !folder.as_os_str().is_empty() && discover(folder).is_ok_and(|found| !found.is_empty())
}

fn listed(runs: &Path) -> String {
    let entries = fs::read_dir(runs).into_iter().flatten().flatten();
    let folders = entries.map(|entry| entry.path());
    let mut names: Vec<String> = folders
        .filter(|folder| has_checkpoints(folder))
        .map(|folder| folder.display().to_string())
        .collect();
    names.sort();
    let more = names.len().saturating_sub(LISTED);
    names.truncate(LISTED);
    match (names.is_empty(), more) {
        (true, _) => format!("there are no runs with checkpoints in {}", runs.display()),
        (false, 0) => format!("runs: {}", names.join(", ")),
        (false, more) => format!("runs: {} and {more} more", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_without_checkpoints_are_not_listed() {
        let place = tempfile::tempdir().unwrap();
        let runs = place.path().join("runs");
        let none = format!("there are no runs with checkpoints in {}", runs.display());
        assert_eq!(listed(&runs), none);
        fs::create_dir_all(runs.join("empty/step-000001")).unwrap();
        assert_eq!(listed(&runs), none);
    }
}
