//! Checks of ops: cases for every differentiable op, and the comparison of their results on a
//! device without f64 with those of the CPU in f64. `meshgrad check` and the gradient tests use
//! both.

pub mod cases;
mod compare;

pub use cases::Case;
pub use compare::{Closeness, compare};
