//! Pipeline schedules as pure values: generated, proven, simulated and drawn.
//!
//! Nothing here computes, communicates or knows which rank it runs on. The lists of all ranks are
//! computed in one process.
//!
//! - [`Named`]: the schedules of the literature; [`Schedule`]: the computations of every rank, also
//!   from torch's CSV format.
//! - [`Schedule::lower`] inserts communication: a [`Program`], which cannot deadlock.

mod action;
mod arrived;
mod check;
mod costs;
mod csv;
mod done;
mod error;
mod lower;
mod name;
mod named;
mod parameters;
mod placement;
mod program;
mod schedule;
mod simulation;
mod total_order;

pub use action::{Action, Compute, Message, MessageKind, Op};
pub use costs::Costs;
pub use error::{Error, MAX_PAIRS, Result, Wait};
pub use lower::Lowering;
pub use name::Named;
pub use placement::{Placement, Shape};
pub use program::Program;
pub use schedule::Schedule;
pub use simulation::{Peak, Simulation, Span};
