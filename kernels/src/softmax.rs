//! Softmax and its logarithm along rows. Their gradients are [functions of rows](crate::row_map).
//!
//! Legend: R rows, D features; m is the largest element of a row.
//!
//! ```text
//! softmax    y_rd = e^(x_rd - m_r) / sum_d e^(x_rd - m_r)
//! logarithm  y_rd = x_rd - m_r - ln(sum_d e^(x_rd - m_r))
//! ```
//!
//! The computation is in f32 and rounded once. A row stays in registers between its sum and its
//! result, so the kernel moves the minimum of 2 R D elements. A row that is too long, or not of whole
//! aligned vectors, is read twice. Its maximum and sum are then computed in one pass, which rescales
//! the sum whenever the maximum grows (Milakov & Gimelshein 2018).
//!
//! As on the CPU, a row gives NaN if all elements are minus infinity, or if any is NaN or infinity.

use crate::assembler::{F32, In, Kernel, Launch, Out, Ptx, Target, Variant};
use crate::dtype::Dtype;
use crate::elementary::{exp, ln};
use crate::params;
use crate::row::{Form, Row, Values};

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

/// Softmax of each row, or its logarithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Softmax {
    function: Function,
    form: Form,
}

impl Softmax {
    /// The kernel for rows of `features` elements. `aligned`: whether x and y begin at multiples of
    /// 16 bytes.
    pub fn new(function: Function, dtype: Dtype, features: usize, aligned: bool) -> Softmax {
        Softmax { function, form: Form::new(dtype, features, aligned) }
    }

    /// The launch over rows; `None` if there are no rows.
    pub fn launch(&self, rows: u64) -> Option<Launch> {
        self.form.launch(rows)
    }
}

params! {
    /// Arguments of [`Softmax`].
    pub struct SoftmaxArguments => Call {
        /// \[R, D\].
        x: In,
        /// \[R, D\].
        y: Out,
        /// R.
        rows: u64,
        /// D.
        features: u32,
    }
}

impl Variant for Softmax {
    type Arguments = SoftmaxArguments;

    fn ptx(&self) -> Ptx {
        let k =
            &Kernel::new(self.entry(), Target::Sm80, self.form.threads()).reserve_load_registers();
        let call = self.parameters(k);
        let row = Row::new(k, self.form, call.rows, call.features);
        let x = row.load_or(call.x, f32::NEG_INFINITY);
        let (max, sum) = match row.kept(&x) {
            Some(x) => (row.max(largest(&x)), None),
            None => in_one_pass(k, &row, &x),
        };

        let shifted = row.map([&x], move |[x]| x - max);
        let powers = row.map([&shifted], |[x]| exp(x));
        let sum = sum.unwrap_or_else(|| {
            let sum = k.var(0.0_f32);
            row.each([&powers], |[power]| sum.add(power));
            row.sum(sum.get())
        });
        match self.function {
            Function::Softmax => {
                let scale = sum.reciprocal();
                row.store(call.y, [&powers], |[power]| power * scale);
            }
            Function::LogSoftmax => {
                let ln_sum = ln(sum);
                row.store(call.y, [&shifted], |[x]| x - ln_sum);
            }
        }
        k.finish()
    }

    fn entry(&self) -> String {
        format!("{}_{}", self.function.name(), self.form.name())
    }
}

/// The maximum of a row that is read in loops, and the sum of e^(x - maximum): one pass less than
/// the maximum before the sum.
#[track_caller]
fn in_one_pass<'k>(k: &'k Kernel, row: &Row<'k>, x: &Values<'k>) -> (F32<'k>, Option<F32<'k>>) {
    // The largest element so far, and the sum of e^(x - largest).
    let (max, sum) = (k.var(f32::NEG_INFINITY), k.var(0.0_f32));
    row.each_step([x], |[x]| {
        let now = max.max(largest(&x));
        let shift = finite(now);
        sum.set(*sum * exp(*max - shift));
        for x in x {
            sum.add(exp(x - shift));
        }
        max.set(now);
    });
    let of_row = row.max(max.get());
    let sum = row.sum(*sum * exp(*max - finite(of_row)));
    (of_row, Some(sum))
}

/// The largest value, or NaN if any value is NaN.
#[track_caller]
fn largest<'k>(values: &[F32<'k>]) -> F32<'k> {
    let (first, others) = (values[0], &values[1..]);
    others.iter().fold(first, |max, value| max.max(*value))
}

/// `max`, or 0 if every value so far is minus infinity: e^(x - max) would be NaN.
#[track_caller]
fn finite(max: F32<'_>) -> F32<'_> {
    max.equals(f32::NEG_INFINITY).select(0.0, max)
}
