//! Launches of the global norm of gradients and of gradient clipping. Operands are contiguous.

use meshgrad_kernels::global_norm::{
    ClipScale, ClipScaleArguments, GlobalNorm, GlobalNormArguments, SumSquares,
    SumSquaresArguments, partial_count,
};

use crate::launch::{Launcher, Operand, Plan, PlanError, float};
use crate::{DType, Result, Tensor, UninitTensor};

/// The number of partial sums of all `tensors`.
pub(crate) fn partials(tensors: &[&Tensor]) -> usize {
    let of = |tensor: &&Tensor| partial_count(tensor.elements() as u64) as usize;
    tensors.iter().map(of).sum()
}

/// Writes the partial sums of the squares of `x` to `partials`, starting at index `first`. Returns
/// the index after the last.
pub(crate) fn sum_squares(
    gpu: &Launcher<'_>,
    x: &Tensor,
    partials: &UninitTensor,
    first: usize,
) -> Result<usize> {
    let plan = gpu.planned(squares(&Operand::of(x)))?;
    let elements = x.elements() as u64;
    let to = gpu.uninit_ptr(partials)?.byte_add(DType::F64.bytes(first) as u64);
    let arguments = SumSquaresArguments::new(gpu.ptr(x)?, to, elements);
    gpu.run(&plan, &arguments)?;
    Ok(first + partial_count(elements) as usize)
}

/// norm = the square root of the sum of all partial sums.
pub(crate) fn norm_of_partials(
    gpu: &Launcher<'_>,
    partials: &UninitTensor,
    norm: &UninitTensor,
) -> Result<()> {
    let plan = Plan::new(GlobalNorm.launch(), GlobalNorm);
    let arguments = GlobalNormArguments {
        partials: gpu.uninit_ptr(partials)?.written(),
        norm: gpu.uninit_ptr(norm)?,
        count: partials.shape().elements() as u64,
    };
    gpu.run(&plan, &arguments)
}

/// Writes the factor that clips the gradients, and their mean norm. A `max_norm` that is not
/// positive does not clip.
pub(crate) fn clip_scale(
    gpu: &Launcher<'_>,
    [norm, weight]: [&Tensor; 2],
    max_norm: f64,
    scale: &UninitTensor,
    mean_norm: &UninitTensor,
) -> Result<()> {
    let variant = ClipScale::new(max_norm > 0.0);
    let arguments = ClipScaleArguments {
        norm: gpu.ptr(norm)?,
        weight: gpu.ptr(weight)?,
        scale: gpu.uninit_ptr(scale)?,
        mean_norm: gpu.uninit_ptr(mean_norm)?,
        max_norm,
    };
    let plan = Plan::new(variant.launch(), variant);
    gpu.run(&plan, &arguments)
}

fn squares(x: &Operand) -> Result<Plan<SumSquares>, PlanError> {
    let elements = x.layout.shape().elements() as u64;
    let variant = SumSquares::new(float(x.dtype)?, elements, x.is_aligned());
    Ok(Plan::new(variant.launch(elements), variant))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Layout, Shape};

    #[test]
    fn empty_inputs_launch_nothing_and_f64_is_rejected() {
        let operand = |dtype, elements: usize| Operand {
            dtype,
            layout: Layout::contiguous(Shape::new(&[elements]).unwrap(), 0),
        };
        assert_eq!(squares(&operand(DType::F32, 0)).unwrap().launch, None);
        let refused = squares(&operand(DType::F64, 3));
        assert_eq!(refused.err(), Some(PlanError::DType(DType::F64)));
    }
}
