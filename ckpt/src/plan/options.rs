//! How a plan may read.

use crate::Folder;
use crate::source::{ALIGNMENT, FileSystem};

/// Bytes between two ranges up to which they are read together, on a local disk: what it would have
/// given in the time that another request takes (some 60 us at 3 GB/s).
pub const LOCAL_GAP: u64 = 256 << 10;

/// The same on a network file system, whose requests take a millisecond.
pub const REMOTE_GAP: u64 = 4 << 20;

/// Bytes of a window on a local disk: enough for its full speed.
const LOCAL_WINDOW: u64 = 8 << 20;

/// The same on a network file system: a stripe or a block of the larger ones.
const REMOTE_WINDOW: u64 = 16 << 20;

/// Bytes of a window for direct reads: all windows together stay in the caches, where a disk (or
/// whoever plays one for a virtual machine) writes and we read.
const DIRECT_WINDOW: u64 = 1 << 20;

/// Threads for direct reads. Nobody reads ahead for them, so some wait for the disk while others
/// copy.
const DIRECT_THREADS: usize = 8;

/// Choices that a plan follows.
///
/// Ranks that shall have the same plan must be given the same options. Those that follow from a
/// file system ([`Options::for_folder`]) differ where one machine has the files on its disk and
/// another reads them by the network. Both plans give the same targets, but their
/// [digests](super::LoadPlan::digest) differ: ranks that compare these take the file system that
/// one of them has told all ([`Options::on`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Ranges at most this many bytes apart are read as one ([`LOCAL_GAP`], [`REMOTE_GAP`]). A
    /// greater gap than the window has no effect.
    pub gap: u64,
    /// Bytes that a thread reads at once; it owns as much memory (8 MiB; 1 MiB for direct reads).
    pub window: u64,
    /// Runs of at least this many bytes that lie in the file as in the target are read to their
    /// place, without a window (1 MiB).
    pub in_place: u64,
    /// Offset and length of each read are multiples of this, as far as the file goes (1).
    pub alignment: u64,
    /// Threads that read and copy (4). For direct reads more than there are cores, as most of them
    /// wait for the disk (8). No part of a plan's digest.
    pub threads: usize,
    /// What becomes of the targets.
    pub targets: Targets,
    /// The most memory that carrying it out may take. Windows are made smaller to keep to it.
    pub budget: Option<u64>,
}

/// What becomes of targets when they are complete: decides what counts as used memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Targets {
    /// They stay in memory: all of them count.
    #[default]
    Stay,
    /// The sink takes each away at once, to a device or a file: only those count that are begun
    /// and not complete. Execution keeps to the number planned.
    Leave,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            gap: LOCAL_GAP,
            window: LOCAL_WINDOW,
            in_place: 1 << 20,
            alignment: 1,
            threads: 4,
            targets: Targets::Stay,
            budget: None,
        }
    }
}

impl Options {
    /// The least a window is shrunk to for a budget.
    pub(super) const MIN_WINDOW: u64 = 64 << 10;

    /// For the file system that a folder is on: what to use unless somebody has said how to read.
    pub fn for_folder(folder: &Folder) -> Options {
        Options::on(FileSystem::of(folder))
    }

    /// For files on such a file system. Where requests take long, more is read at once: windows of
    /// 16 MiB instead of 8, and gaps up to [`REMOTE_GAP`]. A [budget](Options::budget) shrinks
    /// windows as ever.
    pub fn on(file_system: FileSystem) -> Options {
        let (gap, window) = match file_system {
            FileSystem::Local => (LOCAL_GAP, LOCAL_WINDOW),
            FileSystem::Remote { .. } => (REMOTE_GAP, REMOTE_WINDOW),
        };
        Options {
            gap,
            window,
            ..Options::default()
        }
    }

    /// For sources that read past the page cache: only whole blocks, and everything by windows, as
    /// blocks do not end where tensors do. Many small windows: 8 of 1 MiB.
    pub fn direct() -> Options {
        Options {
            window: DIRECT_WINDOW,
            in_place: u64::MAX,
            alignment: ALIGNMENT as u64,
            threads: DIRECT_THREADS,
            ..Options::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Graph;
    use crate::plan::{Catalog, LoadPlan, LoadRequest};
    use crate::{Dtype, Error, FileWriter};

    /// Columns of a matrix, whose rows are further apart than a local gap.
    #[test]
    fn the_network_is_asked_less_often_for_more() {
        let place = tempfile::tempdir().unwrap();
        let mut file = FileWriter::new();
        file.add("w", Dtype::U8, &[32, 600 << 10]).unwrap();
        let path = place.path().join("model.safetensors");
        file.save::<Error>(path, |it, data| data.append(&vec![7; it.byte_len()]))
            .unwrap();
        let folder = Folder::open(place.path()).unwrap();
        let mut graph = Graph::new();
        let w = graph.source("w", Dtype::U8, &[32, 600 << 10]).unwrap();
        let plan = |options: &Options| {
            let request = LoadRequest::new("w", w, [0..32, 0..1024]);
            LoadPlan::new(&graph, &Catalog::of(&folder), &[request], options).unwrap()
        };

        let local = plan(&Options::on(FileSystem::Local));
        let remote = plan(&Options::on(FileSystem::Remote { name: "NFS" }));
        assert_eq!((local.reads().reads, remote.reads().reads), (32, 2));
        assert_eq!(local.needed_bytes(), remote.needed_bytes());
        assert_eq!(local.amplification(), 1.0);
        assert_ne!(local.digest(), remote.digest());

        assert_eq!(Options::on(FileSystem::Local), Options::default());
        let here = Options::on(FileSystem::of(&folder));
        assert_eq!(Options::for_folder(&folder), here);
    }
}
