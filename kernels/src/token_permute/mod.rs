//! Rows of tokens on their way to experts and back.
//!
//! Legend: N tokens, K slots of each, C = N K rows of which the last few may be unused, H features.
//!
//! ```text
//! permute       y_r    = [w_slot] x_token           slot = order_r, token = slot / K
//! collect       out_n  = sum_j [w_nj] y_r           r = place_nj, in the order of j
//! dots          dw_nj  = sum_h dout_nh y_rh         r = place_nj
//! ```
//!
//! The first two are each other's gradients; the third is the gradient of the second by its
//! weights. All is computed in f32 and rounded once; nothing is added by atomics. A row belongs to
//! a group of lanes, which moves it in 16-byte accesses, several of them in flight; rows that do
//! not consist of these go element by element. Each moves the rows that it reads and writes once:
//! what a group reads again (an index, the token of the dots) the caches hold.
//!
//! Places and slots out of range count as absent: nothing is read there, and the host is told.

mod grad_weights;
mod permute;
mod unpermute;

pub use grad_weights::{UnpermuteGradWeights, UnpermuteGradWeightsArguments};
pub use permute::{PermuteTokens, PermuteTokensArguments};
pub use unpermute::{UnpermuteTokens, UnpermuteTokensArguments};

use crate::dtype::Loaded;
use crate::lane_group::{Group, IN_FLIGHT, Tile};

/// The place of a slot that has none.
const ABSENT: u32 = u32::MAX;

/// What a kernel's name says of whether there are weights.
fn weighted_name(weighted: bool) -> &'static str {
    match weighted {
        true => "_weighted",
        false => "",
    }
}
