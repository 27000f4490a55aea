//! All tests of the crate, in one process.

mod laws;
mod local;
mod modules;
mod sharded;
mod torch;
