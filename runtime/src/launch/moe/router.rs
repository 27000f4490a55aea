//! Launches of the router: the choice of experts, and its gradient.

use meshgrad_kernels::In;
use meshgrad_kernels::router::{
    RouterTopK, RouterTopKArguments, RouterTopKGrad, RouterTopKGradArguments,
};

use super::FAMILY;
use crate::launch::{Launcher, Operand, Plan, PlanError, aligned, extent, float};
use crate::{Result, Tensor, UninitTensor};

/// The top-k experts of each token, and their weights.
pub(crate) fn router_top_k(
    gpu: &Launcher<'_>,
    probabilities: &Tensor,
    bias: Option<&Tensor>,
    renormalize: bool,
    [weights, indices]: [&UninitTensor; 2],
) -> Result<()> {
    let (rows, biases) = (Operand::of(probabilities), bias.map(Operand::of));
    let plan = gpu.planned(choice(&rows, biases.as_ref(), renormalize))?;
    let top_k = extent(FAMILY, "choices", indices.shape()[1], u32::MAX);
    let [tokens, experts] = [probabilities.shape()[0], probabilities.shape()[1]];
    let arguments = RouterTopKArguments {
        probabilities: gpu.ptr(probabilities)?,
        bias: bias.map_or(Ok(In(0)), |bias| gpu.ptr(bias))?,
        weights: gpu.uninit_ptr(weights)?,
        indices: gpu.uninit_ptr(indices)?,
        tokens: tokens as u64,
        experts: experts as u32, // the plan checked that they fit
        top_k: gpu.planned(top_k)?,
    };
    gpu.run(&plan, &arguments)
}

/// The gradient with respect to the probabilities, from that of the weights.
pub(crate) fn router_top_k_grad(
    gpu: &Launcher<'_>,
    [probabilities, indices, dweights]: [&Tensor; 3],
    renormalize: bool,
    dprobabilities: &UninitTensor,
) -> Result<()> {
    let plan = gpu.planned(gradient(&Operand::uninit(dprobabilities), renormalize))?;
    let top_k = extent(FAMILY, "choices", indices.shape()[1], u32::MAX);
    let [tokens, experts] = [probabilities.shape()[0], probabilities.shape()[1]];
    let arguments = RouterTopKGradArguments {
        probabilities: gpu.ptr(probabilities)?,
        indices: gpu.ptr(indices)?,
        dweights: gpu.ptr(dweights)?,
        dprobabilities: gpu.uninit_ptr(dprobabilities)?,
        tokens: tokens as u64,
        experts: experts as u32, // the plan checked that they fit
        top_k: gpu.planned(top_k)?,
        faults: gpu.fault_site(experts),
    };
    gpu.run(&plan, &arguments)
}

fn choice(
    rows: &Operand,
    bias: Option<&Operand>,
    renormalize: bool,
) -> Result<Plan<RouterTopK>, PlanError> {
    let aligned = aligned(&[rows]) && bias.is_none_or(Operand::is_aligned);
    let flags = [bias.is_some(), renormalize];
    let variant = RouterTopK::new(float(rows.dtype)?, experts(rows)?, aligned, flags);
    Ok(Plan::new(variant.launch(tokens(rows)), variant))
}

fn gradient(rows: &Operand, renormalize: bool) -> Result<Plan<RouterTopKGrad>, PlanError> {
    let aligned = aligned(&[rows]);
    let variant = RouterTopKGrad::new(float(rows.dtype)?, experts(rows)?, aligned, renormalize);
    Ok(Plan::new(variant.launch(tokens(rows)), variant))
}

fn tokens(rows: &Operand) -> u64 {
    rows.layout.shape()[0] as u64
}

fn experts(rows: &Operand) -> Result<u32, PlanError> {
    extent(FAMILY, "experts", rows.layout.shape()[1], i32::MAX as u32)
}

#[cfg(test)]
mod tests {
    use meshgrad_kernels::Dtype;

    use super::*;
    use crate::{DType, Layout, Shape};

    fn operand(dtype: DType, shape: &[usize], offset: usize) -> Operand {
        let layout = Layout::contiguous(Shape::new(shape).unwrap(), offset);
        Operand { dtype, layout }
    }

    #[test]
    fn unaligned_rows_and_biases_are_read_element_by_element() {
        let rows = operand(DType::F32, &[5, 64], 0);
        let variant = |aligned| RouterTopK::new(Dtype::F32, 64, aligned, [true, false]);
        for (offset, expected) in [(0, variant(true)), (4, variant(true)), (1, variant(false))] {
            let bias = operand(DType::F32, &[64], offset);
            assert_eq!(choice(&rows, Some(&bias), false).unwrap().variant, expected);
        }
        let none = operand(DType::BF16, &[0, 64], 0);
        assert_eq!(choice(&none, None, true).unwrap().launch, None);
        assert_eq!(gradient(&none, true).unwrap().launch, None);
        let refused = gradient(&operand(DType::F64, &[1, 8], 0), true);
        assert_eq!(refused.err(), Some(PlanError::DType(DType::F64)));
    }
}
