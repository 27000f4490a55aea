//! The interface of communication: collectives on tensors between the ranks of a group.
//!
//! - [`Communicator`] is what a transport implements; [`Collectives`] is what callers use.
//! - [`Rank`] is what ranks of all transports have in common, and [`GroupConnector`] connects their
//!   groups. [`ControlChannel`] carries messages beside tensors.
//! - [`redistribute`](redistribute()) is the only op that changes a sharding, and the
//!   [`Redistributor`] of a rank performs it.
//! - [`registry`] creates and shares communicators.
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

mod call;
mod clock;
mod collectives;
mod communicator;
mod control;
mod error;
mod fuse;
mod rank;
mod redistribute;
pub mod registry;
mod source_line;
mod ticket;
mod uniform;

pub use clock::Clock;
pub use collectives::Collectives;
pub use communicator::{Communicator, Operands, Output};
pub use control::ControlChannel;
pub use error::{CallSite, CommError, Verdict, Wait};
pub use fuse::Fused;
pub use meshgrad_error::{Error, FailedRank, Kind, Result};
pub use rank::{GroupConnector, Rank};
pub use redistribute::ops::{
    Redistribute, check_replicas, communicator, current_redistribution, full_concat, full_tensor,
    in_redistribution, redistribute, redistribute_like, start_redistribute, with_placements,
    with_redistribution,
};
pub use redistribute::{Redistributor, Transferred};
pub use source_line::SourceLine;
pub use ticket::{Collective, Counters, Counts, Fingerprint, Peer, Reduction, Request, Ticket};
pub use uniform::Uniform;

/// Compiles and runs the examples of the guide.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/groups.md")]
struct Guide;
