//! A file system in memory that can produce every state that a power cut may leave.
//!
//! ```text
//!              write_at, rename, unlink ...            sync_data, sync_dir
//!   program ------------------------------> pending ------------------------> synced
//!                                              |                                 |
//!                    a power cut keeps any of these, torn by sectors      ... and all of these
//! ```
//!
//! It guarantees what POSIX guarantees. Content is on disk after `sync_data` of the file, a name
//! after `sync_dir` of its folder. A rename is atomic. What is not synced may reach the disk in
//! part and in any order. File systems that guarantee more (ext4 orders renames) leave fewer
//! states.

mod power_cut;
mod tree;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use meshgrad_ckpt::vfs::{FileKind, Lock, Metadata, Vfs, VfsFile};

pub use power_cut::Survivors;
use tree::{FileChange, Ino, NameChange, Node, ROOT, Tree};

/// The maximum size of a file.
const MAX_FILE_BYTES: u64 = 1 << 30;

/// A file system in memory. Clones share it. Files have at most 1 GiB.
#[derive(Debug, Clone, Default)]
pub struct SimFs {
    shared: Arc<Mutex<Shared>>,
}

#[derive(Debug, Default)]
struct Shared {
    tree: Tree,
    locked: BTreeSet<Ino>,
    history: Option<Vec<Recorded>>,
}

/// The state right after an operation that changed something.
#[derive(Debug, Clone)]
pub struct Recorded {
    /// A description of the operation.
    pub operation: String,
    tree: Tree,
}

impl Recorded {
    /// The number of changes that are not synced.
    pub fn pending(&self) -> usize {
        self.tree.pending()
    }

    /// The file system after a power cut in this state.
    pub fn after_crash(&self, survivors: Survivors) -> SimFs {
        SimFs::of(self.tree.after_crash(survivors))
    }
}

impl SimFs {
    /// An empty file system; its root is `/`.
    pub fn new() -> SimFs {
        SimFs::default()
    }

    fn of(tree: Tree) -> SimFs {
        let shared = Shared { tree, ..Shared::default() };
        SimFs { shared: Arc::new(Mutex::new(shared)) }
    }

    /// Records every state from now on, for [`SimFs::history`].
    pub fn record(&self) {
        self.lock_shared().history.get_or_insert_default();
    }

    /// The states since [`SimFs::record`].
    pub fn history(&self) -> Vec<Recorded> {
        self.lock_shared().history.clone().unwrap_or_default()
    }

    /// The number of recorded states.
    pub fn recorded(&self) -> usize {
        self.lock_shared().history.as_ref().map_or(0, Vec::len)
    }

    /// The file system after a power cut in the current state.
    pub fn after_crash(&self, survivors: Survivors) -> SimFs {
        SimFs::of(self.lock_shared().tree.after_crash(survivors))
    }

    fn lock_shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open_file(&self, path: &Path) -> io::Result<Box<dyn VfsFile>> {
        let ino = self.lock_shared().tree.find_file(path)?;
        Ok(self.handle(ino, path))
    }

    fn handle(&self, ino: Ino, path: &Path) -> Box<dyn VfsFile> {
        Box::new(SimFile { fs: self.clone(), ino, path: path.to_owned() })
    }

    fn move_entry(&self, from: &Path, to: &Path, replace: bool) -> io::Result<()> {
        let mut shared = self.lock_shared();
        let (folder, old) = shared.tree.find_parent(from)?;
        let (other, new) = shared.tree.find_parent(to)?;
        if folder != other {
            return Err(io::ErrorKind::CrossesDevices.into());
        }

        let names = &shared.tree.folder(folder)?.cached;
        let ino = *names.get(&old).ok_or(io::ErrorKind::NotFound)?;
        if names.contains_key(&new) && !replace {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let change = NameChange::Rename { old, new, ino };
        shared.tree.change_names(folder, change)?;
        shared.record(|| format!("rename {} to {}", from.display(), to.display()));
        Ok(())
    }

    fn remove_entry(&self, path: &Path, expected: FileKind) -> io::Result<()> {
        let mut shared = self.lock_shared();
        let (folder, name) = shared.tree.find_parent(path)?;
        let ino = shared.tree.find(path)?;

        match (shared.tree.node(ino)?, expected) {
            (Node::File(_), FileKind::File) => {}
            (Node::Folder(content), FileKind::Folder) if content.cached.is_empty() => {}
            (Node::Folder(_), FileKind::Folder) => {
                return Err(io::ErrorKind::DirectoryNotEmpty.into());
            }
            (Node::Folder(_), _) => return Err(io::ErrorKind::IsADirectory.into()),
            (Node::File(_), _) => return Err(io::ErrorKind::NotADirectory.into()),
        }
        shared.tree.change_names(folder, NameChange::Remove { name })?;
        shared.record(|| format!("remove {}", path.display()));
        Ok(())
    }

    fn add_entry(&self, path: &Path, node: Node, word: &str) -> io::Result<Ino> {
        let mut shared = self.lock_shared();
        let (folder, name) = shared.tree.find_parent(path)?;
        if shared.tree.folder(folder)?.cached.contains_key(&name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }

        let ino = shared.tree.add(node);
        shared.tree.change_names(folder, NameChange::Add { name, ino })?;
        shared.record(|| format!("{word} {}", path.display()));
        Ok(ino)
    }
}

impl Shared {
    fn record(&mut self, operation: impl FnOnce() -> String) {
        if let Some(history) = &mut self.history {
            history.push(Recorded { operation: operation(), tree: self.tree.clone() });
        }
    }
}

impl Vfs for SimFs {
    fn create_new(&self, path: &Path) -> io::Result<Box<dyn VfsFile>> {
        let ino = self.add_entry(path, Node::new_file(), "create")?;
        Ok(self.handle(ino, path))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn VfsFile>> {
        self.open_file(path)
    }

    fn open_to_write(&self, path: &Path) -> io::Result<Box<dyn VfsFile>> {
        self.open_file(path)
    }

    fn make_dir(&self, path: &Path) -> io::Result<()> {
        self.add_entry(path, Node::new_folder(), "make folder").map(|_| ())
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.remove_entry(path, FileKind::Folder)
    }

    fn unlink(&self, path: &Path) -> io::Result<()> {
        self.remove_entry(path, FileKind::File)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.move_entry(from, to, true)
    }

    fn rename_no_replace(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.move_entry(from, to, false)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let mut shared = self.lock_shared();
        let ino = shared.tree.find(path)?;
        shared.tree.sync_folder(ino)?;
        shared.record(|| format!("sync folder {}", path.display()));
        Ok(())
    }

    fn list(&self, path: &Path) -> io::Result<Vec<OsString>> {
        let shared = self.lock_shared();
        let ino = shared.tree.find(path)?;
        let names = shared.tree.folder(ino)?.cached.keys();
        Ok(names.map(OsString::from).collect())
    }

    fn metadata(&self, path: &Path) -> io::Result<Metadata> {
        let shared = self.lock_shared();
        let ino = shared.tree.find(path)?;
        let (kind, bytes) = match shared.tree.node(ino)? {
            Node::File(file) => (FileKind::File, file.cached.len() as u64),
            Node::Folder(_) => (FileKind::Folder, 0),
        };
        Ok(Metadata { kind, bytes })
    }

    fn space(&self, _path: &Path) -> Option<u64> {
        None
    }

    fn lock(&self, path: &Path) -> io::Result<Lock> {
        let mut shared = self.lock_shared();
        let ino = shared.tree.find(path)?;
        if !shared.locked.insert(ino) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let fs = self.clone();
        Ok(Lock::new(HeldLock { fs, ino }))
    }

    fn unique(&self) -> u64 {
        let mut shared = self.lock_shared();
        shared.tree.uniques += 1;
        shared.tree.uniques
    }
}

struct HeldLock {
    fs: SimFs,
    ino: Ino,
}

impl Drop for HeldLock {
    fn drop(&mut self) {
        self.fs.lock_shared().locked.remove(&self.ino);
    }
}

#[derive(Debug)]
struct SimFile {
    fs: SimFs,
    ino: Ino,
    path: PathBuf,
}

impl VfsFile for SimFile {
    fn size(&self) -> io::Result<u64> {
        let shared = self.fs.lock_shared();
        Ok(shared.tree.file(self.ino)?.cached.len() as u64)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let shared = self.fs.lock_shared();
        let content = &shared.tree.file(self.ino)?.cached;
        let start = content.len().min(offset as usize);
        let len = buffer.len().min(content.len() - start);
        buffer[..len].copy_from_slice(&content[start..start + len]);
        Ok(len)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        check_size(offset.saturating_add(bytes.len() as u64))?;
        let mut shared = self.fs.lock_shared();
        let change = FileChange::Write { offset: offset as usize, bytes: bytes.into() };
        shared.tree.change_file(self.ino, change)?;
        let end = offset + bytes.len() as u64;
        shared.record(|| format!("write bytes {offset}..{end} of {}", self.path.display()));
        Ok(bytes.len())
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        check_size(len)?;
        let mut shared = self.fs.lock_shared();
        let change = FileChange::Grow { len: len as usize };
        shared.tree.change_file(self.ino, change)?;
        shared.record(|| format!("allocate {len} bytes of {}", self.path.display()));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut shared = self.fs.lock_shared();
        shared.tree.sync_file(self.ino)?;
        shared.record(|| format!("sync {}", self.path.display()));
        Ok(())
    }
}

fn check_size(bytes: u64) -> io::Result<()> {
    match bytes {
        0..=MAX_FILE_BYTES => Ok(()),
        _ => Err(io::ErrorKind::StorageFull.into()),
    }
}

impl Tree {
    fn find(&self, path: &Path) -> io::Result<Ino> {
        let mut ino = ROOT;
        for part in path.components() {
            match part {
                Component::RootDir | Component::CurDir => {}
                Component::Normal(name) => {
                    let name = name.to_str().ok_or(io::ErrorKind::InvalidFilename)?;
                    let names = &self.folder(ino)?.cached;
                    ino = *names.get(name).ok_or(io::ErrorKind::NotFound)?;
                }
                _ => return Err(io::ErrorKind::InvalidFilename.into()),
            }
        }
        Ok(ino)
    }

    fn find_file(&self, path: &Path) -> io::Result<Ino> {
        let ino = self.find(path)?;
        self.file(ino).map(|_| ino)
    }

    /// The parent folder of a path, and its last component.
    fn find_parent(&self, path: &Path) -> io::Result<(Ino, String)> {
        let invalid = || io::Error::from(io::ErrorKind::InvalidFilename);
        let parent = path.parent().ok_or_else(invalid)?;
        let name = path.file_name().and_then(|name| name.to_str());
        Ok((self.find(parent)?, name.ok_or_else(invalid)?.to_owned()))
    }
}
