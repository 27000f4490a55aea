//! A CPU implementation of the CUDA driver that runs PTX, for machines without a GPU.

#[allow(dead_code)]
pub mod memory;
#[allow(dead_code)]
mod numerics;
#[allow(dead_code)]
mod ptx;
