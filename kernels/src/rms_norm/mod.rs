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
//! dw is a sum over all rows ([`crate::column_sums`]).

mod forward;
mod grad_input;
mod residual;

pub use forward::{RmsNorm, RmsNormArguments};
pub use grad_input::{RmsNormGradInput, RmsNormGradInputArguments};
pub use residual::{
    AddRmsNorm, AddRmsNormArguments, AddRmsNormGradInput, AddRmsNormGradInputArguments,
};

use crate::assembler::{F32, Variable};
use crate::row::Row;

/// 1 / sqrt(mean(x^2) + eps), from the sum of a thread's squares.
#[track_caller]
pub(crate) fn inv_rms<'k>(row: &Row<'k>, squares: Variable<'k, f32>, eps: F32<'k>) -> F32<'k> {
    (row.mean(squares.get()) + eps).sqrt().reciprocal()
}

/// inv_rms^3 mean(dy w x), from a thread's part of the sum: dx has this times -x.
#[track_caller]
pub(crate) fn along_x<'k>(row: &Row<'k>, dot: Variable<'k, f32>, inv_rms: F32<'k>) -> F32<'k> {
    row.mean(dot.get()) * inv_rms * inv_rms * inv_rms
}
