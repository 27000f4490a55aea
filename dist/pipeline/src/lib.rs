//! Pipeline schedules as pure values: generated, proven, simulated and drawn.
//!
//! Nothing here computes, communicates or knows which rank it runs on. The lists of all ranks are
//! computed in one process.
//!
//! - [`Named`]: the schedules of the literature; [`Schedule`]: the computations of every rank, also
//!   from torch's CSV format.
//! - [`Schedule::lower`] inserts communication: a [`Program`], which cannot deadlock.
//! - [`Program::simulate`]: times, idle share and memory peaks for given [`Costs`];
//!   [`Program::svg`] draws them.
//! - [`Auto`]: the fastest schedule that a search finds for given costs and memory.

mod action;
mod arrived;
mod auto;
mod check;
mod costs;
mod csv;
mod deadlock;
mod done;
mod lower;
mod name;
mod named;
mod parameters;
mod placement;
mod program;
mod schedule;
mod simulation;
mod svg;
mod total_order;

pub use action::{Action, Compute, Message, MessageKind, Op};
pub use auto::{Auto, MemoryCap};
pub use costs::Costs;
pub use lower::Lowering;
pub use meshgrad_error::{Error, Kind, Result};
pub use name::Named;
pub use placement::{MAX_PAIRS, MAX_STAGES, Placement, Shape};
pub use program::Program;
pub use schedule::Schedule;
pub use simulation::{Peak, Simulation, Span};

/// Compiles and runs the examples of the guide.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/pipeline.md")]
struct Guide;
