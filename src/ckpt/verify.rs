//! `meshgrad ckpt verify`: checks the integrity of checkpoints.

use std::path::{Path, PathBuf};

use anyhow::Context;
use meshgrad::ckpt::torch::{Checksum, Format, TorchModel};
use meshgrad::ckpt::{Committed, Error, Incomplete, IntegrityError, Kind, Links, path_of, scan};
use serde::Serialize;

use super::arguments::LinkArguments;
use super::catalog::Catalog;
use super::size::{self, counted};
use super::values::parallel_map;
use super::warn;
use crate::answer::Answer;
use crate::table::Side::{Left, Right};
use crate::table::{Table, display_path, printable};

#[derive(clap::Args)]
#[command(
    after_help = "Exit codes: 0 no damage, 1 damage was found, 2 not supported, or an error."
)]
pub(super) struct VerifyArguments {
    /// A checkpoint, or a run: all its checkpoints. Other folders and files have no manifest; their
    /// headers and index are checked, and with --deep the checksums of PyTorch's files.
    path: PathBuf,
    /// Read all data and compare digests with the manifest, or CRC-32 with the zip archive.
    #[arg(long)]
    deep: bool,
    #[command(flatten)]
    links: LinkArguments,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    path: String,
    deep: bool,
    status: Status,
    checked: Vec<Verdict>,
    warnings: Vec<String>,
}

/// The result for one checkpoint, folder or file.
#[derive(Serialize)]
struct Verdict {
    path: String,
    /// Whether it has a manifest with digests.
    sealed: bool,
    status: Status,
    files: u64,
    bytes: u64,
    problem: Option<String>,
    /// The number of CRC-32 that were compared.
    checksums: u64,
    /// What was not compared with a digest or checksum.
    not_checked: Option<String>,
}

/// The statuses, from best to worst.
#[derive(Serialize, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "lowercase")]
enum Status {
    Ok,
    /// Another process removed the checkpoint meanwhile.
    Removed,
    /// A sound file that this program does not read.
    Unsupported,
    Unreadable,
    Damaged,
}

impl Status {
    fn code(self) -> u8 {
        match self {
            Status::Ok | Status::Removed => 0,
            Status::Damaged => 1,
            Status::Unsupported | Status::Unreadable => 2,
        }
    }

    fn text(self) -> &'static str {
        match self {
            Status::Ok => "ok",
            Status::Removed => "removed meanwhile",
            Status::Damaged => "DAMAGED",
            Status::Unsupported => "NOT SUPPORTED",
            Status::Unreadable => "UNREADABLE",
        }
    }

    /// Files that cannot be read, or that need a newer version, are not necessarily damaged.
    fn of(error: &Error) -> Status {
        match error.kind() {
            Kind::Malformed | Kind::Damaged => Status::Damaged,
            Kind::Unsupported if error.details::<Incomplete>().is_none() => Status::Unsupported,
            _ => Status::Unreadable,
        }
    }
}

pub(super) fn verify(arguments: &VerifyArguments, threads: usize) -> anyhow::Result<Answer> {
    let path = &arguments.path;
    let mut report = Report {
        path: path.to_string_lossy().into_owned(),
        deep: arguments.deep,
        status: Status::Ok,
        checked: Vec::new(),
        warnings: Vec::new(),
    };
    let mut sealed = Vec::new();
    match find(path)? {
        Found::Checkpoints(complete, incomplete) => {
            sealed = complete;
            report.checked.extend(incomplete);
        }
        Found::Unsealed => {
            let links = arguments.links.links();
            report.check_unsealed(path, links, threads)?;
        }
    }

    let checked = if arguments.deep {
        check_digests(&sealed, threads)
    } else {
        sealed.iter().map(Verdict::from_checkpoint).collect()
    };
    report.checked.extend(checked);
    report.checked.sort_by(|a, b| a.path.cmp(&b.path));
    let worst = report.checked.iter().map(|verdict| verdict.status).max();
    report.status = worst.unwrap_or(Status::Ok);

    let code = report.status.code();
    if arguments.json {
        return Answer::json(&report, code);
    }
    warn(&report.warnings);
    let text = report.text();
    Ok(Answer { text, code })
}

/// What a path contains.
enum Found {
    /// Complete checkpoints with files of the right sizes, and verdicts on the others.
    Checkpoints(Vec<Committed>, Vec<Verdict>),
    Unsealed,
}

fn find(path: &Path) -> anyhow::Result<Found> {
    let metadata =
        path.metadata().with_context(|| format!("cannot open {}", display_path(path)))?;
    if !metadata.is_dir() {
        return Ok(Found::Unsealed);
    }

    match Committed::open(path) {
        Ok(checkpoint) => return Ok(Found::Checkpoints(vec![checkpoint], Vec::new())),
        Err(error) => match error.details() {
            Some(Incomplete { problem: IntegrityError::NoManifest, .. }) => {}
            Some(Incomplete { .. }) => {
                return Ok(Found::Checkpoints(Vec::new(), vec![Verdict::of_error(&error)]));
            }
            None => return Err(error.into()),
        },
    }

    let scan = scan(path)?;
    if scan.complete.is_empty() && scan.incomplete.is_empty() {
        return Ok(Found::Unsealed);
    }
    let incomplete = scan.incomplete.iter().map(Verdict::of_error).collect();
    Ok(Found::Checkpoints(scan.complete, incomplete))
}

/// Reads all files of the checkpoints.
fn check_digests(sealed: &[Committed], threads: usize) -> Vec<Verdict> {
    let bytes = |checkpoint: &Committed| checkpoint.files().map(|(_, bytes)| bytes).sum::<u64>();
    let all = sealed.iter().map(bytes).sum();
    let worker = || {
        |at: usize, progress: &indicatif::ProgressBar| {
            let mut verdict = Verdict::from_checkpoint(&sealed[at]);
            match sealed[at].verify() {
                Ok(()) => {}
                Err(_) if sealed[at].is_removed() => verdict.status = Status::Removed,
                Err(error) => {
                    verdict.status = Status::of(&error);
                    verdict.problem = Some(problem(&error));
                }
            }
            progress.inc(bytes(&sealed[at]));
            Ok(verdict)
        }
    };
    let verdicts = parallel_map(threads, sealed.len(), all, worker);
    verdicts.into_iter().flatten().collect()
}

/// Compares the checksums of zip entries. Returns their number.
fn check_entries(model: &TorchModel, entries: &[Checksum], threads: usize) -> anyhow::Result<u64> {
    let all = entries.iter().map(Checksum::bytes).sum();
    let worker = || {
        |at: usize, progress: &indicatif::ProgressBar| {
            model.verify(&entries[at])?;
            progress.inc(entries[at].bytes());
            Ok(())
        }
    };
    let results = parallel_map(threads, entries.len(), all, worker);
    results.into_iter().collect::<anyhow::Result<()>>()?;
    Ok(entries.len() as u64)
}

/// The parts of PyTorch files that have no checksum. `archives` is the number of zip files whose
/// data has none either.
fn without_checksum(model: &TorchModel, archives: usize) -> String {
    let files = model.assembly.folder().files().len();
    let never = match model.format {
        Format::Distributed => {
            ".metadata, zip directories and values that are not tensors, which have"
        }
        Format::Folder if files > 1 => "index and zip directories, which have",
        _ => "the zip directory, which has",
    };
    let archives = match archives {
        0 => String::new(),
        _ => format!("the data of {} without CRC-32; ", counted(archives as u64, "archive")),
    };
    format!("{archives}{never} no checksum")
}

impl Verdict {
    fn from_checkpoint(checkpoint: &Committed) -> Verdict {
        Verdict {
            path: checkpoint.path().to_string_lossy().into_owned(),
            sealed: true,
            status: Status::Ok,
            files: checkpoint.files().len() as u64,
            bytes: checkpoint.files().map(|(_, bytes)| bytes).sum(),
            problem: None,
            checksums: 0,
            not_checked: None,
        }
    }

    fn of_error(error: &Error) -> Verdict {
        let has_no_manifest = |it: &Incomplete| it.problem == IntegrityError::NoManifest;
        Verdict {
            path: path_of(error).unwrap_or(Path::new("")).to_string_lossy().into_owned(),
            sealed: !error.details().is_some_and(has_no_manifest),
            status: Status::of(error),
            files: 0,
            bytes: 0,
            problem: Some(problem(error)),
            checksums: 0,
            not_checked: None,
        }
    }
}

/// The error without its path.
pub(super) fn problem(error: &Error) -> String {
    match error.details() {
        Some(Incomplete { problem, .. }) => problem.to_string(),
        None => error.to_string(),
    }
}

impl Report {
    /// Checks headers and indexes. A file that cannot be read is an error.
    fn check_unsealed(&mut self, path: &Path, links: Links, threads: usize) -> anyhow::Result<()> {
        let mut verdict = Verdict {
            path: path.to_string_lossy().into_owned(),
            sealed: false,
            status: Status::Ok,
            files: 0,
            bytes: 0,
            problem: None,
            checksums: 0,
            not_checked: None,
        };
        let checked = Catalog::open(path, links).and_then(|catalog| {
            let model = catalog.torch_models().next();
            let checksums = model.map(TorchModel::checksums).transpose()?;
            let not_checked = match model.zip(checksums) {
                None => "the data, which has no digests without a manifest".to_owned(),
                Some((model, checksums)) if self.deep || checksums.entries.is_empty() => {
                    verdict.checksums = check_entries(model, &checksums.entries, threads)?;
                    without_checksum(model, checksums.without)
                }
                Some(_) => "the data; --deep compares the CRC-32 of each zip entry".to_owned(),
            };
            verdict.not_checked = Some(not_checked);
            Ok(catalog)
        });
        match checked {
            Ok(catalog) => {
                verdict.files = catalog.files().count() as u64;
                verdict.bytes = catalog.entries().iter().map(|entry| entry.bytes()).sum();
                self.warnings = catalog.warnings;
            }
            Err(error) => {
                let Some(found) = error.downcast_ref::<Error>() else {
                    return Err(error);
                };
                verdict.status = Status::of(found);
                if verdict.status == Status::Unreadable {
                    return Err(error);
                }
                verdict.problem = Some(problem(found));
            }
        }
        self.checked.push(verdict);
        Ok(())
    }

    fn text(&self) -> String {
        let mut table = Table::new([Left, Left, Right, Right, Left]);
        for verdict in &self.checked {
            let [files, bytes] = match verdict.files {
                0 => [String::new(), String::new()],
                files => [counted(files, "file"), size::bytes(verdict.bytes)],
            };
            let problem = verdict.problem.as_deref().map(printable);
            table.row([
                printable(&verdict.path),
                verdict.status.text().to_owned(),
                files,
                bytes,
                problem.unwrap_or_default(),
            ]);
        }
        format!("{table}\n{}\n", self.summary())
    }

    fn summary(&self) -> String {
        let count = |counted: &[Status]| {
            let verdicts = self.checked.iter();
            verdicts.filter(|it| counted.contains(&it.status)).count()
        };
        let all = self.checked.len();
        match count(&[Status::Unreadable, Status::Damaged]) {
            0 => {}
            bad => return format!("{bad} of {all} failed"),
        }
        match count(&[Status::Unsupported]) {
            0 => {}
            unsupported => return format!("{unsupported} of {all} not checked"),
        }
        let all = all - count(&[Status::Removed]);
        let unsealed = self.checked.iter().find(|verdict| !verdict.sealed);
        if let Some(not_checked) = unsealed.and_then(|verdict| verdict.not_checked.as_ref()) {
            let compared: u64 = self.checked.iter().map(|verdict| verdict.checksums).sum();
            let compared = match compared {
                0 => String::new(),
                _ => format!(", {} are correct", counted(compared, "CRC-32")),
            };
            return format!("headers and index are valid{compared}; not checked: {not_checked}");
        }
        let checkpoints = counted(all as u64, "checkpoint");
        match self.deep {
            true => format!("{checkpoints}: manifests, sizes and digests are correct"),
            false => format!(
                "{checkpoints}: manifests and sizes are correct; --deep also verifies the data"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use meshgrad::ckpt::{Staging, step_name};

    use super::*;

    fn save(run: &Path, step: u64) -> Committed {
        let mut staging = Staging::new(run, &step_name(step)).unwrap();
        staging.write("config.json", b"{}").unwrap();
        staging.commit().unwrap()
    }

    /// A checkpoint that a trainer prunes while it is read is not damaged. One that lost a file is.
    #[test]
    fn a_removed_checkpoint_is_not_damaged() {
        let run = tempfile::tempdir().unwrap();
        let sealed = [1, 2, 3].map(|step| save(run.path(), step));
        std::fs::remove_dir_all(sealed[0].path()).unwrap();
        std::fs::remove_file(sealed[1].path().join("config.json")).unwrap();
        let verdicts = check_digests(&sealed, 1);
        let statuses: Vec<&str> = verdicts.iter().map(|it| it.status.text()).collect();
        assert_eq!(statuses, ["removed meanwhile", "DAMAGED", "ok"]);
    }
}
