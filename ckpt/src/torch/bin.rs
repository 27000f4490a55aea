//! `pytorch_model.bin`, or several such files and an index.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::path::{Path, PathBuf};

use meshgrad_error::{Error, Result, error};

use super::archive::{Archive, Stored};
use super::error::{MAX_NESTED, nested, too_large};
use super::failure::{Failure, Read};
use super::model::{ArchiveAt, Format, TorchModel};
use super::pickle::{Id, Value};
use super::tensor::tensor;
use crate::assembly::{Assembly, Part, not_assembled};
use crate::confined::{ConfinedFolder, open_file as open_regular};
use crate::error::io_error;
use crate::folder::open_indexed;
use crate::limits::MAX_HEADER_BYTES;
use crate::{Folder, TensorFile};

const SINGLE_FILE: &str = "pytorch_model.bin";
const INDEX_FILE: &str = "pytorch_model.bin.index.json";

/// The tensors of all files, by name.
#[derive(Default)]
struct Tensors {
    stored: BTreeMap<String, Stored>,
    left_out: Vec<String>,
    archives: Vec<ArchiveAt>,
}

pub(super) fn open(path: &Path, confined: &ConfinedFolder) -> Result<Option<TorchModel>> {
    let mut tensors = Tensors::default();
    let single = confined.open(SINGLE_FILE)?;
    let folder = match (single, confined.open(INDEX_FILE)?) {
        (None, None) => return Ok(None),
        (Some(file), None) => {
            let file = tensors.of_file(confined.path_of(SINGLE_FILE), file)?;
            Folder::of_parts(path.to_owned(), vec![file])?
        }
        (_, Some(index)) => {
            let index = (INDEX_FILE, index);
            open_indexed(path, confined, index, &mut |path, file| tensors.of_file(path, file))?
        }
    };
    tensors.assemble(folder, Format::Folder).map(Some)
}

pub(super) fn open_file(path: &Path) -> Result<TorchModel> {
    let mut tensors = Tensors::default();
    let file = tensors.of_file(path.to_owned(), open_regular(path)?)?;
    let folder = Folder::of_parts(path.to_owned(), vec![file])?;
    tensors.assemble(folder, Format::File)
}

impl Tensors {
    fn of_file(&mut self, path: PathBuf, file: File) -> Result<TensorFile> {
        let bytes = file.metadata();
        let bytes = bytes.map_err(|error| io_error("open", &path, error))?.len();
        let of_archive = |failure: Failure| failure.at(&path);
        let archive = Archive::open(&file, 0..bytes).map_err(of_archive)?;
        let (stored, left_out) = stored(&archive).map_err(of_archive)?;
        self.left_out.extend(left_out);
        self.archives.push(ArchiveAt { file: path.clone(), range: 0..bytes });
        let infos = stored.iter().map(|it| it.info.clone()).collect();
        let file = TensorFile::of_ranges(path, file, bytes, infos)?;
        let named = stored.into_iter().map(|it| (it.info.name.clone(), it));
        self.stored.extend(named);
        Ok(file)
    }

    fn assemble(mut self, folder: Folder, format: Format) -> Result<TorchModel> {
        let mut assembly = Assembly::new(folder);
        for (name, stored) in self.stored {
            let part = stored.part(&mut assembly, None)?;
            assembly.add(&name, &stored.shape, vec![part])?;
        }
        self.left_out.sort();
        Ok(TorchModel { assembly, left_out: self.left_out, format, archives: self.archives })
    }
}

/// The tensors of an archive, and the names of other values.
fn stored(archive: &Archive) -> Read<(Vec<Stored>, Vec<String>)> {
    let pickle = &archive.pickle;
    let other = match pickle.get(pickle.root()) {
        Value::Dict(_) => None,
        Value::List(_) => Some("a list"),
        Value::Tuple(_) => Some("a tuple"),
        Value::Object { .. } => Some("a tensor or another object"),
        _ => Some("a single value"),
    };
    if let Some(other) = other {
        let problem = error!(
            Unsupported,
            "it contains {other} instead of a dict of tensors; save a dict: \
             torch.save({{'NAME': tensor}}, ..)"
        );
        return Err(problem.into());
    }
    let mut values = Values { archive, stored: Vec::new(), left_out: Vec::new(), name_bytes: 0 };
    values.add(pickle.root(), String::new(), 0)?;
    if let ([], Some(first)) = (&values.stored[..], values.left_out.first()) {
        let problem = error!(
            Unsupported,
            "it has no tensor, but other values such as `{}`; save a state_dict: \
             torch.save(model.state_dict(), ..)",
            first.escape_debug()
        );
        return Err(problem.into());
    }
    if let Some(name) = duplicate(&values.stored) {
        let name = name.escape_debug();
        let problem = error!(
            Unsupported,
            "two of its values have the name `{name}`; rename one of their keys"
        );
        return Err(problem.into());
    }
    Ok((values.stored, values.left_out))
}

/// A name that two tensors have.
fn duplicate(stored: &[Stored]) -> Option<&str> {
    let mut known = HashSet::with_capacity(stored.len());
    let mut names = stored.iter().map(|it| it.info.name.as_str());
    names.find(|name| !known.insert(*name))
}

/// The values of a pickle by name. Values of nested dicts and lists have names with dots, as
/// `torch.distributed.checkpoint` names them.
struct Values<'a> {
    archive: &'a Archive<'a>,
    stored: Vec<Stored>,
    left_out: Vec<String>,
    /// Bytes of all names. They are bounded, because the same dict may be at many places.
    name_bytes: usize,
}

impl Values<'_> {
    fn add(&mut self, value: Id, name: String, depth: usize) -> Read<()> {
        let pickle = &self.archive.pickle;
        self.name_bytes += name.len() + 1;
        if self.name_bytes > MAX_HEADER_BYTES {
            return Err(too_large("list of names", self.name_bytes as u64).into());
        }
        if let Some(tensor) = tensor(pickle, value, &name)? {
            self.stored.push(self.archive.locate(&tensor, &name, &name)?);
            return Ok(());
        }
        if depth > MAX_NESTED {
            return Err(nested(&name).into());
        }
        match pickle.get(value) {
            Value::Dict(items) => {
                for (key, value) in items {
                    let key = match (pickle.get(*key), pickle.text(*key)) {
                        (Value::Int(number), _) => number.to_string(),
                        (_, Some(text)) => text.to_owned(),
                        _ => return Err(bad_key(&name).into()),
                    };
                    self.add(*value, below(&name, &key), depth + 1)?;
                }
            }
            Value::List(items) | Value::Tuple(items) => {
                let known = (self.stored.len(), self.left_out.len());
                for (at, value) in items.iter().enumerate() {
                    self.add(*value, below(&name, &at.to_string()), depth + 1)?;
                }
                // A list without tensors counts as one value.
                if self.stored.len() == known.0 {
                    self.left_out.truncate(known.1);
                    self.left_out.push(name);
                }
            }
            _ => self.left_out.push(name),
        }
        Ok(())
    }
}

/// The error for a key without a name in the dict `name`.
fn bad_key(name: &str) -> Error {
    let dict = match name {
        "" => "its dict".to_owned(),
        name => format!("its dict `{}`", name.escape_debug()),
    };
    error!(
        Unsupported,
        "{dict} has a key that is neither a string nor an integer; save a state_dict: \
         torch.save(model.state_dict(), ..)"
    )
}

fn below(name: &str, key: &str) -> String {
    match name {
        "" => key.to_owned(),
        name => format!("{name}.{key}"),
    }
}

impl Stored {
    /// The tensor as a part: `region` of a larger tensor, or `None` if it is a whole tensor.
    pub(super) fn part(
        &self,
        assembly: &mut Assembly,
        region: Option<Vec<std::ops::Range<u64>>>,
    ) -> Result<Part> {
        let region = region.unwrap_or_else(|| self.shape.iter().map(|it| 0..*it).collect());
        let info = &self.info;
        let shape: Vec<u64> = info.shape.iter().map(|extent| *extent as u64).collect();
        let graph = assembly.graph_mut();
        let whole = graph.source(&info.name, info.dtype, &shape);
        let expr = whole.and_then(|whole| match &self.view {
            None => Ok(whole),
            Some(view) => view.of(graph, whole, &self.shape),
        });
        let expr = expr.map_err(|problem| not_assembled(&info.name, problem))?;
        Ok(Part { region, expr })
    }
}
