//! Conversions of operands for row kernels, and of accumulators to another dtype.

use crate::{Accumulator, DType, Result, Tensor, ops};

/// `x` if its last dim is contiguous (on a GPU: if `x` is contiguous), else a copy.
pub(crate) fn dense_rows(x: &Tensor) -> Result<Tensor> {
    match x.device().is_gpu() {
        true => ops::contiguous(x),
        false => dense_last(x),
    }
}

/// `x` if its last dim is contiguous, else a copy.
pub(crate) fn dense_last(x: &Tensor) -> Result<Tensor> {
    let dense = match (x.shape().last(), x.layout().strides().last()) {
        (Some(extent), Some(stride)) => *extent <= 1 || *stride == 1,
        _ => true,
    };
    match dense {
        true => Ok(x.clone()),
        false => ops::copy(x),
    }
}

/// Calls `add` with an accumulator of `dtype`. This is `into` itself if it has that dtype, else a
/// temporary accumulator that is then added to `into` and rounded once.
pub(crate) fn summed_in(
    dtype: DType,
    into: &mut Accumulator,
    add: impl FnOnce(&mut Accumulator) -> Result<()>,
) -> Result<()> {
    if into.buffer().dtype() == dtype {
        return add(into);
    }
    let mut sum = into.temporary(dtype)?;
    add(&mut sum)?;
    ops::add_into(sum.total()?, into)
}
