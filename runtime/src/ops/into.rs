//! Bringing operands into the form that row kernels need, and sums into the dtype that others want.

use crate::{Accumulator, DType, Result, Tensor, ops};

/// `x` if the elements of its last dim lie side by side (all elements, on a GPU), else a copy.
pub(crate) fn dense_rows(x: &Tensor) -> Result<Tensor> {
    match x.device().is_gpu() {
        true => ops::contiguous(x),
        false => dense_last(x),
    }
}

/// `x` if the elements of its last dim lie side by side, else a copy.
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

/// Lets `add` add to `into`, which it gets in `dtype`: where `into` has another, the sum is made in
/// a buffer of its own and rounded once into it.
pub(crate) fn summed_in(
    dtype: DType,
    into: &mut Accumulator,
    add: impl FnOnce(&mut Accumulator) -> Result<()>,
) -> Result<()> {
    if into.buffer().dtype() == dtype {
        return add(into);
    }
    let buffer = into.buffer();
    let mut sum = Accumulator::new(buffer.device(), *buffer.shape(), dtype)?;
    add(&mut sum)?;
    ops::add_into(sum.total()?, into)
}
