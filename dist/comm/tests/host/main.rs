//! The transport between processes: the conformance suite with ranks as threads and as processes,
//! strangers, and ranks that die.

mod conformance;
mod failures;
mod processes;
mod strangers;
mod worlds;
