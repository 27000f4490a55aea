//! Root-mean-square normalisation (Zhang & Sennrich 2019) and its gradients.
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
//! All is computed in f32 and rounded once. Forward and dx need a sum over a row before its first
//! element can be written; a row therefore stays in registers between the two ([`crate::row`]), and
//! each moves the least bytes possible: 2 R D elements forward, 3 R D for dx.
//!
//! dw is a sum over all rows. Atomics would make its bits depend on the order in which CTAs finish,
//! so it takes two kernels: each CTA sums a block of rows into its own line of a workspace, and a
//! second kernel adds the lines in order. The bits depend on R and D alone.

mod columns;
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

use crate::assembler::{F32, GlobalAddress, Kernel, Launch, U32, Variable};
use crate::dtype::Dtype;
use crate::row::RowTile;

/// Threads of a CTA that loops over one row.
const LOOP_THREADS: u32 = 256;

/// How a kernel walks over its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Form {
    /// A row in registers.
    Tile(RowTile),
    /// A row of any length and alignment: the CTA loops over it, twice.
    Loop(Dtype),
}

impl Form {
    /// `aligned`: whether all matrices and vectors begin at multiples of 16 bytes.
    fn new(dtype: Dtype, features: usize, aligned: bool) -> Form {
        let tile = RowTile::new(dtype, features).filter(|_| aligned);
        tile.map_or(Form::Loop(dtype), Form::Tile)
    }

    fn threads(self) -> u32 {
        match self {
            Form::Tile(tile) => tile.threads(),
            Form::Loop(_) => LOOP_THREADS,
        }
    }

    fn launch(self, rows: u64) -> Option<Launch> {
        match self {
            Form::Tile(tile) => tile.launch(rows),
            Form::Loop(_) => {
                let ctas = u32::try_from(rows).unwrap_or(u32::MAX);
                Launch::new([ctas, 1, 1], LOOP_THREADS)
            }
        }
    }

    fn name(self) -> String {
        match self {
            Form::Tile(tile) => tile.name(),
            Form::Loop(dtype) => format!("{}_loop", dtype.name()),
        }
    }
}

/// The row of this CTA in a matrix of `features` columns.
#[track_caller]
fn row_of_cta<'k>(
    k: &'k Kernel,
    dtype: Dtype,
    matrix: GlobalAddress<'k>,
    features: U32<'k>,
) -> GlobalAddress<'k> {
    let elements = k.cta().mul_wide(features);
    matrix.moved(elements * u64::from(dtype.size()))
}

/// An element of a row or vector.
#[track_caller]
fn element<'k>(dtype: Dtype, row: GlobalAddress<'k>, index: U32<'k>) -> GlobalAddress<'k> {
    row.moved(index.mul_wide(dtype.size()))
}

/// The mean of what the threads of the CTA have summed; 0 for no features.
#[track_caller]
fn mean<'k>(k: &'k Kernel, sum: Variable<'k, f32>, features: U32<'k>) -> F32<'k> {
    crate::assembler::block_sum(k, sum.get()) / features.max(1).to_f32()
}
