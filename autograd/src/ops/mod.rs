//! Differentiable ops. Each computes with [`meshgrad_runtime::ops`] and declares what its backward
//! saves.

mod attention;
mod cross_entropy;
mod dropout;
mod elementwise;
mod embedding;
mod grouped_matmul;
mod indexing;
mod matmul;
mod moe;
mod norm;
mod reduce;
mod rope;
mod shape;
mod softmax;
mod swiglu;

pub use attention::*;
pub use cross_entropy::*;
pub use dropout::*;
pub use elementwise::*;
pub use embedding::*;
pub use grouped_matmul::*;
pub use indexing::*;
pub use matmul::*;
pub use moe::*;
pub use norm::*;
pub use reduce::*;
pub use rope::*;
pub use shape::*;
pub use softmax::*;
pub use swiglu::*;
