//! The gradient with respect to x: computes dx.

use super::mean;
use crate::assembler::{F32, In, Kernel, Launch, Out, Ptx, Target, Variant};
use crate::dtype::Dtype;
use crate::params;
use crate::row::{Form, LongRow, LoopTile, Row, RowTile};

/// dx = inv_rms (dy w - x inv_rms^2 mean(dy w x)), row by row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RmsNormGradInput {
    form: Form,
}

impl RmsNormGradInput {
    /// The kernel for rows of `features` elements. `aligned`: whether dy, x, w and dx begin at
    /// multiples of 16 bytes.
    pub fn new(dtype: Dtype, features: usize, aligned: bool) -> RmsNormGradInput {
        RmsNormGradInput {
            form: Form::new(dtype, features, aligned),
        }
    }

    /// The launch over rows; `None` if there are no rows.
    pub fn launch(&self, rows: u64) -> Option<Launch> {
        self.form.launch(rows)
    }
}

params! {
    /// Arguments of [`RmsNormGradInput`].
    pub struct RmsNormGradInputArguments => Call {
        /// \[R, D\].
        dy: In,
        /// \[R, D\].
        x: In,
        /// \[D\].
        w: In,
        /// \[R\] of f32.
        inv_rms: In,
        /// \[R, D\].
        dx: Out,
        /// R.
        rows: u64,
        /// D.
        features: u32,
    }
}

impl Variant for RmsNormGradInput {
    type Arguments = RmsNormGradInputArguments;

    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, self.form.threads());
        let call = self.parameters(k);
        match self.form {
            Form::Tile(tile) => in_registers(k, tile, &call),
            Form::Loop(tile) => in_a_loop(k, tile, &call),
        }
        k.finish()
    }

    fn entry(&self) -> String {
        format!("rms_norm_grad_input_{}", self.form.name())
    }
}

/// dx of one element, where `along_x` is inv_rms^3 mean(dy w x).
#[track_caller]
fn slope<'k>([dy, x, w]: [F32<'k>; 3], inv_rms: F32<'k>, along_x: F32<'k>) -> F32<'k> {
    dy * w * inv_rms - x * along_x
}

fn in_registers<'k>(k: &'k Kernel, tile: RowTile, call: &Call<'k>) {
    let row = Row::new(k, tile, call.rows);
    let (dy, x, w) = (row.load(call.dy), row.load(call.x), row.load_vector(call.w));
    let inv_rms = row.load_scalar(call.inv_rms);

    let (dy, x, w) = (dy.widen(), x.widen(), w.widen());
    let dot = k.var(0.0_f32);
    for i in 0..x.len() {
        dot.add_product(dy[i] * w[i], x[i]);
    }
    let mean = row.sum(dot.get()) / tile.features() as f32;
    let along_x = mean * inv_rms * inv_rms * inv_rms;

    row.store(call.dx, |i| slope([dy[i], x[i], w[i]], inv_rms, along_x));
}

/// The second pass reads the row from the caches.
fn in_a_loop<'k>(k: &'k Kernel, tile: LoopTile, call: &Call<'k>) {
    let row = LongRow::new(k, tile, call.features);
    let [dy, x, dx] = [call.dy, call.x, call.dx].map(|matrix| row.of_matrix(matrix));
    let inv_rms = call.inv_rms.element::<f32>(k.cta()).load::<f32>();

    let dot = k.var(0.0_f32);
    row.for_each(|at| {
        let [dy, x, w] = [dy, x, call.w].map(|row| at.load(row));
        for i in 0..x.len() {
            dot.add_product(dy[i] * w[i], x[i]);
        }
    });
    let along_x = mean(k, dot, call.features) * inv_rms * inv_rms * inv_rms;

    row.for_each(|at| {
        let [dy, x, w] = [dy, x, call.w].map(|row| at.load(row));
        at.store(dx, |i| slope([dy[i], x[i], w[i]], inv_rms, along_x));
    });
}
