//! Starting processes, and finding out which rank a process is.
//!
//! - `variables.rs`, `meeting.rs`, `environment.rs`: rank, world and meeting point from the
//!   variables of `meshgrad launch`, torchrun, srun and mpirun.
//! - `transport.rs`: joins through TCP or MPI.
//! - `processes.rs`: starts the ranks of one host, as `meshgrad launch` does.
//! - `children.rs`: waits for them and stops them.
//! - `ends.rs`: which ended first.
//! - `guard.rs`: stops them when the launcher is killed.
//! - `output.rs`: copies their output.

mod children;
mod ends;
mod environment;
mod guard;
mod meeting;
mod output;
mod processes;
mod transport;
mod variables;

pub use children::Ended;
pub use environment::Environment;
pub use processes::Launch;
pub use transport::Transport;
