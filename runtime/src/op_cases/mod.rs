//! A table of cases of every op: operands, and the call. The tests of kernels, sharding rules and
//! gradients and the benches run the same cases, each with its own [`Source`] of operands and its
//! own extents.
//!
//! A file has the cases of a family: a function of a source and of extents. It fails when memory
//! runs out, or when an op refuses the extents. [`small`] has all families at small, uneven extents.
//! The table knows nothing of expected results.

mod attention;
mod copies;
mod elementwise;
mod experts;
mod indexing;
mod losses;
mod op_case;
mod optimizer;
mod positions;
mod products;
mod random;
mod rows;
mod small;

#[cfg(test)]
mod tests;

pub use attention::{attention, attention_to_ranges, cached_attention, visible_keys};
pub use copies::{concat, copies, views};
pub use elementwise::{binary, unary, with_constants};
pub use experts::{expert_offsets, grouped, permutation, routing};
pub use indexing::{embedding, gathering, selection};
pub use losses::losses;
pub use op_case::{CaseOperands, OpCase, Source, Written};
pub use optimizer::{adamw, gradient_norm};
pub use positions::positions;
pub use products::{linear, matmul};
pub use random::random;
pub use rows::{arg_reductions, norms, ordered, reductions, softmaxes, swiglu, top_k};
pub use small::small;
