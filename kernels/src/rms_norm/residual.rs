//! Residual addition fused with the following RMS norm, and its gradient.
//!
//! ```text
//! h_rd      = x_rd + b_rd                      rounded; b is the output of a block
//! y_rd      = h_rd inv_rms_r w_d               the norm of h
//! dx_rd     = dh_rd + (the norm's dx of dy)    db is the same
//! ```
//!
//! Separate kernels for the addition and the norm would move 5 R D elements forward and 6 R D
//! backward. Fused, each direction moves 4 R D.

use super::mean;
use crate::assembler::{F32, In, Kernel, Launch, Out, Ptx, Target, Variant};
use crate::dtype::Dtype;
use crate::params;
use crate::row::{Form, LongRow, LoopTile, Row, RowTile};

/// h = x + b and y = h w / sqrt(mean(h^2) + eps), row by row; and 1 / sqrt(..), one f32 per row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AddRmsNorm {
    form: Form,
}

impl AddRmsNorm {
    /// The kernel for rows of `features` elements. `aligned`: whether all matrices and w begin at
    /// multiples of 16 bytes.
    pub fn new(dtype: Dtype, features: usize, aligned: bool) -> AddRmsNorm {
        AddRmsNorm {
            form: Form::new(dtype, features, aligned),
        }
    }

    /// The launch over rows; `None` if there are no rows.
    pub fn launch(&self, rows: u64) -> Option<Launch> {
        self.form.launch(rows)
    }
}

params! {
    /// Arguments of [`AddRmsNorm`].
    pub struct AddRmsNormArguments => Call {
        /// \[R, D\].
        x: In,
        /// \[R, D\].
        b: In,
        /// \[D\].
        w: In,
        /// \[R, D\].
        h: Out,
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

impl Variant for AddRmsNorm {
    type Arguments = AddRmsNormArguments;

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
        format!("add_rms_norm_{}", self.form.name())
    }
}

/// Normalizes the rounded sum h, which the backward pass reads.
fn in_registers<'k>(k: &'k Kernel, tile: RowTile, call: &Call<'k>) {
    let row = Row::new(k, tile, call.rows);
    let (x, b) = (row.load(call.x), row.load(call.b));
    let w = row.load_vector(call.w);

    let h = x.plus(&b);
    row.store_loaded(call.h, &h);
    let h = h.widen();
    let squares = k.var(0.0_f32);
    for value in &h {
        squares.add_product(*value, *value);
    }
    let mean = row.sum(squares.get()) / tile.features() as f32;
    let inv_rms = (mean + call.eps).sqrt().reciprocal();

    let w = w.widen();
    row.store(call.y, |i| h[i] * inv_rms * w[i]);
    row.store_scalar(call.inv_rms, inv_rms);
}

/// In the second pass, a thread reads the h that it wrote in the first from the caches.
fn in_a_loop<'k>(k: &'k Kernel, tile: LoopTile, call: &Call<'k>) {
    let row = LongRow::new(k, tile, call.features);
    let [x, b, h, y] = [call.x, call.b, call.h, call.y].map(|matrix| row.of_matrix(matrix));

    let squares = k.var(0.0_f32);
    row.for_each(|at| {
        let (x, b) = (at.load(x), at.load(b));
        let sums = x.into_iter().zip(b).map(|(x, b)| at.rounded(x + b));
        let sums: Vec<F32<'_>> = sums.collect();
        at.store(h, |i| sums[i]);
        for sum in &sums {
            squares.add_product(*sum, *sum);
        }
    });
    let mean = mean(k, squares, call.features);
    let inv_rms = (mean + call.eps).sqrt().reciprocal();

    row.for_each(|at| {
        let (h, w) = (at.load(h), at.load(call.w));
        at.store(y, |i| h[i] * inv_rms * w[i]);
    });
    let address = call.inv_rms.element::<f32>(k.cta());
    address.store_if(k.thread().equals(0), inv_rms);
}

/// dx = dh + inv_rms (dy w - h inv_rms^2 mean(dy w h)), row by row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AddRmsNormGradInput {
    form: Form,
}

impl AddRmsNormGradInput {
    /// The kernel for rows of `features` elements. `aligned`: whether all matrices and w begin at
    /// multiples of 16 bytes.
    pub fn new(dtype: Dtype, features: usize, aligned: bool) -> AddRmsNormGradInput {
        AddRmsNormGradInput {
            form: Form::new(dtype, features, aligned),
        }
    }

    /// The launch over rows; `None` if there are no rows.
    pub fn launch(&self, rows: u64) -> Option<Launch> {
        self.form.launch(rows)
    }
}

params! {
    /// Arguments of [`AddRmsNormGradInput`].
    pub struct AddRmsNormGradInputArguments => GradCall {
        /// \[R, D\].
        dh: In,
        /// \[R, D\].
        dy: In,
        /// \[R, D\].
        h: In,
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

impl Variant for AddRmsNormGradInput {
    type Arguments = AddRmsNormGradInputArguments;

    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, self.form.threads());
        let call = self.parameters(k);
        match self.form {
            Form::Tile(tile) => grad_in_registers(k, tile, &call),
            Form::Loop(tile) => grad_in_a_loop(k, tile, &call),
        }
        k.finish()
    }

    fn entry(&self) -> String {
        format!("add_rms_norm_grad_input_{}", self.form.name())
    }
}

/// dx of one element, where `along_h` is inv_rms^3 mean(dy w h).
#[track_caller]
fn slope<'k>([dh, dy, h, w]: [F32<'k>; 4], inv_rms: F32<'k>, along_h: F32<'k>) -> F32<'k> {
    dh + (dy * w * inv_rms - h * along_h)
}

fn grad_in_registers<'k>(k: &'k Kernel, tile: RowTile, call: &GradCall<'k>) {
    let row = Row::new(k, tile, call.rows);
    let (dy, h, w) = (row.load(call.dy), row.load(call.h), row.load_vector(call.w));
    let inv_rms = row.load_scalar(call.inv_rms);
    // With the longest rows, no registers are left to load dh before the sum.
    let is_long = tile.threads() > 128 && tile.vectors() > 3;
    let early = (!is_long).then(|| row.load(call.dh));

    let (dy, h, w) = (dy.widen(), h.widen(), w.widen());
    let dot = k.var(0.0_f32);
    for i in 0..h.len() {
        dot.add_product(dy[i] * w[i], h[i]);
    }
    let mean = row.sum(dot.get()) / tile.features() as f32;
    let along_h = mean * inv_rms * inv_rms * inv_rms;

    let dh = early.unwrap_or_else(|| row.load(call.dh)).widen();
    row.store(call.dx, |i| {
        slope([dh[i], dy[i], h[i], w[i]], inv_rms, along_h)
    });
}

/// The second pass reads the row from the caches.
fn grad_in_a_loop<'k>(k: &'k Kernel, tile: LoopTile, call: &GradCall<'k>) {
    let row = LongRow::new(k, tile, call.features);
    let [dh, dy, h, dx] = [call.dh, call.dy, call.h, call.dx].map(|matrix| row.of_matrix(matrix));
    let inv_rms = call.inv_rms.element::<f32>(k.cta()).load::<f32>();

    let dot = k.var(0.0_f32);
    row.for_each(|at| {
        let [dy, h, w] = [dy, h, call.w].map(|row| at.load(row));
        for i in 0..h.len() {
            dot.add_product(dy[i] * w[i], h[i]);
        }
    });
    let along_h = mean(k, dot, call.features) * inv_rms * inv_rms * inv_rms;

    row.for_each(|at| {
        let [dh, dy, h, w] = [dh, dy, h, call.w].map(|row| at.load(row));
        at.store(dx, |i| slope([dh[i], dy[i], h[i], w[i]], inv_rms, along_h));
    });
}
