//! The locations of a folder's tensors.

use crate::name_list::NameList;
use crate::{Folder, TensorFile, TensorInfo};

/// The tensors of some files by name, and the files.
#[derive(Clone, Debug)]
pub struct Catalog<'f> {
    pub(super) files: Vec<CatalogFile>,
    folder: &'f Folder,
    /// In the order of the folder.
    names: NameList<&'f str>,
}

/// The properties of a file that a plan needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CatalogFile {
    /// Its name in its folder, independent of where the folder is mounted.
    pub(crate) name: String,
    pub(crate) bytes: u64,
}

/// A tensor and its file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry<'f> {
    pub(super) file: u32,
    pub(super) tensor: &'f TensorInfo,
}

impl<'f> Catalog<'f> {
    /// The tensors of a folder, with files numbered as in the folder.
    pub fn of(folder: &'f Folder) -> Catalog<'f> {
        let file = |file: &TensorFile| {
            let name = file.path().file_name().unwrap_or_default();
            CatalogFile { name: name.to_string_lossy().into_owned(), bytes: file.byte_len() }
        };
        let names = folder.tensors().map(|tensor| tensor.name.as_str());
        Catalog {
            files: folder.files().iter().map(file).collect(),
            folder,
            names: NameList::ascending(names.collect()),
        }
    }

    /// The tensor of this name, found without hashing if the name has index `likely` in the sorted
    /// names.
    pub(super) fn get(&self, name: &str, mut likely: usize) -> Option<Entry<'f>> {
        let index = self.names.find(name, &mut likely)?;
        let (file, tensor) = self.folder.nth(index);
        Some(Entry { file: file as u32, tensor })
    }
}
