//! The tensors under a path, by name.
//!
//! ```text
//! a safetensors file               its tensors
//! a Hugging Face folder            the model, and trainer/ if it exists
//! any other folder of safetensors  every file or subfolder as a separate part
//! a checkpoint of a run            model and trainer/, with manifest.json
//! a run                            its newest complete checkpoint
//! a file or folder of PyTorch      the tensors of its state_dict
//! ```

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use glob::Pattern;
use meshgrad::ckpt::torch::{self, Format, TorchModel};
use meshgrad::ckpt::{
    Committed, Error, Folder, Incomplete, IntegrityError, Links, Scan, TensorFile, TensorInfo, scan,
};

use super::assembled::{Assembled, Reader};
use super::beside::{EXTENSION, beside_torch, folder_names, not_of_the_model, safetensors_files};
use super::fold::{fold, natural_order};
use super::source::{is_of_torch, left_out};
use crate::table::{display_path, printable};

/// The tensors under a path.
pub(crate) struct Catalog {
    /// The folder or file of the tensors; for a run, the newest complete checkpoint.
    pub(crate) path: PathBuf,
    pub(crate) kind: Kind,
    pub(crate) parts: Vec<Part>,
    /// Problems that do not prevent reading.
    pub(crate) warnings: Vec<String>,
    /// All checkpoints, if the path is a run.
    pub(crate) run: Option<Scan>,
    /// Whether files of a model may be links.
    links: Links,
}

/// The kind of a path.
pub(crate) enum Kind {
    File,
    /// `model.safetensors`, or an index with its files.
    Model,
    /// Files or folders without a common index.
    Files,
    Checkpoint(Committed),
    Torch(Format),
}

impl Kind {
    /// The kind in JSON.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Kind::File => "file",
            Kind::Model => "model",
            Kind::Files => "files",
            Kind::Checkpoint(_) => "checkpoint",
            Kind::Torch(Format::File) => "torch file",
            Kind::Torch(Format::Distributed) => "torch distributed checkpoint",
            Kind::Torch(_) => "torch model",
        }
    }

    /// The kind in text.
    pub(crate) fn describe(&self) -> String {
        match self {
            Kind::File => "safetensors file".to_owned(),
            Kind::Model => "Hugging Face folder".to_owned(),
            Kind::Files => "safetensors files without a common index".to_owned(),
            Kind::Checkpoint(checkpoint) => match checkpoint.step() {
                Some(step) => format!("checkpoint of step {step}"),
                None => "checkpoint".to_owned(),
            },
            Kind::Torch(Format::File) => "file of PyTorch".to_owned(),
            Kind::Torch(Format::Distributed) => "distributed checkpoint of PyTorch".to_owned(),
            Kind::Torch(_) => "model of PyTorch".to_owned(),
        }
    }
}

/// Tensors with unique names.
pub(crate) struct Part {
    /// The folder or file relative to the path; empty for the path itself.
    pub(crate) name: String,
    store: Store,
}

enum Store {
    File(TensorFile),
    Folder(Folder),
    InParts(Box<Assembled>),
}

/// A tensor and how to read it.
#[derive(Clone)]
pub(crate) struct Entry<'a> {
    /// The tensor's name, prefixed by the name of its part and a slash unless that name is empty.
    pub(crate) name: String,
    pub(crate) info: &'a TensorInfo,
    data: Data<'a>,
}

/// Where the bytes of a tensor are.
#[derive(Clone)]
enum Data<'a> {
    Stored(&'a TensorFile),
    /// The number of the tensor.
    InParts(Arc<Reader<'a>>, usize),
}

impl Entry<'_> {
    /// The number of elements.
    pub(crate) fn elements(&self) -> u64 {
        self.info.shape.iter().map(|&extent| extent as u64).product()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.info.byte_len() as u64
    }

    /// Fills `data` with the tensor's bytes from `offset` on.
    pub(crate) fn read(&self, offset: usize, data: &mut [u8]) -> anyhow::Result<()> {
        match &self.data {
            Data::Stored(file) => Ok(file.read_range_into(&self.info.name, offset, data)?),
            Data::InParts(reader, number) => reader.read(*number, offset, data),
        }
    }
}

impl Part {
    pub(crate) fn files(&self) -> &[TensorFile] {
        match &self.store {
            Store::File(file) => std::slice::from_ref(file),
            Store::Folder(folder) => folder.files(),
            Store::InParts(all) => all.model().assembly.folder().files(),
        }
    }

    /// Its tensors in natural order of names.
    pub(crate) fn entries<'a>(&'a self) -> Vec<Entry<'a>> {
        let mut entries = Vec::new();
        let mut add = |info: &'a TensorInfo, data| {
            let name = match self.name.as_str() {
                "" => info.name.clone(),
                part => format!("{part}/{}", info.name),
            };
            entries.push(Entry { name, info, data });
        };
        match &self.store {
            Store::InParts(all) => {
                let reader = Arc::new(all.reader());
                for (number, info) in all.tensors().iter().enumerate() {
                    add(info, Data::InParts(Arc::clone(&reader), number));
                }
            }
            Store::File(_) | Store::Folder(_) => {
                for file in self.files() {
                    let tensors = file.tensors().iter();
                    tensors.for_each(|info| add(info, Data::Stored(file)));
                }
            }
        }
        entries.sort_by(|a, b| natural_order(&a.name, &b.name));
        entries
    }
}

impl Catalog {
    /// Opens `path` and checks all headers and indexes; reads no data.
    pub(crate) fn open(path: &Path, links: Links) -> anyhow::Result<Catalog> {
        let metadata =
            fs::metadata(path).with_context(|| format!("cannot open {}", display_path(path)))?;
        if !metadata.is_dir() {
            if is_of_torch(path) {
                return Catalog::of_torch(path, torch::open_file(path)?);
            }
            let parts = vec![Part::file("", path)?];
            return Ok(Catalog::new(path, Kind::File, parts, links));
        }

        let warning = match Committed::open(path) {
            Ok(checkpoint) => return Catalog::from_checkpoint(checkpoint, links),
            Err(error) => match error.details() {
                Some(Incomplete { problem: IntegrityError::NoManifest, .. }) => None,
                Some(Incomplete { .. }) => Some(error.to_string()),
                None => return Err(error.into()),
            },
        };
        let mut catalog = Catalog::of_folder(path, links)?;
        catalog.warnings.extend(warning);
        Ok(catalog)
    }

    /// A checkpoint: every folder in it with safetensors is a part.
    fn from_checkpoint(checkpoint: Committed, links: Links) -> anyhow::Result<Catalog> {
        let path = checkpoint.path().to_owned();
        let files = checkpoint.files().map(|(file, _)| Path::new(file));
        let folders: BTreeSet<PathBuf> = files
            .filter(|file| file.extension().is_some_and(|e| e == EXTENSION))
            .filter_map(|file| Some(file.parent()?.to_owned()))
            .collect();

        let kind = Kind::Checkpoint(checkpoint);
        let mut catalog = Catalog::new(&path, kind, Vec::new(), links);
        for folder in folders {
            catalog.add_folder(&folder.to_string_lossy())?;
        }
        if catalog.parts.is_empty()
            && let Some(model) = torch::open(&path, links)?
        {
            catalog.add_torch(model)?;
        }
        Ok(catalog)
    }

    fn of_torch(path: &Path, model: TorchModel) -> anyhow::Result<Catalog> {
        let kind = Kind::Torch(model.format);
        let mut catalog = Catalog::new(path, kind, Vec::new(), Links::Refuse);
        catalog.add_torch(model)?;
        Ok(catalog)
    }

    fn add_torch(&mut self, model: TorchModel) -> anyhow::Result<()> {
        self.warnings.extend(left_out(&model));
        self.parts.push(Part {
            name: String::new(),
            store: Store::InParts(Box::new(Assembled::new(model)?)),
        });
        Ok(())
    }

    fn of_folder(path: &Path, links: Links) -> anyhow::Result<Catalog> {
        let mut catalog = Catalog::new(path, Kind::Files, Vec::new(), links);
        if catalog.add_folder("")? {
            catalog.kind = Kind::Model;
        } else if let Some(model) = torch::open(path, links)? {
            let mut of_torch = Catalog::of_torch(path, model)?;
            of_torch.warnings.extend(beside_torch(path)?);
            return Ok(of_torch);
        }
        if !catalog.parts.is_empty() {
            // An incomplete save may have left a trainer folder.
            catalog.add_folders_below("trainer")?;
            return Ok(catalog);
        }

        let scan = scan(path)?;
        if !scan.complete.is_empty() || !scan.incomplete.is_empty() {
            return Catalog::of_run(path, scan, links);
        }
        catalog.add_folders_below("")?;
        if catalog.parts.is_empty() {
            bail!(
                "{} contains no safetensors file, no model of PyTorch and no checkpoint; pass a \
                 file of safetensors or PyTorch, a folder of them, a run or one of its checkpoints",
                display_path(path)
            );
        }
        Ok(catalog)
    }

    fn of_run(path: &Path, scan: Scan, links: Links) -> anyhow::Result<Catalog> {
        let incomplete: Vec<String> = scan.incomplete.iter().map(Error::to_string).collect();
        let Some(newest) = scan.complete.last().cloned() else {
            let reasons = incomplete.join("; ");
            bail!("{} has no complete checkpoint: {reasons}", display_path(path));
        };
        let mut catalog = Catalog::from_checkpoint(newest, links)?;
        catalog.warnings.extend(incomplete);
        catalog.run = Some(scan);
        Ok(catalog)
    }

    fn new(path: &Path, kind: Kind, parts: Vec<Part>, links: Links) -> Catalog {
        Catalog { path: path.to_owned(), kind, parts, warnings: Vec::new(), run: None, links }
    }

    /// Adds the tensors of a folder, "" for the path itself; returns whether it is a Hugging Face
    /// folder.
    fn add_folder(&mut self, name: &str) -> anyhow::Result<bool> {
        let folder = below(&self.path, name);
        let files = safetensors_files(&folder)?;
        match Folder::open_with(&folder, self.links) {
            Ok(model) => {
                let is_other = |file: &&String| !contains_file(&model, &folder.join(file));
                let others: Vec<String> = files.iter().filter(is_other).cloned().collect();
                self.warnings.extend(not_of_the_model(&folder, &others));
                let store = Store::Folder(model);
                let name = name.to_owned();
                self.parts.push(Part { name, store });
                Ok(true)
            }
            Err(error) if error.kind() == meshgrad::ckpt::Kind::Missing => {
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

    /// Adds the direct subfolders that have safetensors.
    fn add_folders_below(&mut self, name: &str) -> anyhow::Result<()> {
        let folder = below(&self.path, name);
        if !folder.is_dir() {
            return Ok(());
        }
        for inner in folder_names(&folder)? {
            if !safetensors_files(&folder.join(&inner))?.is_empty() {
                let prefix = if name.is_empty() { "" } else { "/" };
                self.add_folder(&format!("{name}{prefix}{inner}"))?;
            }
        }
        Ok(())
    }

    /// The models of PyTorch.
    pub(crate) fn torch_models(&self) -> impl Iterator<Item = &TorchModel> {
        self.parts.iter().filter_map(|part| match &part.store {
            Store::InParts(all) => Some(all.model()),
            Store::File(_) | Store::Folder(_) => None,
        })
    }

    /// The number of buffers that reading a tensor needs, including the one that is filled.
    pub(crate) fn buffers(&self) -> u64 {
        1 + u64::from(self.torch_models().next().is_some())
    }

    /// All tensors, part by part.
    pub(crate) fn entries(&self) -> Vec<Entry<'_>> {
        self.parts.iter().flat_map(Part::entries).collect()
    }

    /// The tensors that match one of `globs`, or all tensors without globs.
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

    /// The message for a pattern without a match.
    pub(crate) fn no_match(&self, glob: &str, entries: &[Entry]) -> String {
        const SHOWN: usize = 3;

        // One per folded pattern, or the suggestions would differ only in numbers.
        let folded = fold(entries.iter().map(|entry| (entry.name.as_str(), ())));
        let firsts = folded.iter().filter_map(|f| f.members.first());
        let mut nearest: Vec<&str> = firsts.map(|&at| entries[at].name.as_str()).collect();
        let wanted: Vec<char> = glob.chars().filter(|c| !"*?[]".contains(*c)).collect();
        nearest.sort_by_cached_key(|name| substring_distance(&wanted, name));
        nearest.truncate(SHOWN);

        let count = entries.len();
        let mut message =
            format!("`{glob}` matches none of the {count} tensors of {}", display_path(&self.path));
        if !nearest.is_empty() {
            let nearest = nearest.iter().map(|name| format!("`{}`", printable(name)));
            let nearest: Vec<String> = nearest.collect();
            message.push_str(&format!("; the most similar names are {}", nearest.join(", ")));
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

/// The least edit distance between `wanted` and a substring of `name` (Sellers 1980).
fn substring_distance(wanted: &[char], name: &str) -> usize {
    // edits[i]: the least distance between the first i characters of `wanted` and a suffix of the
    // characters of `name` so far.
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

/// Joins `name`, which may be empty, to `folder`.
fn below(folder: &Path, name: &str) -> PathBuf {
    match name {
        "" => folder.to_owned(),
        name => folder.join(name),
    }
}

/// Whether the file belongs to the model, directly or by a link.
fn contains_file(model: &Folder, path: &Path) -> bool {
    let real = fs::canonicalize(path).ok();
    let paths = model.files().iter().map(TensorFile::path);
    let mut reals = paths.map(|file| fs::canonicalize(file).ok());
    reals.any(|file| file == real)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_distance_is_that_of_the_best_substring() {
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
