//! Writes the destination folder of a subcommand, which is committed atomically.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, ensure};
use clap::ValueEnum;
use meshgrad::ckpt::mapping::{Bound, TensorSpec};
use meshgrad::ckpt::{Committed, Dtype, FolderWriter, Links, Staging};
use serde_json::{Map, Value};

use super::size;
use super::source::{ACCEPT_CHANGES, Metadata, Source};
use super::stream::file_shape;
use crate::table::{display_path, printable};

/// The last rows of a report: copied files, bytes and seconds.
pub(super) fn summary_rows(
    copied: &[String],
    (read, written): (u64, u64),
    seconds: f64,
) -> Vec<[String; 2]> {
    let (read, written) = (size::bytes(read), size::bytes(written));
    let done = format!("{read} read, {written} written, {seconds:.1} s");
    let copied = (!copied.is_empty()).then(|| ["copied".to_owned(), copied.join(", ")]);
    copied.into_iter().chain([["done".to_owned(), done]]).collect()
}

/// Extensions of configurations, tokenizers, chat templates and model code in a folder from the
/// Hugging Face hub.
const SIDECAR_EXTENSIONS: [&str; 5] = ["json", "txt", "model", "jinja", "py"];

/// Files that are valid only for the folder that they are in, so they are never copied.
const GENERATED: [&str; 2] = ["manifest.json", "layout.json"];

const CONFIG_FILE: &str = "config.json";

/// How the tensors are quantized, in config.json.
const QUANTIZATION: &str = "quantization_config";

/// The keys of the float type in config.json.
const DTYPE_KEYS: [&str; 2] = ["dtype", "torch_dtype"];

/// Larger files are not copied.
const MAX_SIDECAR_BYTES: u64 = 256 << 20;

/// The dtypes that weights can be converted to.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum FloatType {
    #[value(name = "BF16")]
    BF16,
    #[value(name = "F16")]
    F16,
    #[value(name = "F32")]
    F32,
}

impl FloatType {
    pub(super) fn dtype(self) -> Dtype {
        match self {
            FloatType::BF16 => Dtype::BF16,
            FloatType::F16 => Dtype::F16,
            FloatType::F32 => Dtype::F32,
        }
    }

    /// The outputs of a map, with floats of 16 bits or more converted to this dtype. Smaller floats
    /// are not converted: they are quantized, and meaningless without their scales.
    pub(super) fn of(self, bound: &Bound) -> Vec<TensorSpec> {
        let retyped = |mut spec: TensorSpec| {
            if let Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::BF16 = spec.dtype {
                spec.dtype = self.dtype();
            }
            spec
        };
        bound.outputs().map(retyped).collect()
    }
}

/// Starts writing a folder.
pub(super) fn stage(path: &Path) -> anyhow::Result<Staging> {
    let name = path.file_name().and_then(|name| name.to_str());
    let name =
        name.ok_or_else(|| anyhow!("{} is not a name for a new folder", display_path(path)))?;
    let parent = path.parent().unwrap_or(Path::new(""));
    ensure!(
        parent.as_os_str().is_empty() || parent.is_dir(),
        "cannot create {name}: {} is not a folder",
        display_path(parent)
    );
    Ok(Staging::new(parent, name)?)
}

/// A writer of the given tensors.
pub(super) fn folder_writer(
    made: &[TensorSpec],
    metadata: &Metadata,
    max_shard: u64,
) -> anyhow::Result<FolderWriter> {
    let mut writer = FolderWriter::new().max_shard_bytes(max_shard);
    for (key, value) in metadata {
        writer.set_metadata(key, value);
    }
    for spec in made {
        writer.add(&spec.name, spec.dtype, &file_shape(&spec.shape))?;
    }
    Ok(writer)
}

/// The configuration, tokenizer and templates beside the weights.
pub(super) struct Sidecars<'a> {
    folder: Option<&'a Path>,
    checkpoint: Option<&'a Committed>,
    links: Links,
    left_out: Option<&'a str>,
}

/// The files that were copied, and links that were not.
#[derive(Default)]
pub(super) struct Copied {
    pub(super) names: Vec<String>,
    links: Vec<PathBuf>,
}

impl Copied {
    pub(super) fn warnings(&self) -> impl Iterator<Item = String> + '_ {
        self.links.iter().map(|path| {
            let path = display_path(path);
            format!("{path} is a link and was not copied; --follow-links copies it")
        })
    }
}

impl<'a> Sidecars<'a> {
    /// The sidecars of a source; a single file has none.
    pub(super) fn of(source: &'a Source) -> Sidecars<'a> {
        Sidecars {
            folder: source.folder_path(),
            checkpoint: source.checkpoint(),
            links: source.links(),
            left_out: None,
        }
    }

    /// Leaves out the file of this name.
    pub(super) fn without(self, name: Option<&'a str>) -> Sidecars<'a> {
        Sidecars { left_out: name, ..self }
    }

    /// Copies the files, with a changed configuration, and returns their names.
    pub(super) fn copy(
        &self,
        staging: &mut Staging,
        change: &ConfigChange,
    ) -> anyhow::Result<Copied> {
        let mut copied = Copied::default();
        let Some(folder) = self.folder else {
            return Ok(copied);
        };
        for (name, path) in sidecar_files(folder)? {
            if self.left_out == Some(&name) {
                continue;
            }
            if self.links == Links::Refuse && is_foreign_link(folder, &path) {
                copied.links.push(path);
                continue;
            }
            if !is_small_file(&path) {
                continue;
            }
            let cannot_read = || format!("cannot read {}", display_path(&path));
            if let Some(checkpoint) = self.checkpoint {
                let verified = checkpoint.verify_file(&name);
                verified.map_err(|error| anyhow!("{error}; {ACCEPT_CHANGES}"))?;
            }
            let bytes = fs::read(&path).with_context(cannot_read)?;
            let bytes = match name == CONFIG_FILE {
                true => change.apply(bytes).with_context(cannot_read)?,
                false => bytes,
            };
            staging.write(&name, &bytes)?;
            copied.names.push(name);
        }
        Ok(copied)
    }
}

/// The files to copy, sorted by name.
fn sidecar_files(folder: &Path) -> anyhow::Result<Vec<(String, PathBuf)>> {
    let read = || -> std::io::Result<Vec<(String, PathBuf)>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
                continue;
            };
            if is_sidecar_file(name) {
                found.push((name.to_owned(), path));
            }
        }
        found.sort();
        Ok(found)
    };
    read().with_context(|| format!("cannot read {}", display_path(folder)))
}

fn is_sidecar_file(name: &str) -> bool {
    let extension = Path::new(name).extension().and_then(|it| it.to_str());
    extension.is_some_and(|it| SIDECAR_EXTENSIONS.contains(&it))
        && !name.ends_with(".index.json")
        && !name.starts_with('.')
        && !GENERATED.contains(&name)
        && printable(name) == name
}

fn is_small_file(path: &Path) -> bool {
    let small = |metadata: fs::Metadata| metadata.is_file() && metadata.len() <= MAX_SIDECAR_BYTES;
    fs::metadata(path).is_ok_and(small)
}

/// Whether the path is a link to anything but a blob of the same repository in the Hugging Face
/// cache. It could expose a file from outside the folder.
fn is_foreign_link(folder: &Path, path: &Path) -> bool {
    if !fs::symlink_metadata(path).is_ok_and(|it| it.is_symlink()) {
        return false;
    }
    let (Ok(folder), Ok(real)) = (fs::canonicalize(folder), fs::canonicalize(path)) else {
        return true;
    };
    let snapshots = folder.parent();
    let is_snapshot = snapshots.is_some_and(|it| it.ends_with("snapshots"));
    let blobs = snapshots.and_then(Path::parent).map(|it| it.join("blobs"));
    !is_snapshot || blobs.as_deref() != real.parent()
}

/// What changes in config.json because the tensors have other dtypes.
#[derive(Default)]
pub(super) struct ConfigChange {
    /// The dtype as PyTorch names it.
    dtype: Option<&'static str>,
    /// Whether the user chose the dtype with `--dtype`. Otherwise it follows from the map.
    asked: bool,
    /// No tensor is quantized any more.
    dequantized: bool,
}

impl ConfigChange {
    /// Compares the tensors that are read with those that are written. `dtype` is the float type
    /// that the user chose, if any.
    pub(super) fn of(
        read: &[TensorSpec],
        written: &[TensorSpec],
        dtype: Option<FloatType>,
    ) -> ConfigChange {
        let (before, after) = (main_dtype(read), main_dtype(written));
        let changed = after.filter(|_| before != after);
        let quantized = |specs: &[TensorSpec]| specs.iter().any(|spec| is_quantized(spec.dtype));
        ConfigChange {
            dtype: match dtype {
                Some(dtype) => torch_name(dtype.dtype()),
                None => changed.and_then(torch_name),
            },
            asked: dtype.is_some(),
            dequantized: quantized(read) && !quantized(written),
        }
    }

    /// What a map changes, for the report.
    pub(super) fn described(&self, copied: &[String]) -> Vec<String> {
        let mut changes = Vec::new();
        if !copied.iter().any(|name| name == CONFIG_FILE) {
            return changes;
        }
        let dtype = self.dtype.filter(|_| !self.asked);
        changes.extend(dtype.map(|dtype| format!("dtype {dtype}")));
        if self.dequantized {
            changes.push(format!("no {QUANTIZATION}"));
        }
        changes
    }

    /// The changed configuration. Older versions of transformers read only `torch_dtype`, newer
    /// ones read both keys. Models with several parts also have the keys in each part.
    fn apply(&self, json: Vec<u8>) -> anyhow::Result<Vec<u8>> {
        if self.dtype.is_none() && !self.dequantized {
            return Ok(json);
        }
        let mut config: Map<String, Value> = serde_json::from_slice(&json)?;
        if self.dequantized {
            config.remove(QUANTIZATION);
        }
        if let Some(dtype) = self.dtype {
            let parts = config.values_mut().filter_map(Value::as_object_mut);
            for part in parts {
                for key in DTYPE_KEYS {
                    if let Some(Value::String(known)) = part.get_mut(key) {
                        *known = dtype.to_owned();
                    }
                }
            }
            for key in DTYPE_KEYS {
                config.insert(key.to_owned(), dtype.into());
            }
        }
        Ok((serde_json::to_string_pretty(&config)? + "\n").into_bytes())
    }
}

/// A float type's name in config.json.
fn torch_name(dtype: Dtype) -> Option<&'static str> {
    match dtype {
        Dtype::F64 => Some("float64"),
        Dtype::F32 => Some("float32"),
        Dtype::F16 => Some("float16"),
        Dtype::BF16 => Some("bfloat16"),
        _ => None,
    }
}

/// Whether elements are meaningless without their scales: floats of 8 bits and less.
fn is_quantized(dtype: Dtype) -> bool {
    dtype.name().starts_with('F') && dtype.bits() <= 8
}

/// The float type of most elements.
fn main_dtype(specs: &[TensorSpec]) -> Option<Dtype> {
    let mut elements: BTreeMap<&str, (u64, Dtype)> = BTreeMap::new();
    for spec in specs {
        if torch_name(spec.dtype).is_some() || is_quantized(spec.dtype) {
            let of_dtype = elements.entry(spec.dtype.name()).or_insert((0, spec.dtype));
            of_dtype.0 += spec.shape.iter().product::<u64>();
        }
    }
    let most = elements.values().max_by_key(|(elements, _)| *elements);
    most.map(|(_, dtype)| *dtype)
}
