//! The gradient with respect to x: computes dx.

use crate::assembler::{In, Kernel, Launch, Out, Ptx, Target, Variant};
use crate::dtype::Dtype;
use crate::params;
use crate::rms_norm::along_x;
use crate::rope::{Direction, Form, Head, HeadStrides, Heads, Style, TableStrides};

/// dx = inv_rms (dz w - x inv_rms^2 mean(dz w x)) with dz = inverse_rotate(dy), head by head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NormRopeGradInput {
    form: Form,
}

impl NormRopeGradInput {
    /// The kernel for `heads`. `aligned`: whether all heads, rows of tables and w begin at
    /// multiples of 16 bytes.
    pub fn new(dtype: Dtype, style: Style, heads: &Heads, aligned: bool) -> NormRopeGradInput {
        NormRopeGradInput { form: Form::new(dtype, style, heads, aligned) }
    }

    /// The launch over these heads; `None` if there are no heads.
    pub fn launch(&self, heads: &Heads) -> Option<Launch> {
        self.form.launch(heads)
    }
}

params! {
    /// Arguments of [`NormRopeGradInput`].
    pub struct NormRopeGradInputArguments => Call {
        /// \[B, T, N, D\].
        dy: In,
        /// \[B, T, N, D\].
        x: In,
        /// \[D\].
        w: In,
        /// \[B, T, N\] of f32, dense.
        inv_rms: In,
        /// \[B, T, H\] of f32.
        cos: In,
        /// \[B, T, H\] of f32.
        sin: In,
        /// \[B, T, N, D\], dense.
        dx: Out,
        /// The extents.
        heads: Heads,
        /// Strides of dy.
        of_dy: HeadStrides,
        /// Strides of x.
        of_x: HeadStrides,
        /// Strides of cos.
        of_cos: TableStrides,
        /// Strides of sin.
        of_sin: TableStrides,
    }
}

impl Variant for NormRopeGradInput {
    type Arguments = NormRopeGradInputArguments;

    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, self.form.threads());
        let call = self.parameters(k);
        let head = Head::of_thread(k, self.form, &call.heads);
        let row = &head.row;
        let (dy, x) = (head.load(call.dy, &call.of_dy), head.load(call.x, &call.of_x));
        let w = row.load_vector(call.w);
        let angles = head.angles([(call.cos, call.of_cos), (call.sin, call.of_sin)]);
        let inv_rms = row.load_scalar(call.inv_rms);

        let dz = head.rotated(Direction::Inverse, &dy, angles);
        let dot = k.var(0.0_f32);
        row.each([&dz, &x, &w], |[dz, x, w]| dot.add_product(dz * w, x));
        let along_x = along_x(row, dot, inv_rms);

        row.store(call.dx, [&dz, &x, &w], |[dz, x, w]| dz * w * inv_rms - x * along_x);
        k.finish()
    }

    fn entry(&self) -> String {
        format!("norm_rope_grad_input_{}", self.form.name())
    }
}
