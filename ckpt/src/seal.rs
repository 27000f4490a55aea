//! The last step before a checkpoint is published: syncs everything and writes the manifest.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use meshgrad_error::{Error, Result, ensure, error};

use crate::blocks::Content;
use crate::discover::names_in;
use crate::error::{io_error, not_a_file};
use crate::manifest::{About, MANIFEST_FILE, MAX_MANIFEST_BYTES, Manifest};
use crate::output_file::write_new;
use crate::verify;
use crate::vfs::{FileKind, Vfs};

/// A folder to seal.
pub(crate) struct Sealer<'a> {
    pub(crate) vfs: &'a dyn Vfs,
    pub(crate) folder: &'a Path,
    pub(crate) block_bytes: u64,
}

impl Sealer<'_> {
    /// Writes the manifest of `written` and of files that other programs added. When this returns,
    /// everything below the folder is on disk.
    pub(crate) fn seal(&self, mut written: BTreeMap<String, Content>, about: About) -> Result<()> {
        let mut found = Found::default();
        self.walk("", &mut found)?;

        let mut files = BTreeMap::new();
        for (path, bytes) in found.files {
            let content = match written.remove(&path) {
                Some(content) if content.bytes == bytes => content,
                Some(content) => return Err(self.changed(&path, &content, Some(bytes))),
                None => self.sync_and_digest(&path)?,
            };
            files.insert(path, content);
        }
        if let Some((path, content)) = written.first_key_value() {
            return Err(self.changed(path, content, None));
        }

        // Folders are synced after their files. The manifest is written last.
        for folder in &found.folders {
            self.sync_folder(folder)?;
        }
        self.write_manifest(&Manifest { about, files })?;
        self.sync_folder(self.folder)
    }

    fn write_manifest(&self, manifest: &Manifest) -> Result<()> {
        let path = self.folder.join(MANIFEST_FILE);
        let json = manifest.to_json().map_err(|error| io_error("lay out", &path, error.into()))?;

        ensure!(
            json.len() as u64 <= MAX_MANIFEST_BYTES,
            Invalid,
            "{} would have {} bytes, but the maximum is {MAX_MANIFEST_BYTES}; write fewer files, \
             or larger contiguous parts of them",
            path.display(),
            json.len()
        );
        write_new::<Error>(self.vfs, &path, self.block_bytes, |file| file.append(json.as_bytes()))?;
        Ok(())
    }

    fn changed(&self, path: &str, content: &Content, found: Option<u64>) -> Error {
        error!(
            Malformed,
            "{} has {} bytes but {} were written; another program modified it",
            self.folder.join(path).display(),
            found.unwrap_or(0),
            content.bytes
        )
    }

    fn sync_and_digest(&self, path: &str) -> Result<Content> {
        let full = self.folder.join(path);
        let file = self.vfs.open(&full).map_err(|error| io_error("open", &full, error))?;
        file.sync_data().map_err(|error| io_error("sync", &full, error))?;
        verify::content(&*file, self.block_bytes).map_err(|error| io_error("read", &full, error))
    }

    fn sync_folder(&self, folder: &Path) -> Result<()> {
        self.vfs.sync_dir(folder).map_err(|error| io_error("sync", folder, error))
    }

    fn walk(&self, below: &str, found: &mut Found) -> Result<()> {
        let folder = self.folder.join(below);
        for name in names_in(self.vfs, &folder)? {
            let path = match below {
                "" => name,
                _ => format!("{below}/{name}"),
            };
            let full = self.folder.join(&path);
            let metadata =
                self.vfs.metadata(&full).map_err(|error| io_error("read", &full, error))?;

            match metadata.kind {
                FileKind::Folder => self.walk(&path, found)?,
                FileKind::File => {
                    found.files.insert(path, metadata.bytes);
                }
                // A link would make the checkpoint depend on its target.
                FileKind::Other => return Err(not_a_file(&full)),
            }
        }
        found.folders.push(folder);
        Ok(())
    }
}

/// All files below a folder, with their sizes, and all folders, the deepest first.
#[derive(Default)]
struct Found {
    files: BTreeMap<String, u64>,
    folders: Vec<PathBuf>,
}
