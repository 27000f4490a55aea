//! Finds out which files and tensors of a folder are damaged, after reading it has failed.

use std::path::Path;

use meshgrad_ckpt::{
    Committed, Dtype, Folder, IntegrityError, Kind, Listed, TensorFile, is_disk_failure,
};
use meshgrad_load::Error as LoadError;

use super::error::{Error, Result};

/// Damage that is listed one by one.
const LISTED: usize = 8;

/// Compares the files of a checkpoint that contain no tensors with their digests. Files with
/// tensors are compared while they are read.
///
/// # Errors
/// [`Error::Damaged`] with the first damaged file.
pub fn check_texts(checkpoint: &Committed) -> Result<()> {
    let texts = checkpoint.files().map(|(name, _)| name);
    for name in texts.filter(|name| !name.ends_with(".safetensors")) {
        let checked = checkpoint.verify_file(name);
        checked.map_err(|error| or_damage(checkpoint, error.into()))?;
    }
    Ok(())
}

/// Finds the cause of `error`, with which reading `checkpoint` failed. Reads the whole checkpoint
/// and returns [`Error::Damaged`] if it is damaged or the disk cannot read it, otherwise `error`.
pub fn or_damage(checkpoint: &Committed, error: Error) -> Error {
    // Damage of other files cannot be the cause of the other errors.
    let may_be_damage = match &error {
        Error::Other(error) => may_be_damage(error),
        Error::NotFinite { .. }
        | Error::Damaged { .. }
        | Error::Quantized { .. }
        | Error::Load(LoadError::NotLoaded { .. } | LoadError::PinnedBound { .. }) => false,
        _ => true,
    };
    if !may_be_damage {
        return error;
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let problems = match checkpoint.find_damage(threads, |_| ()) {
        Ok(problems) if problems.is_empty() => return error,
        Ok(problems) => listed(checkpoint, &problems),
        Err(unreadable) if is_disk_failure(&unreadable) => vec![unreadable.to_string()],
        Err(unreadable) => return unreadable.into(),
    };
    Error::Damaged { folder: checkpoint.path().to_owned(), problems }
}

/// Whether damaged files may be the cause of an error of an op or a checkpoint.
pub fn may_be_damage(error: &meshgrad_error::Error) -> bool {
    matches!(
        error.kind(),
        Kind::Damaged | Kind::Malformed | Kind::Mismatch | Kind::Missing | Kind::System
    )
}

fn listed(checkpoint: &Committed, problems: &[IntegrityError]) -> Vec<String> {
    let more = problems.len().saturating_sub(LISTED);
    let problems = problems.iter().take(LISTED);
    let mut listed: Vec<String> = problems.map(|it| described(checkpoint, it)).collect();
    if more > 0 {
        listed.push(format!("and {more} more"));
    }
    listed
}

/// The message of a problem, with the tensors that it affects.
fn described(checkpoint: &Committed, problem: &IntegrityError) -> String {
    let IntegrityError::WrongDigest { file, range, .. } = problem else {
        return problem.to_string();
    };
    // A damaged header may be unreadable.
    let Ok(opened) = TensorFile::open(checkpoint.path().join(file)) else {
        return problem.to_string();
    };
    let tensors = opened.tensors().iter();
    let affected = tensors.filter(|it| it.range.start < range.end && range.start < it.range.end);
    let names: Vec<&str> = affected.map(|it| it.name.as_str()).collect();
    match names.is_empty() {
        true => problem.to_string(),
        false => format!("{problem}; it stores {}", Listed(&names)),
    }
}

/// Replaces [`LoadError::NotFinite`], which names a tensor of the model, by [`Error::NotFinite`],
/// which names the tensor and the element in `folder`. Other errors are only converted.
pub(super) fn located(folder: &Folder, error: LoadError) -> Error {
    let LoadError::NotFinite { .. } = error else {
        return error.into();
    };
    let names = folder.tensors().map(|tensor| tensor.name.clone());
    let mut found = names.filter_map(|name| first_not_finite(folder, &name));
    found.next().unwrap_or(Error::Load(error))
}

fn first_not_finite(folder: &Folder, name: &str) -> Option<Error> {
    let dtype = folder.get(name)?.dtype;
    let bytes = folder.read(name).ok()?;
    let file = folder.file_of(name).ok()?.path().to_owned();
    let mut values = floats(dtype, &bytes)?.enumerate();
    let (element, value) = values.find(|(_, value)| !value.is_finite())?;
    Some(Error::NotFinite { file, tensor: name.to_owned(), element, value })
}

/// The values of a tensor, if they are floats of 16 bits or more.
fn floats(dtype: Dtype, bytes: &[u8]) -> Option<Box<dyn Iterator<Item = f64> + '_>> {
    use half::{bf16, f16};

    Some(match dtype {
        Dtype::F64 => Box::new(bytes.as_chunks().0.iter().map(|it| f64::from_le_bytes(*it))),
        Dtype::F32 => {
            let values = bytes.as_chunks().0.iter();
            Box::new(values.map(|it| f32::from_le_bytes(*it).into()))
        }
        Dtype::BF16 => {
            let values = bytes.as_chunks().0.iter();
            Box::new(values.map(|it| bf16::from_le_bytes(*it).into()))
        }
        Dtype::F16 => {
            let values = bytes.as_chunks().0.iter();
            Box::new(values.map(|it| f16::from_le_bytes(*it).into()))
        }
        _ => return None,
    })
}

/// The checkpoint at `folder`; `None` if there is no manifest.
///
/// # Errors
/// When the manifest or the size of a file is wrong.
pub fn sealed(folder: &Path) -> Result<Option<Committed>> {
    match folder.join("manifest.json").exists() {
        true => Ok(Some(Committed::open(folder)?)),
        false => Ok(None),
    }
}
