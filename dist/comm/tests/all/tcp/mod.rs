//! The transport between processes: the conformance suite with ranks as threads and as processes,
//! strangers, injected faults, and ranks that die.

mod conformance;
mod failures;
mod faults;
mod processes;
mod strangers;
mod threads;
pub(crate) mod worlds;
