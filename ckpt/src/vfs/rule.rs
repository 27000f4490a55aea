//! Which operations meet a fault, and what becomes of them.

use std::fmt;
use std::io;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

/// The kinds of operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[allow(missing_docs)] // named as the operations are
pub enum Op {
    CreateNew,
    Open,
    OpenToWrite,
    MakeDir,
    RemoveDir,
    Unlink,
    Rename,
    RenameNoReplace,
    SyncDir,
    List,
    Metadata,
    Lock,
    Size,
    Read,
    Write,
    Allocate,
    SyncData,
}

impl Op {
    /// Whether it changes the disk or waits for it.
    pub fn is_change(self) -> bool {
        !matches!(
            self,
            Op::Open | Op::OpenToWrite | Op::List | Op::Metadata | Op::Lock | Op::Size | Op::Read
        )
    }
}

/// What becomes of an operation.
#[derive(Clone)]
pub enum Fault {
    /// It is not done and gives an error of this kind. After a failed sync of a file, later syncs
    /// of it succeed and do nothing, as on Linux.
    Fail(io::ErrorKind),
    /// A read or a write moves one byte; others are done in full.
    Short,
    /// It gives success and does nothing. Operations that give a value are done.
    Skip,
    /// It and all later ones fail: the process is gone.
    Stop,
    /// This is called first, then the operation is done.
    Before(Arc<dyn Fn() + Send + Sync>),
    /// The operation is done, then this is called.
    After(Arc<dyn Fn() + Send + Sync>),
}

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Fail(kind) => write!(f, "Fail({kind:?})"),
            Fault::Short => f.write_str("Short"),
            Fault::Skip => f.write_str("Skip"),
            Fault::Stop => f.write_str("Stop"),
            Fault::Before(_) => f.write_str("Before"),
            Fault::After(_) => f.write_str("After"),
        }
    }
}

/// Which operations a fault befalls: all, unless narrowed.
#[derive(Debug)]
pub struct Rule {
    pub(super) fault: Fault,
    op: Option<Op>,
    part_of_path: Option<String>,
    counts: RangeInclusive<u64>,
    seen: AtomicU64,
}

impl Rule {
    /// Befalls every operation.
    pub fn new(fault: Fault) -> Rule {
        Rule {
            fault,
            op: None,
            part_of_path: None,
            counts: 0..=u64::MAX,
            seen: AtomicU64::new(0),
        }
    }

    /// Only operations of this kind.
    pub fn op(mut self, op: Op) -> Rule {
        self.op = Some(op);
        self
    }

    /// Only operations on a path with this text in it; a rename has the path `to`.
    pub fn path(mut self, part: &str) -> Rule {
        self.part_of_path = Some(part.to_owned());
        self
    }

    /// Only the `n`-th of the operations that match otherwise, from 0.
    pub fn nth(mut self, n: u64) -> Rule {
        self.counts = n..=n;
        self
    }

    pub(super) fn matches(&self, op: Op, path: &Path) -> bool {
        let op_matches = self.op.is_none_or(|wanted| wanted == op);
        let path = path.to_string_lossy();
        let path_matches = self.part_of_path.as_ref().is_none_or(|p| path.contains(p));

        op_matches
            && path_matches
            && self
                .counts
                .contains(&self.seen.fetch_add(1, Ordering::Relaxed))
    }
}
