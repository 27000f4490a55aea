//! An owned copy of the training state, which can be saved while the original changes.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use crate::manifest::About;
use crate::vfs::{RealFs, Vfs};
use crate::{Committed, FolderWriter, OutputFile, Result, Staging, TensorInfo, TensorSink};

type Write = Box<dyn FnOnce(&mut Staging) -> Result<()> + Send>;

/// The content of one checkpoint.
///
/// It owns its bytes. A closure that produces bytes must own their sources, because training
/// changes its own data meanwhile.
pub struct Snapshot {
    vfs: Arc<dyn Vfs>,
    parent: PathBuf,
    name: String,
    about: About,
    /// Files of known size.
    sizes: Vec<(String, u64)>,
    /// Bytes of the other files, as far as known.
    other_bytes: u64,
    writes: Vec<Write>,
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Snapshot({})", self.path().display())
    }
}

impl Snapshot {
    /// A snapshot for the checkpoint `parent/name`, empty at first.
    pub fn new(parent: impl AsRef<Path>, name: &str) -> Snapshot {
        Snapshot::new_in(Arc::new(RealFs), parent, name)
    }

    /// [`Snapshot::new`] in any file system.
    pub fn new_in(vfs: Arc<dyn Vfs>, parent: impl AsRef<Path>, name: &str) -> Snapshot {
        Snapshot {
            vfs,
            parent: parent.as_ref().to_owned(),
            name: name.to_owned(),
            about: About::new(),
            sizes: Vec::new(),
            other_bytes: 0,
            writes: Vec::new(),
        }
    }

    /// The path that the checkpoint will have.
    pub fn path(&self) -> PathBuf {
        self.parent.join(&self.name)
    }

    /// Adds a value to the manifest; the last value of a key counts.
    pub fn set_about(&mut self, key: &str, value: impl Into<Value>) {
        self.about.insert(key.to_owned(), value.into());
    }

    /// Adds a file with these bytes.
    pub fn add(&mut self, path: &str, bytes: impl Into<Vec<u8>>) {
        let bytes = bytes.into();
        self.add_with(path, bytes.len() as u64, move |file| file.append(&bytes));
    }

    /// Adds a file of `bytes` bytes that `make` produces when it is written.
    pub fn add_with(
        &mut self,
        path: &str,
        bytes: u64,
        make: impl FnOnce(&mut OutputFile) -> Result<()> + Send + 'static,
    ) {
        self.sizes.push((path.to_owned(), bytes));
        let path = path.to_owned();
        self.writes.push(Box::new(move |staging| staging.write_with(&path, make)));
    }

    /// Adds the files of a model in `folder` ("" for the checkpoint's own folder). `data` returns
    /// the bytes of each tensor, as in [`FolderWriter::write`].
    pub fn add_model(
        &mut self,
        folder: &str,
        model: FolderWriter,
        data: impl FnMut(&TensorInfo, &mut TensorSink<'_>) -> Result<()> + Send + 'static,
    ) {
        self.other_bytes = self.other_bytes.saturating_add(model.data_len());
        let folder = folder.to_owned();
        self.writes.push(Box::new(move |staging| model.write(staging, &folder, data)));
    }

    /// Writes and publishes the checkpoint, after a check that there is space for all of it.
    ///
    /// # Errors
    /// As the methods of [`Staging`].
    pub fn save(self) -> Result<Committed> {
        let mut staging = Staging::new_in(self.vfs, self.parent, &self.name)?;
        for (key, value) in self.about {
            staging.set_about(&key, value);
        }

        let sizes = self.sizes.iter().map(|(_, bytes)| *bytes);
        staging.check_space(sizes.fold(self.other_bytes, u64::saturating_add))?;
        for (path, bytes) in &self.sizes {
            staging.reserve(path, *bytes)?;
        }
        for write in self.writes {
            write(&mut staging)?;
        }
        staging.commit()
    }
}
