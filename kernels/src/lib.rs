//! GPU kernels: a PTX macro-assembler in Rust and what is written with it. Text out; no driver, no
//! tensor.

pub mod assembler;
