//! A CPU implementation of the CUDA driver that runs PTX, for machines without a GPU.

mod driver;
pub mod launch;
mod machine;
pub mod memory;
mod numerics;
mod options;
pub mod program;
mod ptx;
mod report;
mod simd;

pub use machine::counters::{Counters, Counts};
pub use numerics::Approximation;
pub use options::{AsyncCopies, Options, OptionsError, Output, Print};
pub use ptx::PtxError;
pub use report::{Finding, FindingKind, Site, Thread};
