//! Where the tensors of a folder lie.

use hashbrown::HashMap;

use crate::{Folder, TensorInfo};

/// The tensors of some files by name, and the files.
#[derive(Clone, Debug)]
pub struct Catalog<'f> {
    pub(super) files: Vec<CatalogFile>,
    tensors: HashMap<&'f str, Entry<'f>>,
}

/// A file, as far as a plan knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CatalogFile {
    /// Its name in its folder: the same wherever the folder is mounted.
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
    /// The tensors of a folder; files are numbered as the folder does.
    pub fn of(folder: &'f Folder) -> Catalog<'f> {
        let mut files = Vec::with_capacity(folder.files().len());
        let mut tensors = HashMap::with_capacity(folder.tensors().len());
        for (file, number) in folder.files().iter().zip(0..) {
            let name = file.path().file_name().unwrap_or_default();
            // A valid file ends where its last tensor does.
            let ends = file.tensors().iter().map(|tensor| tensor.range.end);
            files.push(CatalogFile {
                name: name.to_string_lossy().into_owned(),
                bytes: ends.max().unwrap_or(0),
            });
            for tensor in file.tensors() {
                let entry = Entry {
                    file: number,
                    tensor,
                };
                tensors.insert(tensor.name.as_str(), entry);
            }
        }
        Catalog { files, tensors }
    }

    pub(super) fn get(&self, name: &str) -> Option<Entry<'f>> {
        self.tensors.get(name).copied()
    }
}
