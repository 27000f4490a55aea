//! NVIDIA's collective library, opened at run time: its functions, its configuration, its errors. Nothing
//! here is linked, so that a program without NCCL runs, and one build works with every version from 2.19.
//!
//! Facts are from `nccl.h` of 2.19 to 2.32 and the user guide; `scripts/prove/nccl-library` compares them with
//! the headers and the libraries of NVIDIA's wheels.

mod communicator;
mod config;
mod functions;
mod library;
mod status;
mod version;

pub use communicator::{Call, Communicator};
pub use library::Library;

/// What tests and reports need to call the functions without [`Communicator`].
#[doc(hidden)]
pub mod raw {
    pub use crate::config::Config;
    pub use crate::functions::{Functions, Handle, UniqueId};
    pub use crate::status::Status;
    pub use crate::version::Version;
}
