//! What `TracedRank` counts and records: the same on all transports, and in simulated time what the
//! links predict.

mod chrome;
mod exposed;
mod program;
mod stats;
