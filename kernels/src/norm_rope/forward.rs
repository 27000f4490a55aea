//! The forward pass: computes y and inv_rms.

use super::warp_mean;
use crate::assembler::{F32, In, Kernel, Launch, Out, Ptx, Target, Variant};
use crate::dtype::Dtype;
use crate::params;
use crate::rope::{
    Direction, Form, Head, HeadLoop, HeadStrides, HeadTile, Heads, Style, TableStrides, element,
};

/// y = rotate(x w / sqrt(mean(x^2) + eps)) per head; and 1 / sqrt(..), one f32 per head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NormRope {
    form: Form,
}

impl NormRope {
    /// The kernel for `heads`. `aligned`: whether all heads, rows of tables and w begin at
    /// multiples of 16 bytes.
    pub fn new(dtype: Dtype, style: Style, heads: &Heads, aligned: bool) -> NormRope {
        NormRope {
            form: Form::new(dtype, style, heads, aligned),
        }
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
        match self.form {
            Form::Tile(tile) => in_registers(k, tile, &call),
            Form::Loop(dtype, style) => in_a_loop(k, dtype, style, &call),
        }
        k.finish()
    }

    fn entry(&self) -> String {
        format!("norm_rope_{}", self.form.name())
    }
}

/// All loads are issued before the first use. x stays in registers between the sum of squares and
/// the rotation.
fn in_registers<'k>(k: &'k Kernel, tile: HeadTile, call: &Call<'k>) {
    let head = Head::of_thread(k, tile, &call.heads);
    let (x, w) = (head.load(call.x, &call.of_x), head.load_vector(call.w));
    let angles = head.angles([(call.cos, call.of_cos), (call.sin, call.of_sin)]);

    let x = x.widen();
    let squares = k.var(0.0_f32);
    for value in &x {
        squares.add_product(*value, *value);
    }
    let mean = head.sum(squares.get()) / tile.features() as f32;
    let inv_rms = (mean + call.eps).sqrt().reciprocal();

    let w = w.widen();
    let normed: Vec<F32<'k>> = x.iter().zip(w).map(|(x, w)| *x * inv_rms * w).collect();
    head.store(call.y, &tile.rotated(Direction::Forward, &normed, &angles));
    head.store_scalar(call.inv_rms, inv_rms);
}

/// The second pass reads x from the caches.
fn in_a_loop<'k>(k: &'k Kernel, dtype: Dtype, style: Style, call: &Call<'k>) {
    let head = HeadLoop::new(k, style, &call.heads);
    let x = head.coordinates.strided(dtype, call.x, &call.of_x);
    let y = head.coordinates.dense(dtype, call.y, call.heads.features);
    let tables = [(call.cos, call.of_cos), (call.sin, call.of_sin)];
    let tables = tables.map(|(table, strides)| head.coordinates.in_table(table, &strides));

    let squares = k.var(0.0_f32);
    head.each_feature(|i| {
        let value = dtype.load(element(dtype, x, i));
        squares.add_product(value, value);
    });
    let mean = warp_mean(k, squares, call.heads.features);
    let inv_rms = (mean + call.eps).sqrt().reciprocal();

    let normed = |i| {
        let x = dtype.load(element(dtype, x, i));
        x * inv_rms * dtype.load(element(dtype, call.w, i))
    };
    head.each_pair(|features, pair| {
        let angle = tables.map(|table| element(Dtype::F32, table, pair).load());
        let rotated = Direction::Forward.rotate(features.map(normed), angle);
        for (i, value) in features.into_iter().zip(rotated) {
            dtype.store(element(dtype, y, i), value);
        }
    });
    head.each_passed(|i| dtype.store(element(dtype, y, i), normed(i)));
    let inv_rms_at = head.coordinates.scalar(call.inv_rms);
    inv_rms_at.store_if(head.leads, inv_rms);
}
