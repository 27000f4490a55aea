//! Expressions over tensors: permuted, sliced, concatenated and reshaped.
//!
//! Nearly every operation only selects elements. Selections compose, so a part of any expression
//! becomes a list of strided copies from the tensors at its leaves to their final destination,
//! without intermediate tensors ([`Graph::copies`]). A rank reads only the bytes that it keeps.
//!
//! ```
//! use meshgrad_ckpt::Dtype;
//! use meshgrad_ckpt::graph::Graph;
//!
//! // The query, key and value projections of a layer as one matrix.
//! let mut graph = Graph::new();
//! let q = graph.source("q_proj", Dtype::BF16, &[4096, 2048])?;
//! let k = graph.source("k_proj", Dtype::BF16, &[512, 2048])?;
//! let v = graph.source("v_proj", Dtype::BF16, &[512, 2048])?;
//! let qkv = graph.concat(&[q, k, v], 0)?;
//! assert_eq!(graph.shape(qkv), [5120, 2048]);
//!
//! // A rank with the last 640 rows needs part of k and all of v.
//! let copies = graph.copies(qkv, &[4480..5120, 0..2048])?;
//! let reads: Vec<_> = copies.iter().map(|it| (graph.leaf_name(it.from), it.elements())).collect();
//! assert_eq!(reads, [("k_proj", 128 * 2048), ("v_proj", 512 * 2048)]);
//! # Ok::<(), meshgrad_ckpt::Error>(())
//! ```

mod compute;
mod computing;
mod demand;
mod element_copy;
mod expr_set;
mod expression;
mod ids;
mod import;
mod op;
mod regions;
mod scalar;
#[cfg(test)]
mod tests;
mod trace;
mod unrounded;

use smallvec::SmallVec;

pub use compute::{Computation, Compute, Operand, TensorType};
pub use element_copy::{ElementCopy, Leaf, Loop};
pub(crate) use expr_set::ExprSet;
pub use expression::Graph;
pub(crate) use expression::span_of_view;
pub use ids::{Expr, SourceId};
pub(crate) use scalar::widens;
pub use scalar::{ElementOp, Real, Scalar};

/// A short list, such as dims or loops, that nearly always needs no allocation.
pub(crate) type Short<T> = SmallVec<[T; 4]>;
