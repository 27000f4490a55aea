//! The rotation of heads (y), and its inverse (dx).

use super::{
    Form, Head, HeadLoop, HeadStrides, HeadTile, Heads, Shape, Strides, Style, TableStrides,
    element,
};
use crate::assembler::{Arguments, F32, GlobalAddress, Kernel, Launch, Ptx, Target, Variant};
use crate::dtype::Dtype;

/// The direction of the rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// By the angle: the forward pass.
    Forward,
    /// By minus the angle: the gradient.
    Inverse,
}

impl Direction {
    /// (a cos - b sin, b cos + a sin), or the same with -sin; each product is rounded.
    #[track_caller]
    pub(crate) fn rotate<'k>(self, [a, b]: [F32<'k>; 2], [cos, sin]: [F32<'k>; 2]) -> [F32<'k>; 2] {
        match self {
            Direction::Forward => [a * cos - b * sin, b * cos + a * sin],
            Direction::Inverse => [a * cos + b * sin, b * cos - a * sin],
        }
    }
}

/// Rotates each head by the angles of its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rope {
    form: Form,
    direction: Direction,
}

impl Rope {
    /// The kernel that rotates `heads`. `aligned`: whether all heads and rows of tables begin at
    /// multiples of 16 bytes.
    pub fn new(
        dtype: Dtype,
        style: Style,
        direction: Direction,
        heads: &Heads,
        aligned: bool,
    ) -> Rope {
        Rope {
            form: Form::new(dtype, style, heads, aligned),
            direction,
        }
    }

    /// The launch over these heads; `None` if there are no heads or no features.
    pub fn launch(&self, heads: &Heads) -> Option<Launch> {
        match heads.features {
            0 => None,
            _ => self.form.launch(heads),
        }
    }
}

impl Variant for Rope {
    fn ptx(&self) -> Ptx {
        let k =
            &Kernel::new(self.entry(), Target::Sm80, self.form.threads()).reserve_load_registers();
        let call = Call {
            x: k.pointer("x"),
            cos: k.pointer("cos"),
            sin: k.pointer("sin"),
            y: k.pointer("y"),
            shape: Shape::parameters(k),
            of_x: Strides::of_heads(k, "x"),
            of_cos: Strides::of_table(k, "cos"),
            of_sin: Strides::of_table(k, "sin"),
        };
        match self.form {
            Form::Tile(tile) => in_registers(k, tile, self.direction, &call),
            Form::Loop(dtype, style) => in_a_loop(k, dtype, style, self.direction, &call),
        }
        k.finish()
    }

    fn entry(&self) -> String {
        match self.direction {
            Direction::Forward => format!("rope_{}", self.form.name()),
            Direction::Inverse => format!("rope_inverse_{}", self.form.name()),
        }
    }
}

/// Arguments of [`Rope`]; pointers are device addresses.
#[derive(Clone, Copy, Debug)]
pub struct RopeArguments {
    /// \[B, T, N, D\], read.
    pub x: u64,
    /// \[B, T, H\] of f32, read.
    pub cos: u64,
    /// \[B, T, H\] of f32, read.
    pub sin: u64,
    /// \[B, T, N, D\], dense, written.
    pub y: u64,
    /// The extents.
    pub heads: Heads,
    /// Strides of x.
    pub of_x: HeadStrides,
    /// Strides of cos.
    pub of_cos: TableStrides,
    /// Strides of sin.
    pub of_sin: TableStrides,
}

impl RopeArguments {
    /// The bytes of the kernel's parameters.
    pub fn arguments(&self) -> Arguments {
        let mut arguments = Arguments::new();
        for pointer in [self.x, self.cos, self.sin, self.y] {
            arguments.push_pointer(pointer);
        }
        self.heads.push(&mut arguments);
        self.of_x.push(&mut arguments);
        self.of_cos.push(&mut arguments);
        self.of_sin.push(&mut arguments);
        arguments
    }
}

/// The parameters in registers.
struct Call<'k> {
    x: GlobalAddress<'k>,
    cos: GlobalAddress<'k>,
    sin: GlobalAddress<'k>,
    y: GlobalAddress<'k>,
    shape: Shape<'k>,
    of_x: Strides<'k>,
    of_cos: Strides<'k>,
    of_sin: Strides<'k>,
}

fn in_registers<'k>(k: &'k Kernel, tile: HeadTile, direction: Direction, call: &Call<'k>) {
    let head = Head::of_thread(k, tile, &call.shape);
    let x = head.load(call.x, &call.of_x);
    let angles = head.angles([(call.cos, call.of_cos), (call.sin, call.of_sin)]);
    head.store(call.y, &tile.rotated(direction, &x.widen(), &angles));
}

fn in_a_loop<'k>(k: &'k Kernel, dtype: Dtype, style: Style, direction: Direction, call: &Call<'k>) {
    let head = HeadLoop::new(k, style, &call.shape);
    let x = head.coordinates.strided(dtype, call.x, &call.of_x);
    let y = head.coordinates.dense(dtype, call.y, call.shape.features);
    let cos = head.coordinates.strided(Dtype::F32, call.cos, &call.of_cos);
    let sin = head.coordinates.strided(Dtype::F32, call.sin, &call.of_sin);

    head.each_pair(|features, pair| {
        let angle = [cos, sin].map(|table| element(Dtype::F32, table, pair).load());
        let values = features.map(|i| dtype.load(element(dtype, x, i)));
        let rotated = direction.rotate(values, angle);
        for (i, value) in features.into_iter().zip(rotated) {
            dtype.store(element(dtype, y, i), value);
        }
    });
    head.each_passed(|i| {
        dtype.store(element(dtype, y, i), dtype.load(element(dtype, x, i)));
    });
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
        let arguments = RopeArguments {
            x: 1,
            cos: 2,
            sin: 3,
            y: 4,
            heads,
            of_x: dense,
            of_cos: table,
            of_sin: table,
        };
        for aligned in [true, false] {
            let variant = Rope::new(
                Dtype::Bf16,
                Style::Half,
                Direction::Inverse,
                &heads,
                aligned,
            );
            let bytes = arguments.arguments();
            assert_eq!(bytes.bytes().len(), variant.ptx().parameter_bytes());
        }
    }

    #[test]
    fn without_features_nothing_is_launched() {
        let heads = Heads {
            rows: 6,
            positions: 3,
            heads: 2,
            features: 0,
            pairs: 0,
        };
        let variant = Rope::new(Dtype::F32, Style::Half, Direction::Forward, &heads, true);
        assert_eq!(variant.launch(&heads), None);
    }
}
