//! Checking ops: a table of cases for every differentiable op, and the comparison of a device
//! without f64 with the CPU in f64. `meshgrad check` and the gradient tests run it.

pub mod cases;
mod compare;

pub use cases::Case;
pub use compare::{Closeness, Compared, Difference, Error, Result, compare};
