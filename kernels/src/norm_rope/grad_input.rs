//! The gradient with respect to x: computes dx.

use super::warp_mean;
use crate::assembler::{Arguments, F32, GlobalAddress, Kernel, Launch, Ptx, Target, Variant};
use crate::dtype::Dtype;
use crate::rope::{
    Direction, Form, Head, HeadLoop, HeadStrides, HeadTile, Heads, Shape, Strides, Style,
    TableStrides, element,
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

impl Variant for NormRopeGradInput {
    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, self.form.threads());
        let call = Call {
            dy: k.pointer("dy"),
            x: k.pointer("x"),
            w: k.pointer("w"),
            inv_rms: k.pointer("inv_rms"),
            cos: k.pointer("cos"),
            sin: k.pointer("sin"),
            dx: k.pointer("dx"),
            shape: Shape::parameters(k),
            of_dy: Strides::of_heads(k, "dy"),
            of_x: Strides::of_heads(k, "x"),
            of_cos: Strides::of_table(k, "cos"),
            of_sin: Strides::of_table(k, "sin"),
        };
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

/// Arguments of [`NormRopeGradInput`]; pointers are device addresses.
#[derive(Clone, Copy, Debug)]
pub struct NormRopeGradInputArguments {
    /// \[B, T, N, D\], read.
    pub dy: u64,
    /// \[B, T, N, D\], read.
    pub x: u64,
    /// \[D\], read.
    pub w: u64,
    /// \[B, T, N\] of f32, dense, read.
    pub inv_rms: u64,
    /// \[B, T, H\] of f32, read.
    pub cos: u64,
    /// \[B, T, H\] of f32, read.
    pub sin: u64,
    /// \[B, T, N, D\], dense, written.
    pub dx: u64,
    /// The extents.
    pub heads: Heads,
    /// Strides of dy and x.
    pub of_heads: [HeadStrides; 2],
    /// Strides of cos and sin.
    pub of_tables: [TableStrides; 2],
}

impl NormRopeGradInputArguments {
    /// The bytes of the kernel's parameters.
    pub fn arguments(&self) -> Arguments {
        let mut arguments = Arguments::new();
        let read = [self.dy, self.x, self.w, self.inv_rms, self.cos, self.sin];
        for pointer in read.into_iter().chain([self.dx]) {
            arguments.push_pointer(pointer);
        }
        self.heads.push(&mut arguments);
        for heads in &self.of_heads {
            heads.push(&mut arguments);
        }
        for table in &self.of_tables {
            table.push(&mut arguments);
        }
        arguments
    }
}

/// The parameters in registers.
struct Call<'k> {
    dy: GlobalAddress<'k>,
    x: GlobalAddress<'k>,
    w: GlobalAddress<'k>,
    inv_rms: GlobalAddress<'k>,
    cos: GlobalAddress<'k>,
    sin: GlobalAddress<'k>,
    dx: GlobalAddress<'k>,
    shape: Shape<'k>,
    of_dy: Strides<'k>,
    of_x: Strides<'k>,
    of_cos: Strides<'k>,
    of_sin: Strides<'k>,
}

/// dx of one element, where `along_x` is inv_rms^3 mean(dz w x).
#[track_caller]
fn slope<'k>([dz, x, w]: [F32<'k>; 3], inv_rms: F32<'k>, along_x: F32<'k>) -> F32<'k> {
    dz * w * inv_rms - x * along_x
}

fn in_registers<'k>(k: &'k Kernel, tile: HeadTile, call: &Call<'k>) {
    let head = Head::of_thread(k, tile, &call.shape);
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
    let head = HeadLoop::new(k, style, &call.shape);
    let dy = head.coordinates.strided(dtype, call.dy, &call.of_dy);
    let x = head.coordinates.strided(dtype, call.x, &call.of_x);
    let dx = head.coordinates.dense(dtype, call.dx, call.shape.features);
    let tables = [(call.cos, call.of_cos), (call.sin, call.of_sin)];
    let tables =
        tables.map(|(table, strides)| head.coordinates.strided(Dtype::F32, table, &strides));
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
    let mean = warp_mean(k, dot, call.shape.features);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_fill_the_parameter_space() {
        let heads = Heads {
            rows: 6,
            positions: 3,
            heads: 2,
            features: 64,
            pairs: 32,
        };
        let dense = HeadStrides {
            batch: 384,
            position: 128,
            head: 64,
        };
        let table = TableStrides {
            batch: 0,
            position: 32,
        };
        let arguments = NormRopeGradInputArguments {
            dy: 1,
            x: 2,
            w: 3,
            inv_rms: 4,
            cos: 5,
            sin: 6,
            dx: 7,
            heads,
            of_heads: [dense; 2],
            of_tables: [table; 2],
        };
        for aligned in [true, false] {
            let variant = NormRopeGradInput::new(Dtype::F32, Style::Half, &heads, aligned);
            let bytes = arguments.arguments();
            assert_eq!(bytes.bytes().len(), variant.ptx().parameter_bytes());
        }
    }
}
