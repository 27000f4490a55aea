//! Mixture-of-experts layers: routing tokens, sorting them by expert, permuting rows to the experts
//! and back.
//!
//! Legend: N tokens, E experts, K experts per token, H features, C capacity in rows: N K when sorted.
//!
//! Only the device knows how many tokens an expert gets. The sorted rows are therefore in a buffer
//! of C rows, divided by a tensor of offsets: expert g has the rows `offsets[g]..offsets[g + 1]`. A
//! rank with a subset of the experts uses fewer than C rows. Rows after the last offset are
//! unspecified, and no op here reads them.
//!
//! On the CPU an index out of range is an error. A GPU skips it, so that the result is zero, and
//! reports [`IndexOutOfRange`](crate::IndexOutOfRange) at the next synchronization.

mod order;
mod router;
mod rows;

pub use order::{ExpertOrder, ExpertPlaces, expert_counts, expert_order, expert_places};
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
    &order::EXPERT_PLACES,
    &order::EXPERT_COUNTS,
    &rows::PERMUTE,
    &rows::PERMUTE_GRAD,
    &rows::UNPERMUTE,
    &rows::UNPERMUTE_GRAD_INPUT,
    &rows::UNPERMUTE_GRAD_WEIGHTS,
];

#[cfg(test)]
mod tests;
