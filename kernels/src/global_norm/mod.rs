//! The norm of all elements of some tensors, and how far gradients are clipped by it.
//!
//! All is computed in f64: the squares of gradients may be no f32. A first kernel, launched for each
//! tensor, gives a partial sum of squares for each of its chunks; a second one adds those of all
//! tensors. Which elements are added to which follows from the tensors' extents alone.

mod clip;
mod squares;

pub use clip::{ClipScale, ClipScaleArguments};
pub use squares::{
    GlobalNorm, GlobalNormArguments, SumSquares, SumSquaresArguments, partial_count,
};
