//! Kernels compiled by NVIDIA's compiler, run on the emulator and compared with independent
//! results.
//!
//! Each file of `emulator/conformance` is ordinary CUDA C++. nvcc compiles it to PTX for sm_80, or
//! the architecture that it names (see [`nvcc`]; if its wheels cannot be fetched, the tests print a message and check nothing). The
//! driver's functions run it (see [`gpu`]), and the results are compared with the same mathematics
//! on the CPU. They must be equal if the result is exactly defined (integers, correctly rounded
//! operations, sums that are exact in any order). Otherwise they must be within the error that the
//! CUDA programming guide states for the function.

mod atomics;
mod control;
mod conversions;
mod copies;
mod data;
#[path = "../driver/mod.rs"]
mod driver;
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

/// The kernels of `emulator/conformance/<name>.cu`. Without nvcc, prints a message and returns
/// `None`.
fn corpus(name: &str) -> Option<Gpu> {
    match nvcc::compile(name) {
        Some(ptx) => Some(Gpu::load(&ptx)),
        None => {
            eprintln!("skipped: nvcc is not available to compile {name}.cu");
            None
        }
    }
}
