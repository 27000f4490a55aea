//! SwiGLU, the gated linear unit with a silu gate (Shazeer 2020), without its matrix products.

use super::dense_rows;
use crate::cpu::swiglu as kernels;
use crate::launch::swiglu as launch;
use crate::{Result, Signature, Tensor, for_float};

static SWIGLU: Signature = Signature::new("swiglu", "gate_up: F[.. 2 f] -> y: F[.. f]", 5);
static SWIGLU_GRAD: Signature =
    Signature::new("swiglu_grad", "gate_up: F[.. 2 f], dy: F[.. f] -> dgate_up: F[.. 2 f]", 11)
        .linear_in(&["dy"]);

pub(super) static SIGNATURES: &[&Signature] = &[&SWIGLU, &SWIGLU_GRAD];

/// silu(gate) * up, with gate = `gate_up`[.., 0, :] and up = `gate_up`[.., 1, :].
///
/// # Shapes
/// `gate_up` [.., 2, F], float; returns [.., F].
pub fn swiglu(gate_up: &Tensor) -> Result<Tensor> {
    let mut call = SWIGLU.call(&[gate_up])?;
    let gate_up = dense_rows(gate_up)?;
    let mut y = call.output(0)?;
    let features = call.extent("f");
    match call.device().is_gpu() {
        true => call.launch(|gpu| launch::swiglu(gpu, &gate_up, &y)),
        false => call.compute(|| {
            for_float!(gate_up.dtype(), T => {
                kernels::swiglu::<T>(&gate_up, features, y.slice()?)
            })
        }),
    }?;
    Ok(y.finish())
}

/// The gradient of [`swiglu`] with respect to gate and up, in one pass.
///
/// # Shapes
/// `gate_up` [.., 2, F], `dy` [.., F] of one float dtype; returns [.., 2, F].
pub fn swiglu_grad(gate_up: &Tensor, dy: &Tensor) -> Result<Tensor> {
    let mut call = SWIGLU_GRAD.call(&[gate_up, dy])?;
    let (gate_up, dy) = (dense_rows(gate_up)?, dense_rows(dy)?);
    let mut dgate_up = call.output(0)?;
    let features = call.extent("f");
    match call.device().is_gpu() {
        true => call.launch(|gpu| launch::swiglu_grad(gpu, &gate_up, &dy, &dgate_up)),
        false => call.compute(|| {
            for_float!(dy.dtype(), T => {
                kernels::swiglu_grad::<T>(&gate_up, &dy, features, dgate_up.slice()?)
            })
        }),
    }?;
    Ok(dgate_up.finish())
}
