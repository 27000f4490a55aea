//! Kernels that NVIDIA's compiler made, run by the emulator, against results known otherwise.
//!
//! Each file of `emulator/conformance` is CUDA C++ as its users write it. nvcc turns it into PTX
//! for sm_80 (see [`nvcc`]; where its wheels cannot be fetched, the tests say so and check
//! nothing), the driver's functions run it (see [`gpu`]), and what comes out is compared with the
//! same mathematics done plainly on the CPU: exactly, where the result is defined to the bit
//! (integers, correctly rounded operations, sums that are exact in any order); else within the
//! error that the CUDA programming guide states for the function.

mod atomics;
mod control;
mod conversions;
mod data;
#[path = "../driver/mod.rs"]
mod driver;
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
mod warps;

use gpu::Gpu;

/// The kernels of `emulator/conformance/<name>.cu`; `None`, with a message, without nvcc.
fn corpus(name: &str) -> Option<Gpu> {
    match nvcc::compile(name) {
        Some(ptx) => Some(Gpu::load(&ptx)),
        None => {
            eprintln!("skipped: {name}.cu cannot be compiled, since nvcc is not to be had here");
            None
        }
    }
}
