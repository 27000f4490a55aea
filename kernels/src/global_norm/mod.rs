//! The global norm of a set of tensors, and the clip factor of gradients.
//!
//! Computed in f64, because squares of gradients may overflow f32. A first kernel, launched per
//! tensor, writes one partial sum of squares per chunk; a second kernel adds those of all tensors.
//! The order of additions depends on the extents alone.

mod clip;
mod squares;

pub use clip::{ClipScale, ClipScaleArguments};
pub use squares::{
    GlobalNorm, GlobalNormArguments, SumSquares, SumSquaresArguments, partial_count,
};
