//! Launches of mixture-of-experts layers, except for the matrix products. Operands are contiguous.

mod order;
mod router;
mod rows;

pub(crate) use order::{Sort, expert_counts, expert_order, expert_places};
pub(crate) use router::{router_top_k, router_top_k_grad};
pub(crate) use rows::{permute_tokens, unpermute_tokens, unpermute_tokens_grad_weights};

/// The family's name in errors of kernels.
const FAMILY: &str = "moe";
