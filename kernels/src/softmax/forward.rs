//! The forward pass: computes y.

use super::Function;
use crate::assembler::{
    F32, In, Kernel, Launch, Out, Ptx, Target, Variant, block_reduce, block_sum,
};
use crate::dtype::Dtype;
use crate::elementary::{exp, ln};
use crate::params;
use crate::row::{Form, LongRow, LoopTile, Row, RowTile};

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
        Softmax {
            function,
            form: Form::new(dtype, features, aligned),
        }
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
        match self.form {
            Form::Tile(tile) => in_registers(k, self.function, tile, &call),
            Form::Loop(tile) => in_a_loop(k, self.function, tile, &call),
        }
        k.finish()
    }

    fn entry(&self) -> String {
        format!("{}_{}", self.function.name(), self.form.name())
    }
}

/// x and its exponentials, which are computed once, stay in registers.
fn in_registers<'k>(k: &'k Kernel, function: Function, tile: RowTile, call: &Call<'k>) {
    let row = Row::new(k, tile, call.rows);
    let x = row.load(call.x);
    let x = row.widen_or(&x, f32::NEG_INFINITY);
    let max = row.max(largest(&x));

    let shifted: Vec<F32<'k>> = x.iter().map(|x| *x - max).collect();
    let powers: Vec<F32<'k>> = shifted.iter().map(|x| exp(*x)).collect();
    let sum = k.var(0.0_f32);
    for power in &powers {
        sum.add(*power);
    }
    let sum = row.sum(sum.get());
    match function {
        Function::Softmax => {
            let scale = sum.reciprocal();
            row.store(call.y, |i| powers[i] * scale);
        }
        Function::LogSoftmax => {
            let ln_sum = ln(sum);
            row.store(call.y, |i| shifted[i] - ln_sum);
        }
    }
}

/// The second pass reads x from the caches.
fn in_a_loop<'k>(k: &'k Kernel, function: Function, tile: LoopTile, call: &Call<'k>) {
    let row = LongRow::new(k, tile, call.features);
    let (x, y) = (row.of_matrix(call.x), row.of_matrix(call.y));

    // The largest element so far, and the sum of e^(x - largest).
    let (max, sum) = (k.var(f32::NEG_INFINITY), k.var(0.0_f32));
    row.for_each(|at| {
        let x = at.load(x);
        let now = max.max(largest(&x));
        let shift = finite(now);
        sum.set(*sum * exp(*max - shift));
        for x in x {
            sum.add(exp(x - shift));
        }
        max.set(now);
    });
    let of_row = block_reduce(k, max.get(), F32::max);
    let sum = block_sum(k, *sum * exp(*max - finite(of_row)));

    match function {
        Function::Softmax => {
            let scale = sum.reciprocal();
            row.for_each(|at| {
                let x = at.load(x);
                at.store(y, |i| exp(x[i] - of_row) * scale);
            });
        }
        Function::LogSoftmax => {
            let ln_sum = ln(sum);
            row.for_each(|at| {
                let x = at.load(x);
                at.store(y, |i| x[i] - of_row - ln_sum);
            });
        }
    }
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
