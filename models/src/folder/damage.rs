//! Finds out which files and tensors of a folder are damaged, after reading it has failed.

use std::fmt;
use std::path::{Path, PathBuf};

use meshgrad_ckpt::{
    Committed, Dtype, Folder, IntegrityError, Listed, TensorFile, is_disk_failure,
};
use meshgrad_error::{Error, Kind, Result, error};

/// Damage that is listed one by one.
const LISTED: usize = 8;

/// A checkpoint whose files differ from its manifest, or that the disk cannot read: details of an
/// [`Error`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The checkpoint.
    pub folder: PathBuf,
    /// The damaged files and tensors.
    pub problems: Vec<String>,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is damaged: {}", self.folder.display(), self.problems.join("; "))
    }
}

/// Compares the files of a checkpoint that contain no tensors with their digests. Files with
/// tensors are compared while they are read.
///
/// # Errors
/// With [`Damage`] if one is damaged.
pub fn check_texts(checkpoint: &Committed) -> Result<()> {
    let texts = checkpoint.files().map(|(name, _)| name);
    for name in texts.filter(|name| !name.ends_with(".safetensors")) {
        let checked = checkpoint.verify_file(name);
        checked.map_err(|error| or_damage(checkpoint, error))?;
    }
    Ok(())
}

/// Finds the cause of `error`, with which reading `checkpoint` failed. Reads the whole checkpoint
/// and returns its [`Damage`] if it is damaged or the disk cannot read it, otherwise `error`.
pub fn or_damage(checkpoint: &Committed, error: Error) -> Error {
    // Damage of files cannot be the cause of errors of other kinds.
    let may_be_damage = matches!(
        error.kind(),
        Kind::Damaged | Kind::Malformed | Kind::Mismatch | Kind::Missing | Kind::System
    );
    if !may_be_damage || error.details::<Damage>().is_some() {
        return error;
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let problems = match checkpoint.find_damage(threads, |_| ()) {
        Ok(problems) if problems.is_empty() => return error,
        Ok(problems) => listed(checkpoint, &problems),
        Err(unreadable) if is_disk_failure(&unreadable) => vec![unreadable.to_string()],
        Err(unreadable) => return unreadable,
    };
    let folder = checkpoint.path().to_owned();
    Error::with_details(Kind::Damaged, Damage { folder, problems })
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

/// Replaces an error of a value that is not finite, which names a tensor of the model, by one that
/// names the tensor and the element in `folder`.
pub(super) fn located(folder: &Folder, error: Error) -> Error {
    if error.kind() != Kind::NotFinite {
        return error;
    }
    let names = folder.tensors().map(|tensor| tensor.name.clone());
    let mut found = names.filter_map(|name| first_not_finite(folder, &name));
    // All are finite in the file, but one is not in the model's dtype: the file is not damaged.
    found.next().unwrap_or_else(|| Error::new(Kind::Mismatch, error.to_string()))
}

fn first_not_finite(folder: &Folder, name: &str) -> Option<Error> {
    let dtype = folder.get(name)?.dtype;
    let bytes = folder.read(name).ok()?;
    let file = folder.file_of(name).ok()?.path().display();
    let mut values = floats(dtype, &bytes)?.enumerate();
    let (element, value) = values.find(|(_, value)| !value.is_finite())?;
    let name = name.escape_debug();
    Some(error!(NotFinite, "{file}: element {element} of `{name}` is {value}"))
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A value that is finite in the file, but not in the model's dtype, is no damage.
    #[test]
    fn values_that_are_not_finite_are_looked_for_in_the_file() {
        for (value, kind) in [(f32::MAX, Kind::Mismatch), (f32::NAN, Kind::NotFinite)] {
            let place = tempfile::tempdir().unwrap();
            let path = place.path().join("model.safetensors");
            let mut writer = meshgrad_ckpt::FileWriter::new();
            writer.add("w", Dtype::F32, &[1]).unwrap();
            writer.save(&path, |_, data| data.append(&value.to_le_bytes())).unwrap();
            let folder = Folder::open_file(&path).unwrap();

            let error = located(&folder, error!(NotFinite, "`table` has the value {value}"));
            assert_eq!(error.kind(), kind, "{error}");
            let names_file = error.to_string().contains("model.safetensors: element 0 of `w`");
            assert_eq!(names_file, value.is_nan(), "{error}");
        }
    }
}
