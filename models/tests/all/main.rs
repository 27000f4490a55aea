//! All tests of the crate that may share a process. `tests/loading` runs on GPU machines by itself.

mod experts;
mod laws;
mod regions;
mod sharded;
mod small;
mod stored;
