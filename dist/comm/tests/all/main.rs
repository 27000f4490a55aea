//! All tests of the crate that may share a process. `tests/gpus` runs on GPU machines by itself, and
//! `tests/mpi.rs` under mpirun.

mod control;
mod injection;
mod launch;
mod local;
#[path = "../../../../opcheck/tests/sharding/parts.rs"]
mod parts;
mod random;
mod redistribution;
mod ring;
mod ring_memory;
mod rows;
mod simulated;
mod tcp;
mod traces;
