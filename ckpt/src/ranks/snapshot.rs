//! A checkpoint that ranks save together.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::agree::agree;
use super::folder::COORDINATOR;
use super::owners::HeldTensors;
use super::parts::{Part, by_block};
use super::plan::{FolderForm, Plan, Stated, held};
use super::verify::{all_blocks, contents, read_shared};
use super::write::{Staged, write};
use super::{Ranks, RanksError, Shard, ShardMemory};
use crate::blocks::Content;
use crate::manifest::About;
use crate::mapping::Mapping;
use crate::vfs::{RealFs, Vfs};
use crate::writer::check_staged;
use crate::{Committed, Digest, FolderWriter, MAX_BLOCK_BYTES, Result, Staging};

/// The part of a checkpoint that one rank has. All ranks add the same folders, in the same order.
///
/// ```
/// use meshgrad_ckpt::mapping::{Mapping, TensorSpec};
/// use meshgrad_ckpt::ranks::{Cause, Shard, ShardMemory, ShardedSnapshot, ThreadRanks};
/// use meshgrad_ckpt::{Dtype, Error, Folder};
/// use meshgrad_mesh::{Mesh, Placement, Sharding};
///
/// /// The bytes of a single shard.
/// struct Bytes(Vec<u8>);
///
/// impl ShardMemory for Bytes {
///     fn open(&mut self, _tensor: &str) -> Result<(), Cause> {
///         Ok(())
///     }
///     fn bytes(&self, _tensor: &str) -> Option<&[u8]> {
///         Some(&self.0)
///     }
///     fn close(&mut self, _tensor: &str) {}
/// }
///
/// // Ranks are usually processes, here threads. Each has one of two columns.
/// let run = tempfile::tempdir()?;
/// let mesh = Mesh::new(&[2], &["tp"])?;
/// let sharding = Sharding::new(&mesh, [("tp", Placement::shard(1))], &[3, 2])?;
/// let save = |number: u8, mut ranks: ThreadRanks| {
///     let tensor = TensorSpec::new("weight", Dtype::U8, &[3, 2]);
///     let region = sharding.region(number.into()).expect("the rank is in the mesh");
///     let mut snapshot = ShardedSnapshot::new(run.path(), "saved");
///     let shards = vec![Shard::new(tensor, &region)];
///     snapshot.add_model("", Mapping::identity(), shards, Bytes(vec![number; 3]));
///     ShardedSnapshot::save(Ok::<_, Error>(snapshot), &mut ranks)
/// };
/// std::thread::scope(|scope| {
///     let ranks = (0..).zip(ThreadRanks::all(2));
///     let threads: Vec<_> = ranks.map(|(number, it)| scope.spawn(move || save(number, it))).collect();
///     threads.into_iter().try_for_each(|it| it.join().expect("no panic").map(drop))
/// })?;
/// let folder = Folder::open(run.path().join("saved"))?;
/// assert_eq!(folder.read("weight")?, [0, 1, 0, 1, 0, 1]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ShardedSnapshot<'m> {
    vfs: Arc<dyn Vfs>,
    parent: PathBuf,
    name: String,
    about: About,
    block_bytes: u64,
    writer: FolderWriter,
    files: Vec<(String, Vec<u8>)>,
    folders: Vec<ModelFolder<'m>>,
}

struct ModelFolder<'m> {
    path: String,
    mapping: Mapping,
    shards: Vec<Shard>,
    memory: Box<dyn ShardMemory + 'm>,
}

/// A saved checkpoint, and what this rank did for it.
#[derive(Debug)]
pub struct Saved {
    /// The checkpoint.
    pub committed: Committed,
    /// Bytes of tensors and headers that this rank wrote.
    pub written_bytes: u64,
    /// Bytes that this rank read again, because several ranks wrote to their blocks.
    pub read_bytes: u64,
}

impl fmt::Debug for ShardedSnapshot<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ShardedSnapshot({})", self.path().display())
    }
}

impl<'m> ShardedSnapshot<'m> {
    /// A snapshot for the checkpoint `parent/name`, empty at first. All ranks must see the same
    /// folder `parent`, whatever its path.
    pub fn new(parent: impl AsRef<Path>, name: &str) -> ShardedSnapshot<'m> {
        ShardedSnapshot::new_in(Arc::new(RealFs), parent, name)
    }

    /// [`ShardedSnapshot::new`] in any file system.
    pub fn new_in(vfs: Arc<dyn Vfs>, parent: impl AsRef<Path>, name: &str) -> ShardedSnapshot<'m> {
        ShardedSnapshot {
            vfs,
            parent: parent.as_ref().to_owned(),
            name: name.to_owned(),
            about: About::new(),
            block_bytes: MAX_BLOCK_BYTES,
            writer: FolderWriter::new(),
            files: Vec::new(),
            folders: Vec::new(),
        }
    }

    /// Sets the size of digested blocks, at least 1 and at most [`MAX_BLOCK_BYTES`].
    pub fn block_bytes(mut self, bytes: u64) -> ShardedSnapshot<'m> {
        self.block_bytes = bytes.clamp(1, MAX_BLOCK_BYTES);
        self
    }

    /// As [`FolderWriter::max_shard_bytes`].
    pub fn max_shard_bytes(mut self, bytes: u64) -> ShardedSnapshot<'m> {
        self.writer = self.writer.max_shard_bytes(bytes);
        self
    }

    /// The path that the checkpoint will have.
    pub fn path(&self) -> PathBuf {
        self.parent.join(&self.name)
    }

    /// Adds a value to the manifest; the last value of a key counts. The values of rank 0 are
    /// stored.
    pub fn set_about(&mut self, key: &str, value: impl Into<Value>) {
        self.about.insert(key.to_owned(), value.into());
    }

    /// Adds a file with these bytes. The files of rank 0 are stored.
    pub fn add(&mut self, path: &str, bytes: impl Into<Vec<u8>>) {
        self.files.push((path.to_owned(), bytes.into()));
    }

    /// Adds the files of a model in `folder` ("" for the checkpoint's own folder). `mapping` relates
    /// the tensors of the model, on the left, to the stored ones, on the right. `shards` are this
    /// rank's regions of the model's tensors, and `memory` has their bytes.
    pub fn add_model(
        &mut self,
        folder: &str,
        mapping: Mapping,
        shards: Vec<Shard>,
        memory: impl ShardMemory + 'm,
    ) {
        self.folders.push(ModelFolder {
            path: folder.to_owned(),
            mapping,
            shards,
            memory: Box::new(memory),
        });
    }

    /// Writes and publishes the checkpoint together with the other ranks. All ranks must call this,
    /// also a rank that could not build its snapshot: it passes the error, and all ranks return it.
    ///
    /// # Errors
    /// [`RanksError`], the same on all ranks unless they cannot exchange messages. Nothing is
    /// published then, except in the last step: after a failed sync of the parent, or if a rank exits
    /// or cannot open the checkpoint while rank 0 publishes it, the checkpoint may exist.
    pub fn save<E: fmt::Display>(
        snapshot: Result<ShardedSnapshot<'m>, E>,
        ranks: &mut dyn Ranks,
    ) -> Result<Saved> {
        let step = "plan the checkpoint";
        let stated = agree(ranks, step, snapshot.as_ref().map(ShardedSnapshot::stated))?;
        let snapshot = snapshot.map_err(|error| RanksError::Failed {
            rank: ranks.rank(),
            step,
            cause: error.to_string(),
        })?;
        snapshot.save_held(&held(&stated)?, ranks)
    }

    fn stated(&self) -> Stated {
        let stated = |folder: &ModelFolder<'_>| (folder.path.clone(), folder.shards.clone());
        Stated {
            folders: self.folders.iter().map(stated).collect(),
        }
    }

    fn save_held(mut self, held: &[HeldTensors], ranks: &mut dyn Ranks) -> Result<Saved> {
        let Created {
            plan,
            folder,
            staging,
        } = self.create(held, ranks)?;
        let vfs = Arc::clone(&self.vfs);
        let staged = Staged {
            vfs: &*vfs,
            folder: &folder,
            rank: ranks.rank(),
        };
        let written = self.write(&plan, &staged, ranks)?;

        let parts = by_block(&written);
        let blocks = all_blocks(&plan, &parts)?;
        let read = read_shared(&blocks, &staged, written.len());
        let read = agree(ranks, "verify the files", read)?;

        let files = contents(&blocks, &by_block(&read));
        Ok(Saved {
            committed: self.publish(staging, files, ranks)?,
            written_bytes: bytes_of(&written, staged.rank),
            read_bytes: bytes_of(&read, staged.rank),
        })
    }

    /// Plans the files; rank 0 creates them.
    fn create(&mut self, held: &[HeldTensors], ranks: &mut dyn Ranks) -> Result<Created> {
        let is_coordinator = ranks.rank() == COORDINATOR;
        let created = self.plan(held).and_then(|(plan, digest)| {
            let staging = is_coordinator.then(|| self.stage(&plan)).transpose()?;
            Ok((plan, digest, staging))
        });
        let announced = created.as_ref().map(|(_, digest, staging)| Announced {
            digest: *digest,
            folder: staging.as_ref().and_then(folder_name),
        });
        let all = agree(ranks, "create the files", announced)?;
        let (plan, _, staging) = created?;
        Ok(Created {
            plan,
            folder: self.staged_folder(&all)?,
            staging,
        })
    }

    fn write(
        &mut self,
        plan: &Plan,
        staged: &Staged<'_>,
        ranks: &mut dyn Ranks,
    ) -> Result<Vec<Vec<Part>>> {
        let memories = self.folders.iter_mut().map(|folder| &mut folder.memory);
        let mut memories: Vec<&mut Box<dyn ShardMemory + 'm>> = memories.collect();
        let written = check_staged(staged.vfs, staged.folder);
        let written = written.and_then(|()| write(plan, staged, &mut memories));
        agree(ranks, "write its shards", written)
    }

    /// Rank 0 publishes the checkpoint; all ranks open it.
    fn publish(
        &self,
        staging: Option<Staging>,
        files: Result<Vec<(String, Content)>, RanksError>,
        ranks: &mut dyn Ranks,
    ) -> Result<Committed> {
        let published = staging.map(|staging| commit(staging, files)).transpose();
        let done = published.as_ref().map(|_| ());
        agree(ranks, "publish the checkpoint", done)?;
        match published? {
            Some(committed) => Ok(committed),
            None => Committed::open_in(Arc::clone(&self.vfs), self.path()),
        }
    }

    fn plan(&self, held: &[HeldTensors]) -> Result<(Plan, Digest)> {
        let forms = self.folders.iter().map(|folder| FolderForm {
            path: &folder.path,
            mapping: &folder.mapping,
            files: &self.writer,
        });
        let forms: Vec<FolderForm<'_>> = forms.collect();
        let plan = Plan::new(&forms, held, self.block_bytes)?;
        let digest = plan.digest(&forms);
        Ok((plan, digest))
    }

    /// Stages the folder, allocates the files with tensors and writes all others.
    fn stage(&mut self, plan: &Plan) -> Result<Staging> {
        let staging = Staging::new_in(Arc::clone(&self.vfs), &self.parent, &self.name)?;
        let mut staging = staging.block_bytes(self.block_bytes);
        for (key, value) in std::mem::take(&mut self.about) {
            staging.set_about(&key, value);
        }

        let layouts = plan.folders.iter().map(|folder| folder.layout.bytes());
        let files = self.files.iter().map(|(_, bytes)| bytes.len() as u64);
        staging.check_space(layouts.chain(files).fold(0, u64::saturating_add))?;
        for (_, path, planned) in plan.files() {
            staging.reserve(path, planned.bytes)?;
        }
        for folder in &plan.folders {
            folder.layout.write_index(&mut staging)?;
        }
        for (path, bytes) in &self.files {
            staging.write(path, bytes)?;
        }
        Ok(staging)
    }

    /// The path of the staged folder on this rank.
    fn staged_folder(&self, all: &[Announced]) -> Result<PathBuf, RanksError> {
        let other = all.iter().position(|rank| rank.digest != all[0].digest);
        if let Some(rank) = other {
            return Err(RanksError::Layouts {
                rank,
                first: all[0].digest,
                other: all[rank].digest,
            });
        }
        match &all[0].folder {
            Some(name) => Ok(self.parent.join(name)),
            None => Err(RanksError::Message {
                rank: 0,
                problem: "it names no folder".into(),
            }),
        }
    }
}

/// The files, once they exist.
struct Created {
    plan: Plan,
    /// The staged folder.
    folder: PathBuf,
    /// On rank 0.
    staging: Option<Staging>,
}

/// What a rank announces once the files exist.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Announced {
    digest: Digest,
    /// The name of the staged folder, from rank 0.
    folder: Option<String>,
}

fn folder_name(staging: &Staging) -> Option<String> {
    let name = staging.folder().file_name()?;
    Some(name.to_str()?.to_owned())
}

fn bytes_of(parts: &[Vec<Part>], rank: usize) -> u64 {
    let parts = parts.get(rank).into_iter().flatten();
    parts.map(|part| part.bytes).sum()
}

fn commit(
    mut staging: Staging,
    files: Result<Vec<(String, Content)>, RanksError>,
) -> Result<Committed> {
    for (path, content) in files? {
        staging.complete(&path, content)?;
    }
    staging.commit()
}
