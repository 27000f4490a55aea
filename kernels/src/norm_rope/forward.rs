//! The forward pass: computes y and inv_rms.

use super::warp_mean;
use crate::assembler::{Arguments, F32, GlobalAddress, Kernel, Launch, Ptx, Target, Variant};
use crate::dtype::Dtype;
use crate::rope::{
    Direction, Form, Head, HeadLoop, HeadStrides, HeadTile, Heads, Shape, Strides, Style,
    TableStrides, element,
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

impl Variant for NormRope {
    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, self.form.threads());
        let call = Call {
            x: k.pointer("x"),
            w: k.pointer("w"),
            cos: k.pointer("cos"),
            sin: k.pointer("sin"),
            y: k.pointer("y"),
            inv_rms: k.pointer("inv_rms"),
            shape: Shape::parameters(k),
            eps: k.f32_param("eps"),
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
        format!("norm_rope_{}", self.form.name())
    }
}

/// Arguments of [`NormRope`]; pointers are device addresses.
#[derive(Clone, Copy, Debug)]
pub struct NormRopeArguments {
    /// \[B, T, N, D\], read.
    pub x: u64,
    /// \[D\], read.
    pub w: u64,
    /// \[B, T, H\] of f32, read.
    pub cos: u64,
    /// \[B, T, H\] of f32, read.
    pub sin: u64,
    /// \[B, T, N, D\], dense, written.
    pub y: u64,
    /// \[B, T, N\] of f32, dense, written.
    pub inv_rms: u64,
    /// The extents.
    pub heads: Heads,
    /// Added to the mean square before the square root.
    pub eps: f32,
    /// Strides of x.
    pub of_x: HeadStrides,
    /// Strides of cos and sin.
    pub of_tables: [TableStrides; 2],
}

impl NormRopeArguments {
    /// The bytes of the kernel's parameters.
    pub fn arguments(&self) -> Arguments {
        let mut arguments = Arguments::new();
        for pointer in [self.x, self.w, self.cos, self.sin, self.y, self.inv_rms] {
            arguments.push_pointer(pointer);
        }
        self.heads.push(&mut arguments);
        arguments.push_f32(self.eps);
        self.of_x.push(&mut arguments);
        for table in &self.of_tables {
            table.push(&mut arguments);
        }
        arguments
    }
}

/// The parameters in registers.
struct Call<'k> {
    x: GlobalAddress<'k>,
    w: GlobalAddress<'k>,
    cos: GlobalAddress<'k>,
    sin: GlobalAddress<'k>,
    y: GlobalAddress<'k>,
    inv_rms: GlobalAddress<'k>,
    shape: Shape<'k>,
    eps: F32<'k>,
    of_x: Strides<'k>,
    of_cos: Strides<'k>,
    of_sin: Strides<'k>,
}

/// All loads are issued before the first use. x stays in registers between the sum of squares and
/// the rotation.
fn in_registers<'k>(k: &'k Kernel, tile: HeadTile, call: &Call<'k>) {
    let head = Head::of_thread(k, tile, &call.shape);
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
    let head = HeadLoop::new(k, style, &call.shape);
    let x = head.coordinates.strided(dtype, call.x, &call.of_x);
    let y = head.coordinates.dense(dtype, call.y, call.shape.features);
    let tables = [(call.cos, call.of_cos), (call.sin, call.of_sin)];
    let tables =
        tables.map(|(table, strides)| head.coordinates.strided(Dtype::F32, table, &strides));

    let squares = k.var(0.0_f32);
    head.each_feature(|i| {
        let value = dtype.load(element(dtype, x, i));
        squares.add_product(value, value);
    });
    let mean = warp_mean(k, squares, call.shape.features);
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
        let table = TableStrides {
            batch: 0,
            position: 32,
        };
        let arguments = NormRopeArguments {
            x: 1,
            w: 2,
            cos: 3,
            sin: 4,
            y: 5,
            inv_rms: 6,
            heads,
            eps: 1e-6,
            of_x: HeadStrides {
                batch: 384,
                position: 128,
                head: 64,
            },
            of_tables: [table; 2],
        };
        for aligned in [true, false] {
            let variant = NormRope::new(Dtype::Bf16, Style::Half, &heads, aligned);
            let bytes = arguments.arguments();
            assert_eq!(bytes.bytes().len(), variant.ptx().parameter_bytes());
        }
    }
}
