//! The forward pass: computes y and inv_rms.

use super::mean;
use crate::assembler::{In, Kernel, Launch, Out, Ptx, Target, Variant};
use crate::dtype::Dtype;
use crate::params;
use crate::row::{Form, LongRow, LoopTile, Row, RowTile};

/// y = x w / sqrt(mean(x^2) + eps) per row; and 1 / sqrt(..), one f32 per row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RmsNorm {
    form: Form,
}

impl RmsNorm {
    /// The kernel for rows of `features` elements. `aligned`: whether x, w and y begin at multiples
    /// of 16 bytes.
    pub fn new(dtype: Dtype, features: usize, aligned: bool) -> RmsNorm {
        RmsNorm {
            form: Form::new(dtype, features, aligned),
        }
    }

    /// The launch over rows; `None` if there are no rows.
    pub fn launch(&self, rows: u64) -> Option<Launch> {
        self.form.launch(rows)
    }
}

params! {
    /// Arguments of [`RmsNorm`].
    pub struct RmsNormArguments => Call {
        /// \[R, D\].
        x: In,
        /// \[D\].
        w: In,
        /// \[R, D\].
        y: Out,
        /// \[R\] of f32.
        inv_rms: Out,
        /// R.
        rows: u64,
        /// D.
        features: u32,
        /// Added to the mean square before the square root.
        eps: f32,
    }
}

impl Variant for RmsNorm {
    type Arguments = RmsNormArguments;

    fn ptx(&self) -> Ptx {
        let k =
            &Kernel::new(self.entry(), Target::Sm80, self.form.threads()).reserve_load_registers();
        let call = self.parameters(k);
        match self.form {
            Form::Tile(tile) => in_registers(k, tile, &call),
            Form::Loop(tile) => in_a_loop(k, tile, &call),
        }
        k.finish()
    }

    fn entry(&self) -> String {
        format!("rms_norm_{}", self.form.name())
    }
}

/// All loads of x are issued before the first use, so that they are in flight together. The loads
/// of w, which are cached, are issued before the row sum. x stays in registers between the sum of
/// squares and the scaling.
fn in_registers<'k>(k: &'k Kernel, tile: RowTile, call: &Call<'k>) {
    let row = Row::new(k, tile, call.rows);
    let (x, w) = (row.load(call.x), row.load_vector(call.w));

    let x = x.widen();
    let squares = k.var(0.0_f32);
    for value in &x {
        squares.add_product(*value, *value);
    }
    let mean = row.sum(squares.get()) / tile.features() as f32;
    let inv_rms = (mean + call.eps).sqrt().reciprocal();

    let w = w.widen();
    row.store(call.y, |i| x[i] * inv_rms * w[i]);
    row.store_scalar(call.inv_rms, inv_rms);
}

/// The second pass reads x from the caches.
fn in_a_loop<'k>(k: &'k Kernel, tile: LoopTile, call: &Call<'k>) {
    let row = LongRow::new(k, tile, call.features);
    let (x, y) = (row.of_matrix(call.x), row.of_matrix(call.y));

    let squares = k.var(0.0_f32);
    row.for_each(|at| {
        for value in at.load(x) {
            squares.add_product(value, value);
        }
    });
    let mean = mean(k, squares, call.features);
    let inv_rms = (mean + call.eps).sqrt().reciprocal();

    row.for_each(|at| {
        let (x, w) = (at.load(x), at.load(call.w));
        at.store(y, |i| x[i] * inv_rms * w[i]);
    });
    let address = call.inv_rms.element::<f32>(k.cta());
    address.store_if(k.thread().equals(0), inv_rms);
}
