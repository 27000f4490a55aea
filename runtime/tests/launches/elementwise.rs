//! Elementwise ops.

use super::{extremes, gradient, tensor};
use crate::{DType, Device, Result, Tensor, ops};

/// More elements than one CTA handles, with a partial last tile.
pub(super) const MORE_THAN_A_TILE: usize = 8395;

pub(super) fn elementwise(device: &Device, dtype: DType) -> Result<()> {
    type Unary = fn(&Tensor) -> Result<Tensor>;
    type Binary = fn(&Tensor, &Tensor) -> Result<Tensor>;
    let unary: [Unary; 3] = [
        ops::neg,
        |x| ops::affine(x, 0.3, 0.7),
        |x| ops::clamp(x, 0.3, 0.7),
    ];
    let binary: [Binary; 15] = [
        |x, dy| ops::clamp_grad(x, dy, 0.3, 0.7),
        ops::add,
        ops::sub,
        ops::mul,
        ops::div,
        ops::maximum,
        ops::minimum,
        ops::maximum_grad,
        ops::eq,
        ops::ne,
        ops::lt,
        ops::le,
        ops::gt,
        ops::ge,
        |a, b| ops::where_(&ops::lt(a, b)?, a, b),
    ];
    let x = extremes(device, &[MORE_THAN_A_TILE], dtype)?;
    for op in ops::UNARY {
        (op.value)(&x)?;
        (op.grad)(&x, &x)?;
    }
    for function in unary {
        function(&x)?;
    }
    for function in binary {
        function(&x, &x)?;
    }

    // Views in which no two dims can be merged.
    for dims in 1..=5 {
        let mut view = tensor(device, &[&[4; 5][..dims], &[2]].concat(), dtype)?.slice(-1, 0..1)?;
        for dim in 0..dims {
            view = view.slice(dim as isize, 0..3)?;
        }
        ops::add(&view, &view)?;
    }
    let mut into = gradient(device, &[MORE_THAN_A_TILE])?;
    ops::add_into(&x, &mut into)?;
    ops::add_into(&x, &mut into)
}
