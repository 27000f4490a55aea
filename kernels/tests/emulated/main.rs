//! The kernels, executed on the emulator with all its sanitizers, against f64 on the host.
//!
//! Each test runs under several orders of warps, CTAs and asynchronous copies ([`Device::all`]): a
//! race, a missing barrier or a read of memory that nobody wrote is a failure, and so are bank
//! conflicts and bytes that are moved twice where a kernel promises none.

mod barrier;
mod copies;
mod coverage;
mod device;
mod elementwise;
mod gemm;
mod indexing;
mod rms_norm;
