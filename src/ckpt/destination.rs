//! Writes the destination folder of a subcommand, which is committed atomically.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, ensure};
use clap::ValueEnum;
use meshgrad::ckpt::mapping::{Bound, TensorSpec};
use meshgrad::ckpt::{Dtype, FolderWriter, Staging};
use serde_json::{Map, Value};

use super::catalog::display_path;
use super::size;
use super::stream::file_shape;
use crate::table::printable;

/// The last rows of a report: copied files, bytes and seconds.
pub(super) fn summary_rows(
    copied: &[String],
    (read, written): (u64, u64),
    seconds: f64,
) -> Vec<[String; 2]> {
    let (read, written) = (size::bytes(read), size::bytes(written));
    let done = format!("{read} read, {written} written, {seconds:.1} s");
    let copied = (!copied.is_empty()).then(|| ["copied".to_owned(), copied.join(", ")]);
    copied
        .into_iter()
        .chain([["done".to_owned(), done]])
        .collect()
}

/// Extensions of configurations, tokenizers and chat templates in a folder from the Hugging Face
/// hub.
const SIDECAR_EXTENSIONS: [&str; 4] = ["json", "txt", "model", "jinja"];

/// Files that are valid only for the folder that they are in, so they are never copied.
const GENERATED: [&str; 2] = ["manifest.json", "layout.json"];

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

    /// Its name in config.json.
    fn torch_name(self) -> &'static str {
        match self {
            FloatType::BF16 => "bfloat16",
            FloatType::F16 => "float16",
            FloatType::F32 => "float32",
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
pub(super) fn folder_writer(made: &[TensorSpec], max_shard: u64) -> anyhow::Result<FolderWriter> {
    let mut writer = FolderWriter::new().max_shard_bytes(max_shard);
    for spec in made {
        writer.add(&spec.name, spec.dtype, &file_shape(&spec.shape))?;
    }
    Ok(writer)
}

/// Copies the configuration, tokenizer and templates of a folder and returns their names. If
/// `dtype` is given, sets it in the configuration.
pub(super) fn copy_sidecar_files(
    folder: Option<&Path>,
    staging: &mut Staging,
    dtype: Option<FloatType>,
) -> anyhow::Result<Vec<String>> {
    let mut copied = Vec::new();
    let Some(folder) = folder else {
        return Ok(copied);
    };
    for (name, path) in sidecar_files(folder)? {
        let bytes =
            fs::read(&path).with_context(|| format!("cannot read {}", display_path(&path)))?;
        let bytes = match dtype {
            Some(dtype) if name == "config.json" => with_dtype(&bytes, dtype)
                .with_context(|| format!("cannot read {}", display_path(&path)))?,
            _ => bytes,
        };
        staging.write(&name, &bytes)?;
        copied.push(name);
    }
    Ok(copied)
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
            if is_sidecar_file(name) && is_safe_to_copy(folder, &path) {
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

/// Whether the path is a small regular file, or a link into the blobs of the Hugging Face cache.
/// Any other link could expose a file from outside the folder.
fn is_safe_to_copy(folder: &Path, path: &Path) -> bool {
    let small = |metadata: &fs::Metadata| metadata.is_file() && metadata.len() <= MAX_SIDECAR_BYTES;
    let is_link = fs::symlink_metadata(path).is_ok_and(|it| it.is_symlink());
    if !fs::metadata(path).is_ok_and(|it| small(&it)) {
        return false;
    }
    if !is_link {
        return true;
    }
    let (Ok(folder), Ok(real)) = (fs::canonicalize(folder), fs::canonicalize(path)) else {
        return false;
    };
    let snapshots = folder.parent();
    let is_snapshot = snapshots.is_some_and(|it| it.ends_with("snapshots"));
    let blobs = snapshots.and_then(Path::parent).map(|it| it.join("blobs"));
    is_snapshot && blobs.as_deref() == real.parent()
}

/// The configuration with another dtype. Older versions of transformers read only `torch_dtype`,
/// newer ones both keys.
fn with_dtype(json: &[u8], dtype: FloatType) -> anyhow::Result<Vec<u8>> {
    let mut config: Map<String, Value> = serde_json::from_slice(json)?;
    for key in ["dtype", "torch_dtype"] {
        config.insert(key.to_owned(), dtype.torch_name().into());
    }
    Ok((serde_json::to_string_pretty(&config)? + "\n").into_bytes())
}
