//! The forward pass: computes y and inv_rms.

use super::inv_rms;
use crate::assembler::{In, Kernel, Launch, Out, Ptx, Target, Variant};
use crate::dtype::Dtype;
use crate::params;
use crate::row::{Form, Row};

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
        let row = Row::new(k, self.form, call.rows, call.features);
        let (x, w) = (row.load(call.x), row.load_vector(call.w));

        let squares = k.var(0.0_f32);
        row.each([&x], |[x]| squares.add_product(x, x));
        let inv_rms = inv_rms(&row, squares, call.eps);

        row.store(call.y, [&x, &w], |[x, w]| x * inv_rms * w);
        row.store_scalar(call.inv_rms, inv_rms);
        k.finish()
    }

    fn entry(&self) -> String {
        format!("rms_norm_{}", self.form.name())
    }
}
