//! Plans of what mixture-of-experts layers do beside products, and their launches. Operands are
//! contiguous.

mod order;
mod router;
mod rows;

pub(crate) use order::{Sort, expert_counts, expert_order};
pub(crate) use router::{router_top_k, router_top_k_grad};
pub(crate) use rows::{collect_tokens, permute_tokens, token_dots};

/// What kernels call the family in errors.
const FAMILY: &str = "moe";
