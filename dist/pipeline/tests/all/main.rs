//! All tests of the crate, in one process.

mod auto;
mod csv;
mod golden;
mod mutants;
mod random;
mod simulation;
mod svg;
mod sweep;
