//! Softmax and its logarithm along rows, and their gradients from the result.
//!
//! Legend: R rows, D features; m is the largest element of a row.
//!
//! ```text
//! softmax       y_rd  = e^(x_rd - m_r) / sum_d e^(x_rd - m_r)
//! its gradient  dx_rd = y_rd (dy_rd - sum_d y_rd dy_rd)
//! logarithm     y_rd  = x_rd - m_r - ln(sum_d e^(x_rd - m_r))
//! its gradient  dx_rd = dy_rd - e^y_rd sum_d dy_rd
//! ```
//!
//! The computation is in f32 and rounded once. A row stays in registers between its sums and its
//! result, so each kernel moves the minimum number of bytes: 2 R D elements forward, 3 R D for a
//! gradient. A row that is too long, or not of whole aligned vectors, is read twice. The forward
//! pass then computes maximum and sum in one pass, rescaling the sum whenever the maximum grows
//! (Milakov & Gimelshein 2018).
//!
//! As on the CPU, a row gives NaN if all elements are minus infinity, or if any is NaN or infinity.

mod forward;
mod gradient;

pub use forward::{Softmax, SoftmaxArguments};
pub use gradient::{SoftmaxGrad, SoftmaxGradArguments};

/// Softmax or its logarithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Function {
    /// Softmax.
    Softmax,
    /// Its natural logarithm.
    LogSoftmax,
}

impl Function {
    /// Both variants.
    pub const ALL: [Function; 2] = [Function::Softmax, Function::LogSoftmax];

    fn name(self) -> &'static str {
        match self {
            Function::Softmax => "softmax",
            Function::LogSoftmax => "log_softmax",
        }
    }
}
