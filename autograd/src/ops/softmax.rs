//! Softmax and its logarithm over the last dim. Each saves its result.

use meshgrad_runtime::ops;

use crate::{Operand, Result, Save, Track};

/// e^x / sum e^x over the last dim.
///
/// # Shapes
/// `x` [.., D] float; returns the same.
///
/// # Errors
/// As [`meshgrad_runtime::ops::softmax`].
pub fn softmax<V: Operand>(x: &V) -> Result<V> {
    let y = ops::softmax(x.value())?;
    let saved = y.save();
    y.tracked([x], move |dy, [dx]| dx.add(|| ops::softmax_grad(&saved.get()?, dy)))
}

/// x - ln sum e^x over the last dim.
///
/// # Shapes
/// `x` [.., D] float; returns the same.
///
/// # Errors
/// As [`meshgrad_runtime::ops::log_softmax`].
pub fn log_softmax<V: Operand>(x: &V) -> Result<V> {
    let y = ops::log_softmax(x.value())?;
    let saved = y.save();
    y.tracked([x], move |dy, [dx]| dx.add(|| ops::log_softmax_grad(&saved.get()?, dy)))
}
