//! Queries and keys on their way into attention: the norm of each head, then its turn, in one pass.
//!
//! Legend as in [`crate::rope`]: B batch, T positions, N heads, D features of a head, H pairs; R = B
//! T N heads in all.
//!
//! ```text
//! inv_rms_r = 1 / sqrt(mean_d(x_rd^2) + eps)
//! y_r       = turned(x_r inv_rms_r w)
//! dz_r      = dy_r turned back
//! dx_rd     = inv_rms_r (dz_rd w_d - x_rd inv_rms_r^2 mean_d(dz_rd w_d x_rd))
//! dw_d      = sum_r dz_rd x_rd inv_rms_r
//! ```
//!
//! Apart, the norm and the turn each read and write all heads; together they move half of that, 2 R
//! D elements forward and 3 R D for dx, and round once. Heads stay in the registers of a few lanes
//! from the first load to the last store ([`crate::rope`] has the frame); heads that do not fit there
//! are looped over by a warp. dw takes two kernels, as the norm's does: blocks of heads are summed
//! apart, then in order, so that its bits depend on the extents alone.

mod forward;
mod grad_input;
mod grad_weight;

pub use forward::{NormRope, NormRopeArguments};
pub use grad_input::{NormRopeGradInput, NormRopeGradInputArguments};
pub use grad_weight::{NormRopeGradWeight, NormRopeGradWeightArguments};

use crate::assembler::{F32, Kernel, U32, Variable, warp_sum};

/// The mean over a head of what the lanes of its warp have summed; 0 for no features.
#[track_caller]
fn warp_mean<'k>(k: &'k Kernel, sum: Variable<'k, f32>, features: U32<'k>) -> F32<'k> {
    warp_sum(k, sum.get()) / features.max(1).to_f32()
}
