//! The model that a subcommand reads: a folder or file with unique tensor names, of safetensors or
//! of PyTorch.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use meshgrad::ckpt::graph::Graph;
use meshgrad::ckpt::mapping::TensorSpec;
use meshgrad::ckpt::plan::LoadRequest;
use meshgrad::ckpt::source::{BackendChoice, Sources};
use meshgrad::ckpt::torch::{self, TorchModel};
use meshgrad::ckpt::{
    Assembly, Committed, Error, Folder, Incomplete, IntegrityError, Kind, Links, Part, TensorFile,
    scan,
};

use meshgrad::models::hf::ADAPTER_FILE;

use super::beside::beside_torch;
use super::size;
use crate::table::{display_path, printable};

/// An open folder or file.
pub(super) struct Source {
    store: Store,
    links: Links,
    /// The checkpoint that the folder or the file is part of, if it has a manifest.
    checkpoint: Option<Committed>,
    /// The problem, if the manifest is invalid or does not match its files.
    damage: Option<Error>,
    /// Problems that do not prevent reading.
    pub(super) warnings: Vec<String>,
}

/// Strings by key, in the header of a file.
pub(super) type Metadata = BTreeMap<String, String>;

/// The metadata key of the regions of a rank's shards. They are valid only for that file.
pub(super) const REGION_KEY: &str = "meshgrad.region";

/// How the tensors are stored.
enum Store {
    Whole(Folder),
    InParts(Assembly),
}

impl Source {
    /// Opens a Hugging Face folder, a file, a folder of PyTorch's distributed checkpoints, a
    /// checkpoint, or the newest checkpoint of a run; reads no data.
    pub(super) fn open(path: &Path, links: Links) -> anyhow::Result<Source> {
        Ok(Source::open_any(path, links)?.with_links(links))
    }

    fn open_any(path: &Path, links: Links) -> anyhow::Result<Source> {
        let metadata =
            fs::metadata(path).with_context(|| format!("cannot open {}", display_path(path)))?;
        if !metadata.is_dir() {
            let (checkpoint, damage) = manifest_of(path.parent().unwrap_or(Path::new("")))?;
            let lists = |it: &Committed| it.files().any(|(name, _)| path.ends_with(name));
            let checkpoint = checkpoint.filter(lists);
            if is_of_torch(path) {
                return Ok(Source::of_torch(torch::open_file(path)?, checkpoint, damage));
            }
            return Ok(Source::new(Folder::open_file(path)?, checkpoint, damage));
        }
        let (checkpoint, damage) = manifest_of(path)?;
        match open_folder(path, links) {
            Ok(folder) => Ok(Source::new(folder, checkpoint, damage)),
            Err(error) if error.kind() == Kind::Missing => match torch::open(path, links)? {
                Some(model) => {
                    let mut source = Source::of_torch(model, checkpoint, damage);
                    source.warnings.extend(beside_torch(path)?);
                    Ok(source)
                }
                None => Source::of_run(path, links, error),
            },
            Err(error) => Err(error.into()),
        }
    }

    /// As [`Source::open`], but damage that the manifest shows is an error. A copy of damaged data
    /// would get a new manifest, which would hide the damage.
    pub(super) fn open_intact(path: &Path, links: Links) -> anyhow::Result<Source> {
        let source = Source::open(path, links)?;
        match source.damage {
            None => Ok(source),
            Some(error) => Err(anyhow!("{error}; {ACCEPT_CHANGES}")),
        }
    }

    fn new(folder: Folder, checkpoint: Option<Committed>, damage: Option<Error>) -> Source {
        let mismatch = folder.size_mismatch();
        let mismatch = mismatch.map(|mismatch| mismatch.to_string());
        let damaged = damage.iter().map(Error::to_string);
        Source {
            warnings: damaged.chain(mismatch).collect(),
            store: Store::Whole(folder),
            links: Links::Refuse,
            checkpoint,
            damage,
        }
    }

    /// A source of tensors that are stored in parts.
    pub(super) fn assembled(assembly: Assembly, checkpoint: Option<Committed>) -> Source {
        Source {
            store: Store::InParts(assembly),
            links: Links::Refuse,
            checkpoint,
            damage: None,
            warnings: Vec::new(),
        }
    }

    /// The same model, with the tensors of its subfolder `inner` in place of its own of the same
    /// names.
    pub(super) fn overlaid(self, inner: &str) -> anyhow::Result<Source> {
        let over = Folder::open_with(self.path().join(inner), self.links)?;
        let own = self.stored().files().iter().map(|file| ("own", file.path()));
        let files = own.chain(over.files().iter().map(|file| ("over", file.path())));
        let opened = files.map(|(prefix, path)| Ok((prefix.to_owned(), TensorFile::open(path)?)));
        let opened: Vec<(String, TensorFile)> = opened.collect::<Result<_, Error>>()?;
        let mut assembly = Assembly::new(Folder::of_files(self.path(), opened)?);
        for spec in self.specs() {
            let stored = match over.get(&spec.name) {
                Some(_) => format!("over/{}", spec.name),
                None => format!("own/{}", spec.name),
            };
            let whole = spec.shape.iter().map(|extent| 0..*extent).collect();
            let part = Part::stored(&mut assembly, &stored, spec.dtype, whole)?;
            assembly.add(&spec.name, &spec.shape, vec![part])?;
        }
        Ok(Source { store: Store::InParts(assembly), ..self })
    }

    /// The weights of the folder `self`, with the matrices of the adapter in the folder `adapter` under the paths
    /// of their projections. Tensors of the subfolder `over` of the adapter replace those of the same names.
    pub(super) fn with_adapter(self, adapter: &Path, over: Option<&str>) -> anyhow::Result<Source> {
        let Store::Whole(weights) = &self.store else {
            bail!(
                "{} is not a folder of safetensors; convert it with `meshgrad ckpt convert`",
                display_path(self.path())
            );
        };
        let matrices = Folder::open_single(adapter, ADAPTER_FILE, self.links)?;
        let matrices =
            matrices.with_context(|| format!("{} has no {ADAPTER_FILE}", display_path(adapter)))?;
        let over =
            over.map(|over| Folder::open_with(adapter.join(over), self.links)).transpose()?;
        let mut files = Vec::new();
        for (prefix, folder) in
            [("own", Some(weights)), ("adapter", Some(&matrices)), ("over", over.as_ref())]
        {
            for file in folder.into_iter().flat_map(Folder::files) {
                files.push((prefix.to_owned(), TensorFile::open(file.path())?));
            }
        }
        // The files of the adapter's folder describe the model, if it has them.
        let described = if adapter.join("config.json").is_file() { adapter } else { self.path() };
        let mut assembly = Assembly::new(Folder::of_files(described, files)?);
        let own = weights.tensors().map(|it| (TensorSpec::from(it), "own"));
        let added = matrices.tensors().map(|it| (TensorSpec::from(it), "adapter"));
        for (spec, prefix) in own.chain(added) {
            let name = spec.name.strip_prefix("base_model.model.").unwrap_or(&spec.name);
            let stored = match over.as_ref().and_then(|over| over.get(name)) {
                Some(_) => format!("over/{name}"),
                None => format!("{prefix}/{}", spec.name),
            };
            let whole = spec.shape.iter().map(|extent| 0..*extent).collect();
            let part = Part::stored(&mut assembly, &stored, spec.dtype, whole)?;
            assembly.add(name, &spec.shape, vec![part])?;
        }
        // A manifest does not list the files of another folder.
        let checkpoint = self.checkpoint.clone().filter(|_| self.path() == adapter);
        Ok(Source { store: Store::InParts(assembly), checkpoint, ..self })
    }

    pub(super) fn with_links(self, links: Links) -> Source {
        Source { links, ..self }
    }

    fn of_torch(model: TorchModel, checkpoint: Option<Committed>, damage: Option<Error>) -> Source {
        let left_out = left_out(&model);
        let mut source = Source::assembled(model.assembly, checkpoint);
        source.warnings.extend(damage.iter().map(Error::to_string));
        source.damage = damage;
        source.warnings.extend(left_out);
        source
    }

    /// Whether files of its folder may be links.
    pub(super) fn links(&self) -> Links {
        self.links
    }

    /// The metadata of its safetensors files, and warnings about keys that have several values.
    pub(super) fn metadata(&self) -> (Metadata, Vec<String>) {
        let (mut metadata, mut warnings) = (Metadata::new(), Vec::new());
        let mut first: BTreeMap<&str, (&str, &TensorFile)> = BTreeMap::new();
        for file in self.stored().files() {
            for (key, value) in file.metadata() {
                let known = *first.entry(key).or_insert((value, file));
                if known.0 == value {
                    metadata.insert(key.clone(), value.clone());
                }
            }
        }
        for file in self.stored().files() {
            for (key, value) in file.metadata() {
                let (kept, of) = first[key.as_str()];
                if kept != value && metadata.remove(key).is_some() && key != REGION_KEY {
                    warnings.push(format!(
                        "the metadata `{key}` is left out, because it differs between files: \
                         `{kept}` in {}, `{value}` in {}",
                        display_path(of.path()),
                        display_path(file.path())
                    ));
                }
            }
        }
        metadata.remove(REGION_KEY);
        (metadata, warnings)
    }

    /// Whether the tensors are stored as a whole, and not in parts.
    pub(super) fn is_whole(&self) -> bool {
        matches!(self.store, Store::Whole(_))
    }

    /// The stored tensors: the source's own, or their parts.
    pub(super) fn stored(&self) -> &Folder {
        match &self.store {
            Store::Whole(folder) => folder,
            Store::InParts(assembly) => assembly.folder(),
        }
    }

    pub(super) fn path(&self) -> &Path {
        self.stored().path()
    }

    /// Rewrites a graph over the source's tensors, and its requests, to use the stored tensors.
    pub(super) fn over_stored<'g>(
        &self,
        graph: &'g Graph,
        requests: Vec<LoadRequest>,
    ) -> anyhow::Result<(Cow<'g, Graph>, Vec<LoadRequest>)> {
        match &self.store {
            Store::Whole(_) => Ok((Cow::Borrowed(graph), requests)),
            Store::InParts(assembly) => {
                let (graph, requests) = assembly.inline(graph, requests)?;
                Ok((Cow::Owned(graph), requests))
            }
        }
    }

    fn of_run(path: &Path, links: Links, error: Error) -> anyhow::Result<Source> {
        let mut scan = scan(path)?;
        let incomplete: Vec<String> = scan.incomplete.iter().map(Error::to_string).collect();
        match scan.complete.pop() {
            Some(newest) => {
                let folder = open_folder(newest.path(), links)?;
                let mut source = Source::new(folder, Some(newest), None);
                source.warnings.extend(incomplete);
                Ok(source)
            }
            None if incomplete.is_empty() => Err(error.into()),
            None => bail!(
                "{} has no complete checkpoint: {}",
                display_path(path),
                incomplete.join("; ")
            ),
        }
    }

    /// Opens the files. Reads compare digests if there is a manifest.
    pub(super) fn files(&self) -> Result<Sources, Error> {
        match &self.checkpoint {
            Some(checkpoint) => {
                Sources::open_sealed(self.stored(), BackendChoice::Auto, checkpoint)
            }
            None => Sources::open(self.stored(), BackendChoice::Auto),
        }
    }

    /// The checkpoint, if it has a manifest.
    pub(super) fn checkpoint(&self) -> Option<&Committed> {
        self.checkpoint.as_ref()
    }

    /// The path, if it is a folder and not a single file.
    pub(super) fn folder_path(&self) -> Option<&Path> {
        let path = self.path();
        let is_file = self.stored().files().iter().any(|file| file.path() == path);
        (!is_file).then_some(path)
    }

    /// Opens the same path again.
    pub(super) fn reopen(&self) -> anyhow::Result<Source> {
        Source::open_any(self.path(), self.links)
    }

    /// Its tensors.
    pub(super) fn specs(&self) -> Vec<TensorSpec> {
        match &self.store {
            Store::Whole(folder) => folder.tensors().map(TensorSpec::from).collect(),
            Store::InParts(assembly) => assembly.specs(),
        }
    }

    /// The size of its tensors, for a report.
    pub(super) fn summary(&self) -> Summary {
        let specs = self.specs();
        Summary {
            tensors: specs.len() as u64,
            bytes: specs.iter().map(bytes_of).sum(),
            ..self.stored_summary()
        }
    }

    /// The size of the stored tensors.
    pub(super) fn stored_summary(&self) -> Summary {
        let folder = self.stored();
        Summary {
            path: folder.path().to_owned(),
            tensors: folder.tensors().len() as u64,
            files: folder.files().len() as u64,
            bytes: folder.tensors().map(|it| it.byte_len() as u64).sum(),
        }
    }
}

/// Opens a folder of safetensors files, or the adapter of one that has no other tensors.
fn open_folder(path: &Path, links: Links) -> Result<Folder, Error> {
    match Folder::open_with(path, links) {
        Err(error) if error.kind() == Kind::Missing => {
            let adapter = Folder::open_single(path, ADAPTER_FILE, links)?;
            adapter.ok_or(error)
        }
        opened => opened,
    }
}

/// Extensions of files that `torch.save` writes.
const TORCH_EXTENSIONS: [&str; 3] = ["bin", "pt", "pth"];

/// The warning about values that are not tensors.
pub(super) fn left_out(model: &TorchModel) -> Option<String> {
    let first = model.left_out.first()?;
    let values = size::counted(model.left_out.len() as u64, "value");
    Some(format!(
        "left out of {}: {values} that are not tensors, such as `{}`",
        display_path(model.assembly.folder().path()),
        printable(first)
    ))
}

/// Whether a file has one of the extensions that are usual for `torch.save`.
pub(super) fn is_of_torch(path: &Path) -> bool {
    let extension = path.extension().and_then(|it| it.to_str());
    extension.is_some_and(|it| TORCH_EXTENSIONS.contains(&it))
}

/// What to do about a manifest that does not fit its files.
pub(super) const ACCEPT_CHANGES: &str = "use another copy; if the files were changed on purpose, \
                                         remove manifest.json";

/// The checkpoint at a path; `None` without a manifest. A manifest that is wrong is an error.
pub(super) fn intact_checkpoint(folder: &Path) -> anyhow::Result<Option<Committed>> {
    match manifest_of(folder)? {
        (checkpoint, None) => Ok(checkpoint),
        (_, Some(error)) => Err(anyhow!("{error}; {ACCEPT_CHANGES}")),
    }
}

/// The checkpoint at a path, or the problem with its manifest. Neither without a manifest.
fn manifest_of(folder: &Path) -> anyhow::Result<(Option<Committed>, Option<Error>)> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    match Committed::open(folder) {
        Ok(checkpoint) => Ok((Some(checkpoint), None)),
        Err(error) => match error.details() {
            Some(Incomplete { problem: IntegrityError::NoManifest, .. }) => Ok((None, None)),
            Some(Incomplete { .. }) => Ok((None, Some(error))),
            None => Err(error.into()),
        },
    }
}

/// Bytes of a tensor.
pub(super) fn bytes_of(tensor: &TensorSpec) -> u64 {
    let elements = tensor.shape.iter().fold(1u64, |all, it| all.saturating_mul(*it));
    let bits = elements.saturating_mul(tensor.dtype.bits() as u64);
    bits.div_ceil(8)
}

/// The size of a folder of tensors.
#[derive(serde::Serialize)]
pub(super) struct Summary {
    #[serde(serialize_with = "as_text")]
    pub(super) path: PathBuf,
    pub(super) tensors: u64,
    pub(super) files: u64,
    pub(super) bytes: u64,
}

fn as_text<S: serde::Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}

impl Summary {
    /// The cells of a row: path, tensors, bytes, files.
    pub(super) fn row(&self, title: &str) -> [String; 5] {
        [
            title.to_owned(),
            display_path(&self.path),
            size::counted(self.tensors, "tensor"),
            size::bytes(self.bytes),
            size::counted(self.files, "file"),
        ]
    }
}
