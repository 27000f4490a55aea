//! The tests of the crate that run on the CPU and on a GPU: the emulator, or the machine's own if
//! `MESHGRAD_TEST_GPU=cuda`. `scripts/gpu-pack` takes this program to machines with a GPU.

#[path = "../devices/mod.rs"]
mod devices;
mod failed_kernel;
mod gpu_only;
mod machines;
mod ops;
mod pinned;
mod processes;
