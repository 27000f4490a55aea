//! Permuting token rows into expert order and back.
//!
//! Legend: N tokens, K slots per token, C rows of which the last few may be unused, H features. C is
//! N K for rows sorted by expert, but any number for places.
//!
//! ```text
//! permute       y_r    = [w_slot] x_token           slot = order_r, token = slot / K
//! unpermute     out_n  = sum_j [w_nj] y_r           r = row_of_slot_nj, in the order of j
//! grad weights  dw_nj  = sum_h dout_nh y_rh         r = row_of_slot_nj
//! ```
//!
//! Permute and unpermute are each other's gradients; the third is the gradient of unpermute with
//! respect to its weights. Computed in f32, rounded once, without atomics. A group of lanes owns a
//! row and moves it in 16-byte accesses, several in flight; rows that are not whole vectors are
//! moved element by element. Each row is read and written once. Values that a group reads again
//! (an index, the row of dout) come from the caches.
//!
//! A slot may have no row, and a row no slot. These count as zero. Out-of-range rows and slots count as
//! absent: they read nothing and are reported to the host.

mod grad_weights;
mod permute;
mod unpermute;

pub use grad_weights::{UnpermuteGradWeights, UnpermuteGradWeightsArguments};
pub use permute::{PermuteTokens, PermuteTokensArguments};
pub use unpermute::{UnpermuteTokens, UnpermuteTokensArguments};

use crate::dtype::Loaded;
use crate::lane_group::{Group, IN_FLIGHT, Tile};

/// `row_of_slot` of a slot without a row, and `order` of a row without a slot.
const ABSENT: u32 = u32::MAX;

/// The part of a kernel's name that marks weighted rows.
fn weighted_name(weighted: bool) -> &'static str {
    match weighted {
        true => "_weighted",
        false => "",
    }
}
