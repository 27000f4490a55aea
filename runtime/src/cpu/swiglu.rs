//! Kernels of SwiGLU. For row i of the result, row 2i of the operand is gate and row 2i + 1 is up.

use super::rows::{Rows, for_rows};
use crate::{Float, Number, Result, Tensor};

/// y = silu(gate) * up.
pub(crate) fn swiglu<T: Float>(gate_up: &Tensor, features: usize, y: &mut [T]) -> Result<()> {
    let gate_up = Rows::<T>::new(gate_up)?;
    for_rows!(y, features, |row, y| {
        let (gate, up) = (gate_up.row(2 * row), gate_up.row(2 * row + 1));
        for ((y, gate), up) in y.iter_mut().zip(gate).zip(up) {
            let gate = gate.wide();
            *y = T::narrow(gate * gate.sigmoid() * up.wide());
        }
    });
    Ok(())
}

/// dgate = dy up silu'(gate) and dup = dy silu(gate), where silu'(g) = s (1 + g (1 - s)) and s =
/// sigmoid(g).
pub(crate) fn swiglu_grad<T: Float>(
    gate_up: &Tensor,
    dy: &Tensor,
    features: usize,
    dgate_up: &mut [T],
) -> Result<()> {
    let (gate_up, dy) = (Rows::<T>::new(gate_up)?, Rows::<T>::new(dy)?);
    for_rows!(dgate_up, 2 * features, |row, dgate_up| {
        let (gate, up, dy) = (gate_up.row(2 * row), gate_up.row(2 * row + 1), dy.row(row));
        let (dgate, dup) = dgate_up.split_at_mut(features);
        let out = dgate.iter_mut().zip(dup);
        for ((((dgate, dup), gate), up), dy) in out.zip(gate).zip(up).zip(dy) {
            let (gate, dy) = (gate.wide(), dy.wide());
            let s = gate.sigmoid();
            *dgate = T::narrow(dy * up.wide() * (s * (T::Wide::ONE + gate * (T::Wide::ONE - s))));
            *dup = T::narrow(dy * (gate * s));
        }
    });
    Ok(())
}
