//! Files and folders by inode number: as on disk, as programs see them, and the changes in between.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

pub(super) type Ino = u64;

pub(super) const ROOT: Ino = 0;

/// All files and folders. Cheap to clone: nodes are copied on write.
#[derive(Debug, Clone)]
pub(super) struct Tree {
    pub(super) nodes: BTreeMap<Ino, Node>,
    /// Unique numbers handed out so far; a power cut does not reset them.
    pub(super) uniques: u64,
}

#[derive(Debug, Clone)]
pub(super) enum Node {
    File(Arc<File>),
    Folder(Arc<Folder>),
}

#[derive(Debug, Clone, Default)]
pub(super) struct File {
    pub(super) synced: Arc<Vec<u8>>,
    pub(super) cached: Arc<Vec<u8>>,
    /// The changes from `synced` to `cached`.
    pub(super) pending: Vec<FileChange>,
}

#[derive(Debug, Clone)]
pub(super) enum FileChange {
    Write { offset: usize, bytes: Arc<[u8]> },
    Grow { len: usize },
}

pub(super) type Names = BTreeMap<String, Ino>;

#[derive(Debug, Clone, Default)]
pub(super) struct Folder {
    pub(super) synced: Names,
    pub(super) cached: Names,
    /// The changes from `synced` to `cached`.
    pub(super) pending: Vec<NameChange>,
}

#[derive(Debug, Clone)]
pub(super) enum NameChange {
    Add { name: String, ino: Ino },
    Remove { name: String },
    Rename { old: String, new: String, ino: Ino },
}

impl Default for Tree {
    fn default() -> Tree {
        Tree { nodes: BTreeMap::from([(ROOT, Node::new_folder())]), uniques: 0 }
    }
}

impl Node {
    pub(super) fn new_file() -> Node {
        Node::File(Arc::default())
    }

    pub(super) fn new_folder() -> Node {
        Node::Folder(Arc::default())
    }
}

impl FileChange {
    pub(super) fn apply(&self, content: &mut Vec<u8>) {
        match self {
            FileChange::Write { offset, bytes } => {
                let end = offset + bytes.len();
                content.resize(content.len().max(end), 0);
                content[*offset..end].copy_from_slice(bytes);
            }
            FileChange::Grow { len } => content.resize(content.len().max(*len), 0),
        }
    }
}

impl NameChange {
    /// Applies the change, even if an earlier one did not survive.
    pub(super) fn apply(&self, names: &mut Names) {
        match self {
            NameChange::Add { name, ino } => {
                names.insert(name.clone(), *ino);
            }
            NameChange::Remove { name } => {
                names.remove(name);
            }
            NameChange::Rename { old, new, ino } => {
                if names.get(old) == Some(ino) {
                    names.remove(old);
                }
                names.insert(new.clone(), *ino);
            }
        }
    }
}

impl Tree {
    pub(super) fn node(&self, ino: Ino) -> io::Result<&Node> {
        Ok(self.nodes.get(&ino).ok_or(io::ErrorKind::NotFound)?)
    }

    pub(super) fn file(&self, ino: Ino) -> io::Result<&File> {
        match self.node(ino)? {
            Node::File(file) => Ok(file),
            Node::Folder(_) => Err(io::ErrorKind::IsADirectory.into()),
        }
    }

    pub(super) fn folder(&self, ino: Ino) -> io::Result<&Folder> {
        match self.node(ino)? {
            Node::Folder(folder) => Ok(folder),
            Node::File(_) => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    fn file_mut(&mut self, ino: Ino) -> io::Result<&mut File> {
        match self.nodes.get_mut(&ino).ok_or(io::ErrorKind::NotFound)? {
            Node::File(file) => Ok(Arc::make_mut(file)),
            Node::Folder(_) => Err(io::ErrorKind::IsADirectory.into()),
        }
    }

    fn folder_mut(&mut self, ino: Ino) -> io::Result<&mut Folder> {
        match self.nodes.get_mut(&ino).ok_or(io::ErrorKind::NotFound)? {
            Node::Folder(folder) => Ok(Arc::make_mut(folder)),
            Node::File(_) => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    /// Adds a node without a name.
    pub(super) fn add(&mut self, node: Node) -> Ino {
        let ino = self.nodes.last_key_value().map_or(ROOT, |(last, _)| last + 1);
        self.nodes.insert(ino, node);
        ino
    }

    pub(super) fn change_file(&mut self, ino: Ino, change: FileChange) -> io::Result<()> {
        let file = self.file_mut(ino)?;
        change.apply(Arc::make_mut(&mut file.cached));
        file.pending.push(change);
        Ok(())
    }

    pub(super) fn change_names(&mut self, ino: Ino, change: NameChange) -> io::Result<()> {
        let folder = self.folder_mut(ino)?;
        change.apply(&mut folder.cached);
        folder.pending.push(change);
        Ok(())
    }

    pub(super) fn sync_file(&mut self, ino: Ino) -> io::Result<()> {
        let file = self.file_mut(ino)?;
        file.synced = Arc::clone(&file.cached);
        file.pending.clear();
        Ok(())
    }

    pub(super) fn sync_folder(&mut self, ino: Ino) -> io::Result<()> {
        let folder = self.folder_mut(ino)?;
        folder.synced = folder.cached.clone();
        folder.pending.clear();
        Ok(())
    }
}
