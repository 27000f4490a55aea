//! Rules that select operations and inject faults into them.

use std::fmt;
use std::io;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

/// The kinds of operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[allow(missing_docs)] // named after the operations
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
    /// Whether it changes the disk or syncs it.
    pub fn is_change(self) -> bool {
        !matches!(
            self,
            Op::Open | Op::OpenToWrite | Op::List | Op::Metadata | Op::Lock | Op::Size | Op::Read
        )
    }
}

/// What happens to an operation.
#[derive(Clone)]
pub enum Fault {
    /// It does nothing and returns an error of this kind. After a failed sync of a file, later
    /// syncs of it succeed and do nothing, as on Linux.
    Fail(io::ErrorKind),
    /// It does nothing and returns the system's error of this number.
    FailWith(i32),
    /// A read or a write transfers one byte; other operations are unaffected.
    Short,
    /// It does nothing and succeeds. Operations that return a value are unaffected.
    Skip,
    /// It and all later operations fail, as if the process had stopped.
    Stop,
    /// Calls this function, then runs the operation.
    Before(Arc<dyn Fn() + Send + Sync>),
    /// Runs the operation, then calls this function.
    After(Arc<dyn Fn() + Send + Sync>),
}

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Fail(kind) => write!(f, "Fail({kind:?})"),
            Fault::FailWith(number) => write!(f, "FailWith({number})"),
            Fault::Short => f.write_str("Short"),
            Fault::Skip => f.write_str("Skip"),
            Fault::Stop => f.write_str("Stop"),
            Fault::Before(_) => f.write_str("Before"),
            Fault::After(_) => f.write_str("After"),
        }
    }
}

/// Selects the operations into which a fault is injected: all, unless narrowed.
#[derive(Debug)]
pub struct Rule {
    pub(crate) fault: Fault,
    op: Option<Op>,
    part_of_path: Option<String>,
    counts: RangeInclusive<u64>,
    seen: AtomicU64,
}

impl Rule {
    /// Applies to every operation.
    pub fn new(fault: Fault) -> Rule {
        Rule { fault, op: None, part_of_path: None, counts: 0..=u64::MAX, seen: AtomicU64::new(0) }
    }

    /// Applies only to operations of this kind.
    pub fn op(mut self, op: Op) -> Rule {
        self.op = Some(op);
        self
    }

    /// Applies only to paths that contain this text; a rename is matched by its path `to`.
    pub fn path(mut self, part: &str) -> Rule {
        self.part_of_path = Some(part.to_owned());
        self
    }

    /// Applies only to the `n`-th of the matching operations, from 0.
    pub fn nth(mut self, n: u64) -> Rule {
        self.counts = n..=n;
        self
    }

    pub(crate) fn matches(&self, op: Op, path: &Path) -> bool {
        let op_matches = self.op.is_none_or(|expected| expected == op);
        let path = path.to_string_lossy();
        let path_matches = self.part_of_path.as_ref().is_none_or(|p| path.contains(p));

        op_matches
            && path_matches
            && self.counts.contains(&self.seen.fetch_add(1, Ordering::Relaxed))
    }
}
