//! Root-mean-square normalization (Zhang & Sennrich 2019) and its gradients.
//!
//! Legend: R rows, D features.
//!
//! ```text
//! inv_rms_r = 1 / sqrt(mean_d(x_rd^2) + eps)
//! y_rd      = x_rd inv_rms_r w_d
//! dx_rd     = inv_rms_r (dy_rd w_d - x_rd inv_rms_r^2 mean_d(dy_rd w_d x_rd))
//! dw_d      = sum_r dy_rd x_rd inv_rms_r
//! ```
//!
//! Computed in f32, rounded once. Forward and dx need a sum over the row before the first store, so
//! a row stays in registers in between if it fits ([`crate::row`]). A kernel then moves the
//! minimum: 2 R D elements forward, 3 R D for dx. All other rows are read again, in a loop.
//!
//! dw is a sum over all rows. With atomics its bits would depend on the order in which CTAs finish,
//! so it takes two kernels: each CTA sums a block of rows into its own row of a workspace, and a
//! second kernel adds these rows in order. The bits depend on R and D alone.

mod forward;
mod grad_input;
mod grad_weight;
mod residual;

pub use forward::{RmsNorm, RmsNormArguments};
pub use grad_input::{RmsNormGradInput, RmsNormGradInputArguments};
pub use grad_weight::{
    RmsNormGradWeight, RmsNormGradWeightArguments, SumPartials, SumPartialsArguments,
    rows_per_partial,
};
pub use residual::{
    AddRmsNorm, AddRmsNormArguments, AddRmsNormGradInput, AddRmsNormGradInputArguments,
};

use crate::assembler::{F32, Kernel, U32, Variable, block_sum};

/// The mean over all features, given each thread's partial sum; 0 if there are no features.
#[track_caller]
fn mean<'k>(k: &'k Kernel, sum: Variable<'k, f32>, features: U32<'k>) -> F32<'k> {
    block_sum(k, sum.get()) / features.max(1).to_f32()
}
