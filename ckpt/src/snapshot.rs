//! The state of a moment, owned, so that it can be saved while what it was copied from changes.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use crate::manifest::About;
use crate::vfs::{RealFs, Vfs};
use crate::{Committed, FolderWriter, OutputFile, Result, Staging, TensorInfo, TensorSink};

type Write = Box<dyn FnOnce(&mut Staging) -> Result<()> + Send>;

/// Everything that one checkpoint shall hold.
///
/// It owns its bytes. Where a closure makes them, it must own what it makes them from: what it
/// shares with training has changed by then.
pub struct Snapshot {
    vfs: Arc<dyn Vfs>,
    parent: PathBuf,
    name: String,
    about: About,
    /// Files of known size.
    sizes: Vec<(String, u64)>,
    /// Bytes of the rest, as far as known.
    other_bytes: u64,
    writes: Vec<Write>,
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Snapshot({})", self.path().display())
    }
}

impl Snapshot {
    /// The checkpoint `parent/name`, empty at first.
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

    /// Where the checkpoint will be.
    pub fn path(&self) -> PathBuf {
        self.parent.join(&self.name)
    }

    /// Puts a value into the manifest; the last value of a key counts.
    pub fn set_about(&mut self, key: &str, value: impl Into<Value>) {
        self.about.insert(key.to_owned(), value.into());
    }

    /// Adds a file of these bytes.
    pub fn add(&mut self, path: &str, bytes: impl Into<Vec<u8>>) {
        let bytes = bytes.into();
        self.add_with(path, bytes.len() as u64, move |file| file.append(&bytes));
    }

    /// Adds a file of `bytes` bytes that `make` makes when it is written.
    pub fn add_with(
        &mut self,
        path: &str,
        bytes: u64,
        make: impl FnOnce(&mut OutputFile) -> Result<()> + Send + 'static,
    ) {
        self.sizes.push((path.to_owned(), bytes));
        let path = path.to_owned();
        self.writes
            .push(Box::new(move |staging| staging.write_with(&path, make)));
    }

    /// Adds the files of a model in `folder`, "" for the checkpoint's own folder; `data` gives the
    /// bytes of each tensor, as in [`FolderWriter::write`].
    pub fn add_model(
        &mut self,
        folder: &str,
        model: FolderWriter,
        data: impl FnMut(&TensorInfo, &mut TensorSink<'_>) -> Result<()> + Send + 'static,
    ) {
        self.other_bytes = self.other_bytes.saturating_add(model.data_len());
        let folder = folder.to_owned();
        self.writes
            .push(Box::new(move |staging| model.write(staging, &folder, data)));
    }

    /// Writes and publishes the checkpoint; space for all of it is looked for first.
    ///
    /// # Errors
    /// As [`Staging`]'s methods.
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
