//! The safetensors files in a folder, and the warning about those beside a model.

use std::fs;
use std::path::Path;

use anyhow::Context;
use meshgrad::ckpt::Listed;

use crate::table::display_path;

/// The extension of safetensors files.
pub(super) const EXTENSION: &str = "safetensors";

/// The warning about files beside a model, if there are any.
pub(super) fn not_of_the_model(folder: &Path, files: &[String]) -> Option<String> {
    (!files.is_empty()).then(|| {
        format!(
            "{} also contains files that do not belong to the model: {}; pass their own paths to \
             read them",
            display_path(folder),
            Listed(files)
        )
    })
}

/// The warning about safetensors files beside a model of PyTorch and in its subfolders, such as
/// the checkpoints of a run. They are not read.
pub(super) fn beside_torch(folder: &Path) -> anyhow::Result<Option<String>> {
    let mut files = safetensors_files(folder)?;
    for name in folder_names(folder)? {
        let inner = safetensors_files(&folder.join(&name))?;
        files.extend(inner.iter().map(|file| format!("{name}/{file}")));
    }
    Ok(not_of_the_model(folder, &files))
}

/// The names of the safetensors files directly in a folder, sorted.
pub(super) fn safetensors_files(folder: &Path) -> anyhow::Result<Vec<String>> {
    let mut names = file_names(folder)?;
    names.retain(|name| {
        let path = Path::new(name);
        !name.starts_with('.') && path.extension().is_some_and(|e| e == EXTENSION)
    });
    Ok(names)
}

/// The names of the direct subfolders that are not hidden, sorted.
pub(super) fn folder_names(folder: &Path) -> anyhow::Result<Vec<String>> {
    let mut names = file_names(folder)?;
    names.retain(|name| !name.starts_with('.') && folder.join(name).is_dir());
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
