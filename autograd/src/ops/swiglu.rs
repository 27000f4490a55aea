//! The gated activation of feed-forward blocks (Shazeer 2020).

use meshgrad_runtime::ops;

use crate::{Operand, Result, Track};

/// silu(gate) * up. Saves its operand.
///
/// # Shapes
/// `gate_up` [.., 2, F] float: gate, then up; returns [.., F].
///
/// # Errors
/// As [`meshgrad_runtime::ops::swiglu`].
pub fn swiglu<V: Operand>(gate_up: &V) -> Result<V> {
    let y = ops::swiglu(gate_up.value())?;
    let saved = gate_up.save();
    y.tracked([gate_up], move |dy, [dx]| dx.add(|| ops::swiglu_grad(&saved.get()?, dy)))
}
