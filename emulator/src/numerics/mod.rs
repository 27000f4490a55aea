//! The arithmetic of instructions, per lane: pure functions of bits.
//!
//! The interpreter calls these in loops over the 32 lanes of a warp. They are small, inlined and do
//! not allocate, so that the compiler can vectorize the loops. If a function takes a rounding mode
//! or a type as a value, match on it outside the loop.
//!
//! | file | instructions |
//! |---|---|
//! | [`rounding`], [`double`] | f32 and f64 arithmetic, `.ftz`, `.sat` |
//! | [`half_precision`] | f16 and bf16 arithmetic, scalar and packed |
//! | [`compare`] | setp, min, max, copysign, testp |
//! | [`convert`] | cvt |
//! | [`approximate`] | ex2, lg2, sin, cos, tanh, rcp, rsqrt, sqrt, div with `.approx` |
//! | [`integer`], [`bits`] | the integer and logic instructions that Rust lacks |
//! | [`simd_video`] | vadd4, vabsdiff2 and the like |
//! | [`fragment`], [`tensor_core`], [`matrix_move`] | mma.sync, ldmatrix, stmatrix, movmatrix |
//! | [`warp_matrix`] | wmma |
//! | [`descriptor`], [`warpgroup`] | wgmma |
//!
//! [`exact`] and [`series`] are the basis of the others. Results that PTX specifies exactly are
//! bit-exact. Where PTX leaves a choice, the file's header documents it. Every function is
//! deterministic and gives the same bits on every machine.

pub(crate) mod approximate;
pub(crate) mod bits;
pub(crate) mod compare;
pub(crate) mod convert;
pub(crate) mod descriptor;
pub(crate) mod double;
pub(crate) mod exact;
pub(crate) mod fragment;
pub(crate) mod half_precision;
pub(crate) mod integer;
pub(crate) mod matrix_move;
pub(crate) mod rounding;
pub(crate) mod series;
pub(crate) mod simd_video;
pub(crate) mod tensor_core;
pub(crate) mod warp_matrix;
pub(crate) mod warpgroup;

pub use approximate::Approximation;

#[cfg(test)]
mod tests;
