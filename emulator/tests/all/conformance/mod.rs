//! Kernels compiled by NVIDIA's compiler, run on the emulator and compared with independent
//! results.
//!
//! Each file of `emulator/conformance` is ordinary CUDA C++. nvcc compiled it to PTX for sm_80, or
//! the architecture that it names (see [`nvcc`]). The driver's functions run it (see [`gpu`]), and
//! the results are compared with the same mathematics on the CPU. They must be equal if the result
//! is exactly defined (integers, correctly rounded operations, sums that are exact in any order).
//! Otherwise they must be within the error that the CUDA programming guide states for the function.

mod atomics;
mod control;
mod conversions;
mod copies;
mod data;
mod driver_functions;
mod elementwise;
mod gpu;
mod halves;
mod integers;
mod mathematics;
mod nvcc;
mod products;
mod random;
mod reductions;
mod rounding;
mod storage;
mod warpgroups;
mod warps;

use gpu::Gpu;

/// The kernels of `emulator/conformance/<name>.cu`.
fn corpus(name: &str) -> Gpu {
    Gpu::load(&nvcc::ptx(name))
}
