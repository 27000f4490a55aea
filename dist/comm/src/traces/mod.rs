//! What ranks communicate and when, on any transport.
//!
//! A [`TracedRank`] counts the collectives of a rank, their bytes, and the time in which the rank
//! waited for them. While it records, it also keeps when each of them, and each op of its CPU
//! device, ran. [`chrome_trace`] draws that. Nothing here knows a transport.
//!
//! - `mod.rs`: what is counted and recorded.
//! - `tracer.rs`: counts and records.
//! - `rank.rs`: a rank whose communicators report to it.
//! - `chrome.rs`: the file format.

mod chrome;
mod rank;
mod tracer;

use std::ops::Sub;
use std::time::Duration;

use meshgrad_collectives::Ticket;
use meshgrad_mesh::Group;
use meshgrad_runtime::OpSpan;

pub use chrome::chrome_trace;
pub use rank::TracedRank;
pub use tracer::Recording;

/// The communication of a rank since it was created. The difference of two readings is that of the
/// time between them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommStats {
    /// Collectives that have started, including sends, receives, and those of groups of one rank.
    pub collectives: u64,
    /// The sum of their bytes: per call those of this rank's input or of its output, whichever is
    /// larger. This is the size that [`LoggedCall::bytes`](crate::LoggedCall::bytes) has and that
    /// nccl-tests reports. It does not depend on the algorithm, so it is not what crosses a wire.
    pub bytes: u64,
    /// The time that threads of this rank spent waiting for collectives, on its
    /// [clock](crate::Rank::clock), summed over threads: in
    /// [`Pending::wait`](meshgrad_runtime::Pending::wait), with no computation of the thread to
    /// hide it. A call that itself waits for other ranks, as in strict mode, is not counted. On a
    /// GPU only the host's waiting is, not that of streams.
    pub exposed: Duration,
}

impl Sub for CommStats {
    type Output = CommStats;

    /// Of a later reading and an earlier one.
    fn sub(self, earlier: CommStats) -> CommStats {
        CommStats {
            collectives: self.collectives - earlier.collectives,
            bytes: self.bytes - earlier.bytes,
            exposed: self.exposed - earlier.exposed,
        }
    }
}

/// A range of time on a rank's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Its start.
    pub start: Duration,
    /// Its end.
    pub end: Duration,
}

impl Span {
    /// Its length.
    pub fn duration(&self) -> Duration {
        self.end - self.start
    }
}

/// One rank's part in a collective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectiveSpan {
    /// The group of its communicator.
    pub group: Group,
    /// Its kind, counts and source line, and its number among the traced collectives of the group,
    /// which is that in errors if all of them are traced.
    pub ticket: Ticket,
    /// The bytes of this rank's input or output, whichever is larger.
    pub bytes: u64,
    /// The call that started it.
    pub call: Span,
    /// The wait for it, if it was waited for while the rank recorded.
    pub wait: Option<Span>,
}

impl CollectiveSpan {
    /// From its call to the end of the wait for it, which may be later than its completion; without
    /// a wait, its call.
    pub fn span(&self) -> Span {
        Span { start: self.call.start, end: self.wait.unwrap_or(self.call).end }
    }
}

/// What a rank did while it recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankTrace {
    /// The rank.
    pub rank: usize,
    /// The collectives that it started or waited for, in the order of their calls.
    pub collectives: Vec<CollectiveSpan>,
    /// The ops on its CPU device, in the order in which they ended.
    pub ops: Vec<OpSpan>,
}
