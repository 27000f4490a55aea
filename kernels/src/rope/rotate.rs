//! The rotation of heads (y), and its inverse (dx).

use super::{Form, Head, HeadStrides, Heads, Style, TableStrides};
use crate::assembler::{F32, In, Kernel, Launch, Out, Ptx, Target, Variant};
use crate::dtype::Dtype;
use crate::params;

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
        Rope { form: Form::new(dtype, style, heads, aligned), direction }
    }

    /// The launch over these heads; `None` if there are no heads or no features.
    pub fn launch(&self, heads: &Heads) -> Option<Launch> {
        match heads.features {
            0 => None,
            _ => self.form.launch(heads),
        }
    }
}

params! {
    /// Arguments of [`Rope`].
    pub struct RopeArguments => Call {
        /// \[B, T, N, D\].
        x: In,
        /// \[B, T, H\] of f32.
        cos: In,
        /// \[B, T, H\] of f32.
        sin: In,
        /// \[B, T, N, D\], dense.
        y: Out,
        /// The extents.
        heads: Heads,
        /// Strides of x.
        of_x: HeadStrides,
        /// Strides of cos.
        of_cos: TableStrides,
        /// Strides of sin.
        of_sin: TableStrides,
    }
}

impl Variant for Rope {
    type Arguments = RopeArguments;

    fn ptx(&self) -> Ptx {
        let k =
            &Kernel::new(self.entry(), Target::Sm80, self.form.threads()).reserve_load_registers();
        let call = self.parameters(k);
        let head = Head::of_thread(k, self.form, &call.heads);
        let x = head.load(call.x, &call.of_x);
        let angles = head.angles([(call.cos, call.of_cos), (call.sin, call.of_sin)]);
        let y = head.rotated(self.direction, &x, angles);
        head.row.store(call.y, [&y], |[y]| y);
        k.finish()
    }

    fn entry(&self) -> String {
        match self.direction {
            Direction::Forward => format!("rope_{}", self.form.name()),
            Direction::Inverse => format!("rope_inverse_{}", self.form.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_features_nothing_is_launched() {
        let heads = Heads { rows: 6, positions: 3, heads: 2, features: 0, pairs: 0 };
        let variant = Rope::new(Dtype::F32, Style::Half, Direction::Forward, &heads, true);
        assert_eq!(variant.launch(&heads), None);
    }
}
