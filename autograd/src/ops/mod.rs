//! Differentiable ops: each computes with [`meshgrad_runtime::ops`] and says what its backward keeps.

mod attention;
mod elementwise;
mod matmul;
mod reduce;
mod shape;

pub use attention::*;
pub use elementwise::*;
pub use matmul::*;
pub use reduce::*;
pub use shape::*;
