//! QK-norm fused with RoPE: the RMS norm of each query or key head, then its rotation, in one pass.
//!
//! Legend as in [`crate::rope`]: B batch, T positions, N heads, D features per head, H rotated
//! pairs; R = B T N heads in total.
//!
//! ```text
//! inv_rms_r = 1 / sqrt(mean_d(x_rd^2) + eps)
//! y_r       = rotate(x_r inv_rms_r w)
//! dz_r      = inverse_rotate(dy_r)
//! dx_rd     = inv_rms_r (dz_rd w_d - x_rd inv_rms_r^2 mean_d(dz_rd w_d x_rd))
//! dw_d      = sum_r dz_rd x_rd inv_rms_r
//! ```
//!
//! Separate kernels would each read and write all heads. Fused, they move half of that, 2 R D
//! elements forward and 3 R D for dx, and round once. A head stays in the registers of a few lanes
//! from the first load to the last store, as in [`crate::rope`]. A warp loops over each head that
//! is too long, or not of whole aligned vectors. dw takes two kernels, as in the plain norm: the
//! first sums blocks of heads, the second adds these sums in order. Its bits depend on the extents
//! alone.

mod forward;
mod grad_input;
mod grad_weight;

pub use forward::{NormRope, NormRopeArguments};
pub use grad_input::{NormRopeGradInput, NormRopeGradInputArguments};
pub use grad_weight::{NormRopeGradWeight, NormRopeGradWeightArguments};
