//! Starting processes, and finding out which rank a process is.
//!
//! - `variables.rs`, `meeting.rs`, `environment.rs`: rank, world and meeting point from the
//!   variables of `meshgrad launch`, torchrun, srun and mpirun.
//! - `processes.rs`: starts the ranks of one host, as `meshgrad launch` does.

mod environment;
mod meeting;
mod processes;
mod variables;

pub use environment::Environment;
pub use processes::{Ended, Launch, LaunchError};
pub use variables::EnvironmentError;
