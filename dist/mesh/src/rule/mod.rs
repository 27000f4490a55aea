//! Sharding rules: which placements of its operands an op can compute on without communication,
//! and the placements of its results.
//!
//! Ops never communicate. Along one mesh axis an op has three strategies, all derived from its
//! signature:
//!
//! - **Shard a dim.** If every operand that has the dim shards it in the same way, so do the
//!   results. A result without the dim is a sum over it, so each rank holds `partial(sum)`.
//! - **Keep partial values.** If the op is linear in an operand, a partial sum of that operand
//!   gives partial sums of the results. `a b` is linear in `a` and in `b`, `a + b` in both together.
//! - **Replicate.** Every rank computes everything.
//!
//! For a linear layer `x[.. i], w[o i] -> y[.. o]` this gives data parallelism (`..` is sharded),
//! column parallelism (`o`) and row parallelism (`i`) without a table. Any other combination is an
//! error that names the redistributions that would help.
//!
//! [`ShardingRule::propagate`] combines all axes of a mesh.
//!
//! Arguments that hold a global position, such as the first class of a vocabulary shard, must
//! describe the rank's shard.

mod all_axes;
mod bound;
mod derived;
mod dim_args;
mod incompatible;
mod one_axis;
mod remedy;
mod reshape;
mod sharding_rule;
mod strategy;

pub use derived::DerivedSharding;
pub use incompatible::{Incompatible, Problem};
pub use remedy::{Change, Remedy};
pub use sharding_rule::ShardingRule;
