//! The gated activation of feed-forward blocks (Shazeer 2020).

use meshgrad_runtime::ops;

use crate::{Result, Track, Var};

/// silu(gate) * up. Saves its operand.
///
/// # Shapes
/// `gate_up` [.., 2, F] float: gate, then up; returns [.., F].
///
/// # Errors
/// As [`meshgrad_runtime::ops::swiglu`].
pub fn swiglu(gate_up: &Var) -> Result<Var> {
    let y = ops::swiglu(gate_up.value())?;
    let saved = gate_up.save();
    y.tracked([gate_up], move |dy, [dx]| {
        dx.add(|| ops::swiglu_grad(&saved.get()?, dy))
    })
}
