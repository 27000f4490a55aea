//! The gradient with respect to x: computes dx.

use super::along_x;
use crate::assembler::{In, Kernel, Launch, Out, Ptx, Target, Variant};
use crate::dtype::Dtype;
use crate::params;
use crate::row::{Form, Row};

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
        let row = Row::new(k, self.form, call.rows, call.features);
        let (dy, x, w) = (row.load(call.dy), row.load(call.x), row.load_vector(call.w));
        let inv_rms = row.load_scalar(call.inv_rms);

        let dot = k.var(0.0_f32);
        row.each([&dy, &x, &w], |[dy, x, w]| dot.add_product(dy * w, x));
        let along_x = along_x(&row, dot, inv_rms);

        row.store(call.dx, [&dy, &x, &w], |[dy, x, w]| {
            dy * w * inv_rms - x * along_x
        });
        k.finish()
    }

    fn entry(&self) -> String {
        format!("rms_norm_grad_input_{}", self.form.name())
    }
}
