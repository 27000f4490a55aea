//! Options of a plan.

use crate::Folder;
use crate::source::{ALIGNMENT, FileSystem};

/// On a local disk, gaps of up to this many bytes are read. Reading such a gap takes at most about
/// as long as another request (about 60 us at 3 GB/s).
pub const LOCAL_GAP: u64 = 256 << 10;

/// [`LOCAL_GAP`] for a network file system, where a request takes a millisecond.
pub const REMOTE_GAP: u64 = 4 << 20;

/// Bytes of a window on a local disk: enough for its full bandwidth.
const LOCAL_WINDOW: u64 = 8 << 20;

/// Bytes of a window on a network file system: a stripe or block of the larger systems.
const REMOTE_WINDOW: u64 = 16 << 20;

/// Bytes of a window for direct reads: small enough that all windows stay in the CPU caches between
/// the disk's write and our read.
const DIRECT_WINDOW: u64 = 1 << 20;

/// Threads for direct reads. There is no read-ahead, so some threads wait for the disk while others
/// copy.
const DIRECT_THREADS: usize = 8;

/// Parameters of a plan. Defaults are in parentheses.
///
/// Ranks that need equal plans must use equal options. Options derived from a file system
/// ([`Options::for_folder`]) differ if one machine has the files on its disk and another reads them
/// over the network. Both plans give the same targets, but their [digests](super::LoadPlan::digest)
/// differ: ranks that compare digests must use the file system of one rank for all
/// ([`Options::on`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Ranges at most this many bytes apart are read as one ([`LOCAL_GAP`], [`REMOTE_GAP`]). A gap
    /// larger than the window has no effect.
    pub gap: u64,
    /// Bytes per read. Each thread allocates as much memory (8 MiB; 1 MiB for direct reads).
    pub window: u64,
    /// Ranges of at least this many bytes that are contiguous in both file and target are read
    /// directly into the target, without a window (1 MiB).
    pub in_place: u64,
    /// Offset and length of each read are multiples of this, up to the end of the file (1).
    pub alignment: u64,
    /// Threads that read and copy (4). Direct reads use more threads than cores, because most of
    /// them wait for the disk (8). Not part of a plan's digest.
    pub threads: usize,
    /// What happens to complete targets.
    pub targets: Targets,
    /// The maximum memory of an execution. Windows shrink to fit it.
    pub budget: Option<u64>,
}

/// Whether complete targets stay in memory and count towards the planned memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Targets {
    /// Complete targets stay in memory, so all targets count.
    #[default]
    Retained,
    /// The sink moves each complete target to a device or a file immediately, so only incomplete
    /// targets count. Execution does not exceed the planned bytes.
    Released,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            gap: LOCAL_GAP,
            window: LOCAL_WINDOW,
            in_place: 1 << 20,
            alignment: 1,
            threads: 4,
            targets: Targets::Retained,
            budget: None,
        }
    }
}

impl Options {
    /// The minimum size of a window under a budget.
    pub(super) const MIN_WINDOW: u64 = 64 << 10;

    /// The options for the file system of a folder: the default if the user does not choose.
    pub fn for_folder(folder: &Folder) -> Options {
        Options::on(FileSystem::of(folder))
    }

    /// The options for files on this file system. If requests are slow, reads are larger: windows
    /// of 16 MiB instead of 8, and gaps up to [`REMOTE_GAP`]. A [budget](Options::budget) shrinks
    /// windows in either case.
    pub fn on(file_system: FileSystem) -> Options {
        let (gap, window) = match file_system {
            FileSystem::Local => (LOCAL_GAP, LOCAL_WINDOW),
            FileSystem::Remote { .. } => (REMOTE_GAP, REMOTE_WINDOW),
        };
        Options { gap, window, ..Options::default() }
    }

    /// The options for sources that bypass the page cache. Reads are whole blocks and always go
    /// through windows, because blocks do not end where tensors end. Uses 8 windows of 1 MiB.
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

    /// Reads some columns of a matrix. The gaps between the needed parts of its rows exceed
    /// [`LOCAL_GAP`].
    #[test]
    fn network_reads_are_fewer_and_larger() {
        let place = tempfile::tempdir().unwrap();
        let mut file = FileWriter::new();
        file.add("w", Dtype::U8, &[32, 600 << 10]).unwrap();
        let path = place.path().join("model.safetensors");
        file.save::<Error>(path, |it, data| data.append(&vec![7; it.byte_len()])).unwrap();
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
