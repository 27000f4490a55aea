//! Communicators: collectives on tensors between the ranks of a group.
//!
//! - [`Communicator`] is what a transport implements; [`Collectives`] is what callers use.
//! - [`Local`] is the transport between threads of one process.
//! - [`Plan`] moves nothing and logs what each rank communicates; [`check_logs`] finds mismatches
//!   and deadlocks.
//! - [`Host`] is the transport between processes over TCP; `Mpi`, with the feature `mpi`, is the
//!   one over MPI.
//! - [`Redistributor`] changes the sharding of tensors.
//! - [`Rank`] is what ranks of all transports have in common; [`launch`] starts processes and finds
//!   out which rank a process is.
//! - [`conformance`] has the checks that every transport must pass; [`speed`] measures it.
//! - [`TracedRank`] counts and records what a rank communicates, and [`chrome_trace`] draws it.
//! - [`Ticket`] identifies a collective on all members: its number, fingerprint and source line.
//!
//! A collective is started by every member, in the same order on each. It returns a
//! [`Pending`](meshgrad_runtime::Pending) immediately, so a rank can have several in flight.
//!
//! # Sums
//! A reduction combines elements of the same index in a fixed tree over indices in the group: a
//! range of n ranks is split after the largest power of two below n, each part is reduced, then
//! the two are combined. So 5 ranks give `((x0 + x1) + (x2 + x3)) + x4`. The result has the same
//! bits on every member and in every run. f64 is summed in f64; f32, bf16 and f16 are summed in
//! f32 and rounded once. Integers wrap. A mean divides the sum by the number of ranks before
//! rounding.

mod by_dtype;
mod call;
mod clock;
mod collectives;
mod communicator;
pub mod conformance;
mod contribution;
mod error;
mod first_failure;
mod fuse;
mod hang;
mod host;
pub mod launch;
mod local;
mod members;
mod plan;
mod rank;
mod redistribute;
mod reduce;
mod shares;
mod source_line;
pub mod speed;
mod ticket;
mod traces;
mod uniform;
mod verdict;

pub use clock::Clock;
pub use collectives::Collectives;
pub use communicator::{Communicator, Operands, Output};
pub use error::{CallSite, CommError, Verdict, Wait};
pub use fuse::Fused;
#[cfg(feature = "mpi")]
pub use host::Mpi;
pub use host::{Host, HostCommunicator, HostConnector, HostExchange, Secret, World, free_port};
pub use local::{Local, LocalCommunicator, LocalConnector, LocalRank};
pub use meshgrad_error::{Error, FailedRank, Kind, Result};
pub use plan::{
    Checked, CommEvent, CommLog, LoggedCall, Plan, PlanCommunicator, PlanRank, check_logs,
};
pub use rank::Rank;
pub use redistribute::{Redistributor, Transferred};
pub use shares::GroupConnector;
pub use source_line::SourceLine;
pub use ticket::{Collective, Counters, Counts, Fingerprint, Peer, Reduction, Request, Ticket};
pub use traces::{CollectiveSpan, CommStats, RankTrace, Recording, Span, TracedRank, chrome_trace};
pub use uniform::Uniform;

/// Compiles and runs the examples of the guide.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/communication.md")]
struct Guide;
