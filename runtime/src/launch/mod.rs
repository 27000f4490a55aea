//! Launches of GPU kernels, one file per family of ops, like the CPU kernels. A launch chooses the
//! kernels, the number of CTAs, and the arguments.

pub(crate) mod attention;
pub(crate) mod column_sums;
pub(crate) mod copies;
pub(crate) mod cross_entropy;
pub(crate) mod cumsum;
pub(crate) mod elementwise;
pub(crate) mod global_norm;
pub(crate) mod grouped_matmul;
pub(crate) mod index_sums;
pub(crate) mod indexing;
mod launcher;
pub(crate) mod matmul;
pub(crate) mod moe;
pub(crate) mod norm;
pub(crate) mod norm_rope;
pub(crate) mod optimizer;
mod plan;
pub(crate) mod random;
#[cfg(test)]
pub(crate) mod recorded;
pub(crate) mod reduce;
pub(crate) mod rope;
pub(crate) mod row_function;
pub(crate) mod softmax;
pub(crate) mod sort;
pub(crate) mod swiglu;
pub(crate) mod symbol;
pub(crate) mod top_k;
pub(crate) mod tree_reduce;

pub use launcher::Launcher;
pub(crate) use plan::{MAX_EXTENT, Operand, Plan, PlanError, Rows, aligned, extent, float};
