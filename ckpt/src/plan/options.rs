//! How a plan may read.

use crate::source::ALIGNMENT;

/// Bytes between two ranges up to which they are read together, on a local disk: what it would have
/// given in the time that another request takes (some 60 us at 3 GB/s).
pub const LOCAL_GAP: u64 = 256 << 10;

/// The same on a network file system, whose requests take a millisecond.
pub const REMOTE_GAP: u64 = 4 << 20;

/// Choices that a plan follows.
///
/// Ranks that shall have the same plan must be given the same options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Ranges at most this many bytes apart are read as one ([`LOCAL_GAP`], [`REMOTE_GAP`]). A
    /// greater gap than the window has no effect.
    pub gap: u64,
    /// Bytes that a thread reads at once; it owns as much memory (8 MiB).
    pub window: u64,
    /// Runs of at least this many bytes that lie in the file as in the target are read to their
    /// place, without a window (1 MiB).
    pub straight: u64,
    /// Offset and length of each read are multiples of this, as far as the file goes (1).
    pub alignment: u64,
    /// Threads that read and copy (4). No part of a plan's digest.
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
            window: 8 << 20,
            straight: 1 << 20,
            alignment: 1,
            threads: 4,
            targets: Targets::Stay,
            budget: None,
        }
    }
}

impl Options {
    /// The least a window is shrunk to for a budget.
    pub(super) const LEAST_WINDOW: u64 = 64 << 10;

    /// For sources that read past the page cache: only whole blocks, and everything by windows, as
    /// blocks do not end where tensors do.
    pub fn direct() -> Options {
        Options {
            straight: u64::MAX,
            alignment: ALIGNMENT as u64,
            ..Options::default()
        }
    }
}
