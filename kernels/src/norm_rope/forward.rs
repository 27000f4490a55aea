//! The forward pass: computes y and inv_rms.

use crate::assembler::{In, Kernel, Launch, Out, Ptx, Target, Variant};
use crate::dtype::Dtype;
use crate::params;
use crate::rms_norm::inv_rms;
use crate::rope::{Direction, Form, Head, HeadStrides, Heads, Style, TableStrides};

/// y = rotate(x w / sqrt(mean(x^2) + eps)) per head; and 1 / sqrt(..), one f32 per head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NormRope {
    form: Form,
}

impl NormRope {
    /// The kernel for `heads`. `aligned`: whether all heads, rows of tables and w begin at
    /// multiples of 16 bytes.
    pub fn new(dtype: Dtype, style: Style, heads: &Heads, aligned: bool) -> NormRope {
        NormRope { form: Form::new(dtype, style, heads, aligned) }
    }

    /// The launch over these heads; `None` if there are no heads.
    pub fn launch(&self, heads: &Heads) -> Option<Launch> {
        self.form.launch(heads)
    }
}

params! {
    /// Arguments of [`NormRope`].
    pub struct NormRopeArguments => Call {
        /// \[B, T, N, D\].
        x: In,
        /// \[D\].
        w: In,
        /// \[B, T, H\] of f32.
        cos: In,
        /// \[B, T, H\] of f32.
        sin: In,
        /// \[B, T, N, D\], dense.
        y: Out,
        /// \[B, T, N\] of f32, dense.
        inv_rms: Out,
        /// The extents.
        heads: Heads,
        /// Added to the mean square before the square root.
        eps: f32,
        /// Strides of x.
        of_x: HeadStrides,
        /// Strides of cos.
        of_cos: TableStrides,
        /// Strides of sin.
        of_sin: TableStrides,
    }
}

impl Variant for NormRope {
    type Arguments = NormRopeArguments;

    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, self.form.threads());
        let call = self.parameters(k);
        let head = Head::of_thread(k, self.form, &call.heads);
        let row = &head.row;
        let (x, w) = (head.load(call.x, &call.of_x), row.load_vector(call.w));
        let angles = head.angles([(call.cos, call.of_cos), (call.sin, call.of_sin)]);

        let squares = k.var(0.0_f32);
        row.each([&x], |[x]| squares.add_product(x, x));
        let inv_rms = inv_rms(row, squares, call.eps);

        let normed = row.map([&x, &w], move |[x, w]| x * inv_rms * w);
        let y = head.rotated(Direction::Forward, &normed, angles);
        row.store(call.y, [&y], |[y]| y);
        row.store_scalar(call.inv_rms, inv_rms);
        k.finish()
    }

    fn entry(&self) -> String {
        format!("norm_rope_{}", self.form.name())
    }
}
