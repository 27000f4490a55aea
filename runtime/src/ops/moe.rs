//! Mixture-of-experts layers: choosing experts, sorting tokens by expert, moving rows to the
//! experts and back.
//!
//! Legend: N tokens, E experts, K of them for each token, H features, C = N K rows: as many as
//! there can be.
//!
//! How many tokens an expert gets is known on the device alone. So the sorted rows live in a buffer
//! of C rows, cut by offsets in a tensor: expert g owns the rows `offsets[g]..offsets[g + 1]`. A
//! rank that holds some of the experts uses fewer than C rows. Rows beyond the last offset mean
//! nothing and no op here reads them; they are zero.
//!
//! On the CPU an index that names no row is an error. A GPU counts it as absent: nothing is read
//! there, what would have come of it is zero, and the host is told when it next waits
//! ([`CudaError::IndexOutOfRange`](crate::CudaError::IndexOutOfRange)).

mod order;
mod router;
mod rows;

pub use order::{ExpertOrder, expert_counts, expert_order};
pub use router::{router_top_k, router_top_k_grad};
pub use rows::{
    permute_tokens, permute_tokens_grad, unpermute_tokens, unpermute_tokens_grad_input,
    unpermute_tokens_grad_weights,
};

use crate::Signature;

pub(super) static SIGNATURES: &[&Signature] = &[
    &router::ROUTER_TOP_K,
    &router::ROUTER_TOP_K_BIASED,
    &router::ROUTER_TOP_K_GRAD,
    &order::EXPERT_ORDER,
    &order::EXPERT_COUNTS,
    &rows::PERMUTE,
    &rows::PERMUTE_GRAD,
    &rows::UNPERMUTE,
    &rows::UNPERMUTE_GRAD_INPUT,
    &rows::UNPERMUTE_GRAD_WEIGHTS,
];

#[cfg(test)]
mod tests;
