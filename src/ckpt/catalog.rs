//! What a path holds: tensors by name, whatever file, folder or run they are in.
//!
//! ```text
//! a safetensors file               its tensors
//! a Hugging Face folder            the model; with trainer/ beside it, that too
//! any other folder of safetensors  every file, or every folder below it, as a part of its own
//! a checkpoint of a run            model and trainer/, sealed by manifest.json
//! a run                            its newest complete checkpoint
//! ```

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use glob::Pattern;
use meshgrad::ckpt::{
    Committed, Error, Folder, IntegrityError, Scan, TensorFile, TensorInfo, scan,
};

use super::fold::{fold, natural_order};
use crate::table::printable;

const EXTENSION: &str = "safetensors";

/// The tensors under a path.
pub(crate) struct Catalog {
    /// Where the tensors are: for a run, the folder of its newest complete checkpoint.
    pub(crate) path: PathBuf,
    pub(crate) kind: Kind,
    pub(crate) parts: Vec<Part>,
    /// What is worth a warning but forbids nothing.
    pub(crate) warnings: Vec<String>,
    /// All checkpoints, where the path is a run.
    pub(crate) run: Option<Scan>,
}

/// What a path is.
pub(crate) enum Kind {
    File,
    /// `model.safetensors`, or an index with its files.
    Model,
    /// Files or folders that no index ties together.
    Files,
    Checkpoint(Committed),
}

impl Kind {
    /// A word for programs.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Kind::File => "file",
            Kind::Model => "model",
            Kind::Files => "files",
            Kind::Checkpoint(_) => "checkpoint",
        }
    }

    /// A few words for people.
    pub(crate) fn describe(&self) -> String {
        match self {
            Kind::File => "a safetensors file".to_owned(),
            Kind::Model => "a Hugging Face folder".to_owned(),
            Kind::Files => "safetensors that no index ties together".to_owned(),
            Kind::Checkpoint(checkpoint) => match checkpoint.step() {
                Some(step) => format!("a checkpoint, of step {step}, sealed by its manifest"),
                None => "a checkpoint, sealed by its manifest".to_owned(),
            },
        }
    }
}

/// Tensors whose names are unique.
pub(crate) struct Part {
    /// Its folder or file below the path; empty for the path's own.
    pub(crate) name: String,
    store: Store,
}

enum Store {
    File(TensorFile),
    Folder(Folder),
}

/// A tensor and how to read it.
#[derive(Clone)]
pub(crate) struct Entry<'a> {
    /// Its name, after the name of its part and a slash if that has one.
    pub(crate) name: String,
    pub(crate) info: &'a TensorInfo,
    file: &'a TensorFile,
}

impl Entry<'_> {
    /// How many elements it has.
    pub(crate) fn elements(&self) -> u64 {
        self.info
            .shape
            .iter()
            .map(|&extent| extent as u64)
            .product()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.info.byte_len() as u64
    }

    /// Reads its bytes from `offset` on, as many as `data` has.
    pub(crate) fn read(&self, offset: usize, data: &mut [u8]) -> anyhow::Result<()> {
        Ok(self.file.read_range_into(&self.info.name, offset, data)?)
    }
}

impl Part {
    pub(crate) fn files(&self) -> &[TensorFile] {
        match &self.store {
            Store::File(file) => std::slice::from_ref(file),
            Store::Folder(folder) => folder.files(),
        }
    }

    /// Its tensors, sorted so that numbers count as numbers.
    pub(crate) fn entries(&self) -> Vec<Entry<'_>> {
        let mut entries = Vec::new();
        for file in self.files() {
            entries.extend(file.tensors().iter().map(|info| Entry {
                name: match self.name.as_str() {
                    "" => info.name.clone(),
                    part => format!("{part}/{}", info.name),
                },
                info,
                file,
            }));
        }
        entries.sort_by(|a, b| natural_order(&a.name, &b.name));
        entries
    }
}

impl Catalog {
    /// Opens what is at `path` and checks all headers and indexes; reads no data.
    pub(crate) fn open(path: &Path) -> anyhow::Result<Catalog> {
        let metadata =
            fs::metadata(path).with_context(|| format!("cannot open {}", display_path(path)))?;
        if !metadata.is_dir() {
            return Ok(Catalog::new(path, Kind::File, vec![Part::file("", path)?]));
        }

        let warning = match Committed::open(path) {
            Ok(checkpoint) => return Catalog::from_checkpoint(checkpoint),
            Err(Error::Incomplete {
                problem: IntegrityError::NoManifest,
                ..
            }) => None,
            Err(error @ Error::Incomplete { .. }) => Some(error.to_string()),
            Err(error) => return Err(error.into()),
        };
        let mut catalog = Catalog::of_folder(path)?;
        catalog.warnings.extend(warning);
        Ok(catalog)
    }

    /// A sealed folder: every folder below it that has safetensors is a part.
    pub(crate) fn from_checkpoint(checkpoint: Committed) -> anyhow::Result<Catalog> {
        let path = checkpoint.path().to_owned();
        let files = checkpoint.files().map(|(file, _)| Path::new(file));
        let folders: BTreeSet<PathBuf> = files
            .filter(|file| file.extension().is_some_and(|e| e == EXTENSION))
            .filter_map(|file| Some(file.parent()?.to_owned()))
            .collect();

        let mut catalog = Catalog::new(&path, Kind::Checkpoint(checkpoint), Vec::new());
        for folder in folders {
            catalog.add_folder(&folder.to_string_lossy())?;
        }
        Ok(catalog)
    }

    fn of_folder(path: &Path) -> anyhow::Result<Catalog> {
        let mut catalog = Catalog::new(path, Kind::Files, Vec::new());
        if catalog.add_folder("")? {
            catalog.kind = Kind::Model;
        }
        if !catalog.parts.is_empty() {
            // What a save that never came to its seal left beside the model.
            catalog.add_folders_below("trainer")?;
            return Ok(catalog);
        }

        let survey = scan(path)?;
        if !survey.complete.is_empty() || !survey.incomplete.is_empty() {
            return Catalog::of_run(path, survey);
        }
        catalog.add_folders_below("")?;
        if catalog.parts.is_empty() {
            bail!(
                "{} holds no safetensors file and no checkpoint; give a safetensors file, a folder \
                 of them, a run or one of its checkpoints",
                display_path(path)
            );
        }
        Ok(catalog)
    }

    fn of_run(path: &Path, survey: Scan) -> anyhow::Result<Catalog> {
        let incomplete: Vec<String> = survey.incomplete.iter().map(Error::to_string).collect();
        let Some(newest) = survey.complete.last().cloned() else {
            let reasons = incomplete.join("; ");
            bail!(
                "{} has no complete checkpoint: {reasons}",
                display_path(path)
            );
        };
        let mut catalog = Catalog::from_checkpoint(newest)?;
        catalog.warnings.extend(incomplete);
        catalog.run = Some(survey);
        Ok(catalog)
    }

    fn new(path: &Path, kind: Kind, parts: Vec<Part>) -> Catalog {
        Catalog {
            path: path.to_owned(),
            kind,
            parts,
            warnings: Vec::new(),
            run: None,
        }
    }

    /// Adds the tensors of a folder, "" for the path itself; whether it is a Hugging Face folder.
    fn add_folder(&mut self, name: &str) -> anyhow::Result<bool> {
        let folder = below(&self.path, name);
        let files = safetensors_files(&folder)?;
        match Folder::open(&folder) {
            Ok(model) => {
                let is_other = |file: &&String| !contains_file(&model, &folder.join(file));
                let others: Vec<&str> = files.iter().filter(is_other).map(String::as_str).collect();
                if !others.is_empty() {
                    self.warnings.push(format!(
                        "{} holds files that are not of its model: {}; give their own paths",
                        display_path(&folder),
                        others.join(", ")
                    ));
                }
                let store = Store::Folder(model);
                let name = name.to_owned();
                self.parts.push(Part { name, store });
                Ok(true)
            }
            Err(Error::NoModel { .. }) => {
                let alone = files.len() == 1;
                for file in &files {
                    let name = match (name, alone) {
                        (name, true) => name.to_owned(),
                        ("", false) => file.clone(),
                        (name, false) => format!("{name}/{file}"),
                    };
                    self.parts.push(Part::file(&name, &folder.join(file))?);
                }
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Adds the folders that lie directly in a folder and have safetensors.
    fn add_folders_below(&mut self, name: &str) -> anyhow::Result<()> {
        let folder = below(&self.path, name);
        if !folder.is_dir() {
            return Ok(());
        }
        let mut below = file_names(&folder)?;
        below.retain(|name| !name.starts_with('.') && folder.join(name).is_dir());
        for inner in below {
            if !safetensors_files(&folder.join(&inner))?.is_empty() {
                let prefix = if name.is_empty() { "" } else { "/" };
                self.add_folder(&format!("{name}{prefix}{inner}"))?;
            }
        }
        Ok(())
    }

    /// All tensors, part after part.
    pub(crate) fn entries(&self) -> Vec<Entry<'_>> {
        self.parts.iter().flat_map(Part::entries).collect()
    }

    /// The tensors that one of `globs` names; all of them without any.
    pub(crate) fn select(&self, globs: &[Pattern]) -> anyhow::Result<Vec<Entry<'_>>> {
        let entries = self.entries();
        for glob in globs {
            if !entries.iter().any(|entry| glob.matches(&entry.name)) {
                bail!("{}", self.no_match(glob.as_str(), &entries));
            }
        }
        let selected =
            |entry: &Entry| globs.is_empty() || globs.iter().any(|glob| glob.matches(&entry.name));
        Ok(entries.into_iter().filter(selected).collect())
    }

    /// The message for a pattern that names nothing.
    pub(crate) fn no_match(&self, glob: &str, entries: &[Entry]) -> String {
        const SHOWN: usize = 3;

        // One of each pattern: else all three would be the same with other numbers.
        let folded = fold(entries.iter().map(|entry| (entry.name.as_str(), ())));
        let firsts = folded.iter().filter_map(|f| f.members.first());
        let mut nearest: Vec<&str> = firsts.map(|&at| entries[at].name.as_str()).collect();
        let wanted: Vec<char> = glob.chars().filter(|c| !"*?[]".contains(*c)).collect();
        nearest.sort_by_cached_key(|name| substring_distance(&wanted, name));
        nearest.truncate(SHOWN);

        let count = entries.len();
        let mut message = format!(
            "no tensor matches `{glob}` among the {count} of {}",
            display_path(&self.path)
        );
        if !nearest.is_empty() {
            let nearest = nearest.iter().map(|name| format!("`{}`", printable(name)));
            let nearest: Vec<String> = nearest.collect();
            message.push_str(&format!("; the nearest names are {}", nearest.join(", ")));
        }
        message
    }

    /// The files of all parts.
    pub(crate) fn files(&self) -> impl Iterator<Item = &TensorFile> {
        self.parts.iter().flat_map(Part::files)
    }
}

impl Part {
    fn file(name: &str, path: &Path) -> anyhow::Result<Part> {
        let store = Store::File(TensorFile::open(path)?);
        let name = name.to_owned();
        Ok(Part { name, store })
    }
}

/// How many edits make `wanted` a part of `name` (Sellers 1980).
fn substring_distance(wanted: &[char], name: &str) -> usize {
    // Edits that make the first characters of `wanted` the end of what was read of `name`.
    let mut edits: Vec<usize> = (0..=wanted.len()).collect();
    let mut fewest = wanted.len();
    for character in name.chars() {
        let mut diagonal = 0;
        for (at, other) in wanted.iter().enumerate() {
            let replaced = diagonal + usize::from(*other != character);
            diagonal = edits[at + 1];
            edits[at + 1] = replaced.min(diagonal + 1).min(edits[at] + 1);
        }
        fewest = fewest.min(edits[wanted.len()]);
    }
    fewest
}

/// A folder below another one, or with an empty name that one.
fn below(folder: &Path, name: &str) -> PathBuf {
    match name {
        "" => folder.to_owned(),
        name => folder.join(name),
    }
}

/// Whether a model consists of this file too, by a link or by its own name.
fn contains_file(model: &Folder, path: &Path) -> bool {
    let real = fs::canonicalize(path).ok();
    let paths = model.files().iter().map(TensorFile::path);
    let mut reals = paths.map(|file| fs::canonicalize(file).ok());
    reals.any(|file| file == real)
}

/// The names of the safetensors files directly in a folder, sorted.
fn safetensors_files(folder: &Path) -> anyhow::Result<Vec<String>> {
    let mut names = file_names(folder)?;
    names.retain(|name| {
        let path = Path::new(name);
        !name.starts_with('.') && path.extension().is_some_and(|e| e == EXTENSION)
    });
    Ok(names)
}

fn file_names(folder: &Path) -> anyhow::Result<Vec<String>> {
    let read = || -> std::io::Result<Vec<String>> {
        let entries = fs::read_dir(folder)?;
        let names = entries.map(|entry| Ok(entry?.file_name().into_string()));
        let names: std::io::Result<Vec<_>> = names.collect();
        Ok(names?.into_iter().flatten().collect())
    };
    let mut names = read().with_context(|| format!("cannot read {}", display_path(folder)))?;
    names.sort();
    Ok(names)
}

/// A path as it can be shown.
pub(crate) fn display_path(path: &Path) -> String {
    printable(&path.to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_are_counted_wherever_they_are_fewest() {
        let edits =
            |wanted: &str, name| substring_distance(&wanted.chars().collect::<Vec<_>>(), name);
        assert_eq!(edits("norm", "model.norm.weight"), 0);
        assert_eq!(edits("nrom", "model.norm.weight"), 2);
        assert_eq!(edits("q_prj", "layers.0.q_proj.weight"), 1);
        assert_eq!(edits("xyz", "abc"), 3);
        assert_eq!(edits("", "abc"), 0);
        assert_eq!(edits("abc", ""), 3);
    }
}
