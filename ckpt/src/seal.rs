//! The last step before a checkpoint is published: syncs everything and writes the manifest.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::blocks::Content;
use crate::discover::names_in;
use crate::manifest::{About, MANIFEST_FILE, MAX_MANIFEST_BYTES, Manifest};
use crate::output_file::write_new;
use crate::vfs::{FileKind, Vfs};
use crate::{Error, Result, verify};

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
        let json = manifest.to_json().map_err(|error| Error::io("lay out", &path, error.into()))?;

        if json.len() as u64 > MAX_MANIFEST_BYTES {
            let bytes = json.len() as u64;
            return Err(Error::ManifestTooLarge { path, bytes });
        }
        write_new::<Error>(self.vfs, &path, self.block_bytes, |file| file.append(json.as_bytes()))?;
        Ok(())
    }

    fn changed(&self, path: &str, content: &Content, found: Option<u64>) -> Error {
        Error::ChangedWhileStaged {
            path: self.folder.join(path),
            written: content.bytes,
            found: found.unwrap_or(0),
        }
    }

    fn sync_and_digest(&self, path: &str) -> Result<Content> {
        let full = self.folder.join(path);
        let file = self.vfs.open(&full).map_err(|error| Error::io("open", &full, error))?;
        file.sync_data().map_err(|error| Error::io("sync", &full, error))?;
        verify::content(&*file, self.block_bytes).map_err(|error| Error::io("read", &full, error))
    }

    fn sync_folder(&self, folder: &Path) -> Result<()> {
        self.vfs.sync_dir(folder).map_err(|error| Error::io("sync", folder, error))
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
                self.vfs.metadata(&full).map_err(|error| Error::io("read", &full, error))?;

            match metadata.kind {
                FileKind::Folder => self.walk(&path, found)?,
                FileKind::File => {
                    found.files.insert(path, metadata.bytes);
                }
                // A link would make the checkpoint depend on its target.
                FileKind::Other => return Err(Error::NotAFile { path: full }),
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
