//! A checkpoint that ranks save together.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use meshgrad_error::{Error, Result, bail};
use serde_json::Value;

use super::blocks::{Part, all_blocks, contents, read_shared};
use super::owners::{COORDINATOR, HeldTensors, collect};
use super::plan::{ModelFolder, Plan, Staged};
use super::write::write;
use super::{Cause, Ranks, ReadShard, Shard};
use crate::blocks::Content;
use crate::exec::TensorBytes;
use crate::manifest::About;
use crate::mapping::Mapping;
use crate::vfs::{RealFs, Vfs};
use crate::writer::check_staged;
use crate::{Committed, Digest, FolderWriter, MAX_BLOCK_BYTES, Staging};

/// The part of a checkpoint that one rank has. All ranks add the same folders, in the same order.
///
/// ```
/// use meshgrad_ckpt::mapping::{Mapping, TensorSpec};
/// use meshgrad_ckpt::ranks::{Ranks, Shard, ShardedSnapshot};
/// use meshgrad_ckpt::{Dtype, Folder};
/// use meshgrad_mesh::{Mesh, Placement, Sharding};
///
/// // Ranks are usually processes, here threads. Each has one of two columns.
/// let run = tempfile::tempdir()?;
/// let mesh = Mesh::new(&[2], &["tp"])?;
/// let sharding = Sharding::new(&mesh, [("tp", Placement::shard(1))], &[3, 2])?;
/// let save = |mut ranks: Ranks<'_>| {
///     let number = ranks.rank();
///     let tensor = TensorSpec::new("weight", Dtype::U8, &[3, 2]);
///     let region = sharding.region(number).expect("the rank is in the mesh");
///     let mut snapshot = ShardedSnapshot::new(run.path(), "saved");
///     let shards = vec![Shard::new(tensor, &region)];
///     snapshot.add_model("", Mapping::identity(), shards, move |_name| {
///         Ok(Box::new([number as u8; 3]))
///     });
///     ShardedSnapshot::save(Ok(snapshot), &mut ranks)
/// };
/// std::thread::scope(|scope| {
///     let ranks = Ranks::threads(2).into_iter();
///     let threads: Vec<_> = ranks.map(|it| scope.spawn(move || save(it))).collect();
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
    /// rank's regions of the model's tensors, and `read` returns their bytes by name: once per tensor,
    /// dropped after their last use.
    pub fn add_model(
        &mut self,
        folder: &str,
        mapping: Mapping,
        shards: Vec<Shard>,
        read: impl Fn(&str) -> Result<TensorBytes<'m>, Cause> + Send + 'm,
    ) {
        self.folders.push(ModelFolder {
            path: folder.to_owned(),
            mapping,
            shards,
            read: Box::new(read),
        });
    }

    /// Writes and publishes the checkpoint together with the other ranks. All ranks must call this,
    /// also a rank that could not build its snapshot: it passes the error, and all ranks return it.
    ///
    /// # Errors
    /// When a rank fails ([`FailedRank`](crate::FailedRank)) or exits, or the shards do not form tensors that can be
    /// stored; the same error on all ranks unless they cannot exchange messages. Nothing is
    /// published then, except in the last step: after a failed sync of the parent, or if a rank
    /// exits or cannot open the checkpoint while rank 0 publishes it, the checkpoint may exist.
    pub fn save(snapshot: Result<ShardedSnapshot<'m>>, ranks: &mut Ranks<'_>) -> Result<Saved> {
        let stated = snapshot.as_ref().map(ShardedSnapshot::shards);
        let stated = ranks.agree("plan the checkpoint", stated.map_err(Error::clone))?;
        snapshot?.save_held(&collect(&stated)?, ranks)
    }

    /// By folder.
    fn shards(&self) -> Vec<Vec<Shard>> {
        let folders = self.folders.iter();
        folders.map(|folder| folder.shards.clone()).collect()
    }

    fn save_held(mut self, held: &HeldTensors, ranks: &mut Ranks<'_>) -> Result<Saved> {
        let (plan, folder, staging) = self.create(held, ranks)?;
        let staged = Staged { vfs: &*self.vfs, folder: &folder, rank: ranks.rank() };
        let shards: Vec<&ReadShard<'m>> = self.folders.iter().map(|it| &it.read).collect();
        let written = check_staged(staged.vfs, staged.folder);
        let written = written.and_then(|()| write(&plan, &staged, &shards));
        let written = ranks.agree("write its shards", written)?;

        let blocks = all_blocks(&plan, &written)?;
        let read = read_shared(&blocks, &staged, ranks.world_size());
        let read = ranks.agree("verify the files", read)?;

        let bytes_of = |parts: &[Part]| parts.iter().map(|part| part.bytes).sum();
        Ok(Saved {
            written_bytes: bytes_of(&written[staged.rank]),
            read_bytes: bytes_of(&read[staged.rank]),
            committed: self.publish(staging, contents(&blocks, &read), ranks)?,
        })
    }

    /// Plans the files; rank 0 creates them. Returns the plan, the staged folder and, on rank 0, its
    /// owner.
    fn create(
        &mut self,
        held: &HeldTensors,
        ranks: &mut Ranks<'_>,
    ) -> Result<(Plan, PathBuf, Option<Staging>)> {
        let is_coordinator = ranks.rank() == COORDINATOR;
        let plan = Plan::new(&self.folders, held, &self.writer, self.block_bytes, ranks.rank());
        let created = plan.and_then(|plan| {
            let staging = is_coordinator.then(|| self.stage(&plan)).transpose()?;
            Ok((plan, staging))
        });
        let announced = created.as_ref().map(|(plan, staging)| {
            let folder = staging.as_ref().and_then(|it| it.folder().file_name());
            let name = folder.map(|name| name.to_string_lossy().into_owned());
            (plan.digest, name)
        });
        let all = ranks.agree("create the files", announced.map_err(Error::clone))?;
        let (plan, staging) = created?;
        Ok((plan, self.staged_folder(&all)?, staging))
    }

    /// Rank 0 publishes the checkpoint; all ranks open it.
    fn publish(
        &self,
        staging: Option<Staging>,
        files: Result<Vec<(String, Content)>>,
        ranks: &mut Ranks<'_>,
    ) -> Result<Committed> {
        let commit = |mut staging: Staging| {
            for (path, content) in files? {
                staging.complete(&path, content)?;
            }
            staging.commit()
        };
        let published = staging.map(commit).transpose();
        let done = published.as_ref().map(|_| ()).map_err(Error::clone);
        ranks.agree("publish the checkpoint", done)?;
        match published? {
            Some(committed) => Ok(committed),
            None => Committed::open_in(Arc::clone(&self.vfs), self.path()),
        }
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
    fn staged_folder(&self, all: &[Announced]) -> Result<PathBuf> {
        if let Some(rank) = all.iter().position(|it| it.0 != all[0].0) {
            bail!(
                Invalid,
                "rank {rank} lays out other files than rank 0; use the same folders, mappings and \
                 maximum size of a file on all ranks"
            );
        }
        Ok(self.parent.join(all[0].1.as_deref().unwrap_or_default()))
    }
}

/// What a rank announces once the files exist: the digest of its plan, and on rank 0 the name of the
/// staged folder.
type Announced = (Digest, Option<String>);
