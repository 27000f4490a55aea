//! The gradient with respect to x: computes dx.

use super::warp_mean;
use crate::assembler::{F32, In, Kernel, Launch, Out, Ptx, Target, Variant};
use crate::dtype::Dtype;
use crate::params;
use crate::rope::{
    Direction, Form, Head, HeadLoop, HeadStrides, HeadTile, Heads, Style, TableStrides, element,
};

/// dx = inv_rms (dz w - x inv_rms^2 mean(dz w x)) with dz = inverse_rotate(dy), head by head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NormRopeGradInput {
    form: Form,
}

impl NormRopeGradInput {
    /// The kernel for `heads`. `aligned`: whether all heads, rows of tables and w begin at
    /// multiples of 16 bytes.
    pub fn new(dtype: Dtype, style: Style, heads: &Heads, aligned: bool) -> NormRopeGradInput {
        NormRopeGradInput {
            form: Form::new(dtype, style, heads, aligned),
        }
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
        match self.form {
            Form::Tile(tile) => in_registers(k, tile, &call),
            Form::Loop(dtype, style) => in_a_loop(k, dtype, style, &call),
        }
        k.finish()
    }

    fn entry(&self) -> String {
        format!("norm_rope_grad_input_{}", self.form.name())
    }
}

/// dx of one element, where `along_x` is inv_rms^3 mean(dz w x).
#[track_caller]
fn slope<'k>([dz, x, w]: [F32<'k>; 3], inv_rms: F32<'k>, along_x: F32<'k>) -> F32<'k> {
    dz * w * inv_rms - x * along_x
}

fn in_registers<'k>(k: &'k Kernel, tile: HeadTile, call: &Call<'k>) {
    let head = Head::of_thread(k, tile, &call.heads);
    let (dy, x) = (
        head.load(call.dy, &call.of_dy),
        head.load(call.x, &call.of_x),
    );
    let w = head.load_vector(call.w);
    let angles = head.angles([(call.cos, call.of_cos), (call.sin, call.of_sin)]);
    let inv_rms = head.load_scalar(call.inv_rms);

    let dz = tile.rotated(Direction::Inverse, &dy.widen(), &angles);
    let (x, w) = (x.widen(), w.widen());
    let dot = k.var(0.0_f32);
    for i in 0..x.len() {
        dot.add_product(dz[i] * w[i], x[i]);
    }
    let mean = head.sum(dot.get()) / tile.features() as f32;
    let along_x = mean * inv_rms * inv_rms * inv_rms;

    let slopes = (0..x.len()).map(|i| slope([dz[i], x[i], w[i]], inv_rms, along_x));
    head.store(call.dx, &slopes.collect::<Vec<_>>());
}

/// The second pass reads the head from the caches.
fn in_a_loop<'k>(k: &'k Kernel, dtype: Dtype, style: Style, call: &Call<'k>) {
    let head = HeadLoop::new(k, style, &call.heads);
    let dy = head.coordinates.strided(dtype, call.dy, &call.of_dy);
    let x = head.coordinates.strided(dtype, call.x, &call.of_x);
    let dx = head.coordinates.dense(dtype, call.dx, call.heads.features);
    let tables = [(call.cos, call.of_cos), (call.sin, call.of_sin)];
    let tables = tables.map(|(table, strides)| head.coordinates.in_table(table, &strides));
    let inv_rms = head.coordinates.scalar(call.inv_rms).load_if(head.exists);

    let load = |tensor, i| dtype.load(element(dtype, tensor, i));
    let x_and_w = |i| [load(x, i), load(call.w, i)];
    let turned_back = |features: [_; 2], pair| {
        let angle = tables.map(|table| element(Dtype::F32, table, pair).load());
        Direction::Inverse.rotate(features.map(|i| load(dy, i)), angle)
    };

    let dot = k.var(0.0_f32);
    let add = |dz: F32<'k>, i| {
        let [x, w] = x_and_w(i);
        dot.add_product(dz * w, x);
    };
    head.each_pair(|features, pair| {
        let dz = turned_back(features, pair);
        add(dz[0], features[0]);
        add(dz[1], features[1]);
    });
    head.each_passed(|i| add(load(dy, i), i));
    let mean = warp_mean(k, dot, call.heads.features);
    let along_x = mean * inv_rms * inv_rms * inv_rms;

    let store = |dz: F32<'k>, i| {
        let [x, w] = x_and_w(i);
        dtype.store(element(dtype, dx, i), slope([dz, x, w], inv_rms, along_x));
    };
    head.each_pair(|features, pair| {
        let dz = turned_back(features, pair);
        store(dz[0], features[0]);
        store(dz[1], features[1]);
    });
    head.each_passed(|i| store(load(dy, i), i));
}
