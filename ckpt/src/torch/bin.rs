//! `pytorch_model.bin`, or several such files and an index.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use super::archive::{Archive, Stored};
use super::tensor::tensor;
use super::{TorchError, TorchModel};
use crate::assembly::{Assembly, Part};
use crate::confined::{ConfinedFolder, open_file as open_regular};
use crate::folder::open_indexed;
use crate::{Error, Folder, Result, TensorFile};

const SINGLE_FILE: &str = "pytorch_model.bin";
const INDEX_FILE: &str = "pytorch_model.bin.index.json";

/// The tensors of all files, by name.
#[derive(Default)]
struct Tensors(BTreeMap<String, Stored>);

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
            open_indexed(path, confined, index, &mut |path, file| {
                tensors.of_file(path, file)
            })?
        }
    };
    tensors.assemble(folder).map(Some)
}

pub(super) fn open_file(path: &Path) -> Result<TorchModel> {
    let mut tensors = Tensors::default();
    let file = tensors.of_file(path.to_owned(), open_regular(path)?)?;
    let folder = Folder::of_parts(path.to_owned(), vec![file])?;
    tensors.assemble(folder)
}

impl Tensors {
    fn of_file(&mut self, path: PathBuf, file: File) -> Result<TensorFile> {
        let bytes = file.metadata();
        let bytes = bytes
            .map_err(|error| Error::io("open", &path, error))?
            .len();
        let stored = stored(&file, bytes).map_err(|problem| Error::Torch {
            path: path.clone(),
            problem,
        })?;
        let infos = stored.iter().map(|it| it.info.clone()).collect();
        let file = TensorFile::of_ranges(path, file, bytes, infos)?;
        let named = stored.into_iter().map(|it| (it.info.name.clone(), it));
        self.0.extend(named);
        Ok(file)
    }

    fn assemble(self, folder: Folder) -> Result<TorchModel> {
        let mut assembly = Assembly::new(folder);
        for (name, stored) in self.0 {
            let part = stored.part(&mut assembly, None)?;
            assembly.add(&name, &stored.shape, vec![part])?;
        }
        Ok(TorchModel {
            assembly,
            left_out: Vec::new(),
        })
    }
}

/// The tensors of a file.
fn stored(file: &File, bytes: u64) -> std::result::Result<Vec<Stored>, TorchError> {
    let archive = Archive::open(file, 0..bytes)?;
    let pickle = &archive.pickle;
    let items = pickle.dict(pickle.root());
    let items = items.ok_or(TorchError::Structure("dict of tensors"))?;
    let mut stored = Vec::with_capacity(items.len());
    for (key, value) in items {
        let name = pickle
            .text(*key)
            .ok_or(TorchError::Structure("names of tensors"))?;
        let tensor = tensor(pickle, *value, name)?;
        let tensor = tensor.ok_or_else(|| TorchError::NotATensor(name.to_owned()))?;
        stored.push(archive.locate(&tensor, name, name)?);
    }
    Ok(stored)
}

impl Stored {
    /// The tensor as a part at `region` of another one, or as a whole.
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
            Some(view) => graph.view(whole, view.offset, &self.shape, &view.strides),
        });
        let expr = expr.map_err(|problem| Error::Assembly {
            name: info.name.clone(),
            problem,
        })?;
        Ok(Part { region, expr })
    }
}
