//! Residual addition fused with the following RMS norm, and its gradient.
//!
//! ```text
//! h_rd      = x_rd + b_rd                      rounded; b is the output of a block
//! y_rd      = h_rd inv_rms_r w_d               the norm of h
//! dx_rd     = dh_rd + (the norm's dx of dy)    db is the same
//! ```
//!
//! Separate kernels for the addition and the norm would move 5 R D elements forward and 6 R D
//! backward. Fused, each direction moves 4 R D. The norm alone is a [function of
//! rows](crate::row_map). These kernels are not: one writes two matrices, the other loads dh late.

use crate::assembler::{In, Kernel, Launch, Out, Ptx, Target, Variant};
use crate::dtype::Dtype;
use crate::params;
use crate::rms_norm::{along_x, inv_rms};
use crate::row::{Form, Row};

/// h = x + b and y = h w / sqrt(mean(h^2) + eps), row by row; and 1 / sqrt(..), one f32 per row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AddRmsNorm {
    form: Form,
}

impl AddRmsNorm {
    /// The kernel for rows of `features` elements. `aligned`: whether all matrices and w begin at
    /// multiples of 16 bytes.
    pub fn new(dtype: Dtype, features: usize, aligned: bool) -> AddRmsNorm {
        AddRmsNorm { form: Form::new(dtype, features, aligned) }
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
        let row = Row::new(k, self.form, call.rows, call.features);
        let (x, b, w) = (row.load(call.x), row.load(call.b), row.load_vector(call.w));

        // Normalizes the rounded sum, which the backward pass reads.
        let squares = k.var(0.0_f32);
        let add_square = |h| squares.add_product(h, h);
        let h = row.store_and(call.h, [&x, &b], |[x, b]| x + b, add_square);
        let inv_rms = inv_rms(&row, squares, call.eps);

        row.store(call.y, [&h, &w], |[h, w]| h * inv_rms * w);
        row.store_scalar(call.inv_rms, inv_rms);
        k.finish()
    }

    fn entry(&self) -> String {
        format!("add_rms_norm_{}", self.form.name())
    }
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
        AddRmsNormGradInput { form: Form::new(dtype, features, aligned) }
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
        let row = Row::new(k, self.form, call.rows, call.features);
        let (dy, h, w) = (row.load(call.dy), row.load(call.h), row.load_vector(call.w));
        let inv_rms = row.load_scalar(call.inv_rms);
        // With the longest rows, no registers are left to load dh before the sum.
        let is_long = matches!(self.form, Form::Tile(it) if it.threads() > 128 && it.vectors() > 3);
        let early = (!is_long).then(|| row.load(call.dh));

        let dot = k.var(0.0_f32);
        row.each([&dy, &h, &w], |[dy, h, w]| dot.add_product(dy * w, h));
        let along_h = along_x(&row, dot, inv_rms);

        let dh = early.unwrap_or_else(|| row.load(call.dh));
        row.store(call.dx, [&dh, &dy, &h, &w], |[dh, dy, h, w]| {
            dh + (dy * w * inv_rms - h * along_h)
        });
        k.finish()
    }

    fn entry(&self) -> String {
        format!("add_rms_norm_grad_input_{}", self.form.name())
    }
}
