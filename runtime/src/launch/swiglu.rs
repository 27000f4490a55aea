//! Launches of SwiGLU and its gradient. Operands are contiguous.

use meshgrad_kernels::swiglu::{SwiGlu, SwiGluArguments, SwiGluGrad, SwiGluGradArguments};

use crate::launch::{Launcher, MAX_EXTENT, Operand, Plan, PlanError, Rows, aligned, extent, float};
use crate::{Result, Tensor, UninitTensor};

/// The family's name in errors of kernels.
const FAMILY: &str = "swiglu";

/// y = silu(gate) up.
pub(crate) fn swiglu(gpu: &Launcher<'_>, gate_up: &Tensor, y: &UninitTensor) -> Result<()> {
    let plan = gpu.planned(forward(&Operand::of(gate_up), &Operand::uninit(y)))?;
    let arguments = SwiGluArguments {
        gate_up: gpu.ptr(gate_up)?,
        y: gpu.uninit_ptr(y)?,
        rows: plan.rows,
        features: plan.features,
    };
    gpu.run(&plan.kernel, &arguments)
}

/// The gradient with respect to gate and up.
pub(crate) fn swiglu_grad(
    gpu: &Launcher<'_>,
    gate_up: &Tensor,
    dy: &Tensor,
    dgate_up: &UninitTensor,
) -> Result<()> {
    let plan = gpu.planned(backward(&Operand::of(gate_up), &Operand::of(dy)))?;
    let arguments = SwiGluGradArguments {
        gate_up: gpu.ptr(gate_up)?,
        dy: gpu.ptr(dy)?,
        dgate_up: gpu.uninit_ptr(dgate_up)?,
        rows: plan.rows,
        features: plan.features,
    };
    gpu.run(&plan.kernel, &arguments)
}

/// The plan for a result `y` [.., F]. Only `gate_up` can be unaligned: results are new allocations.
fn forward(gate_up: &Operand, y: &Operand) -> Result<Rows<SwiGlu>, PlanError> {
    let (extents, features) = extents(y)?;
    let variant = SwiGlu::new(float(y.dtype)?, extents, aligned(&[gate_up]));
    Ok(Rows { kernel: Plan::new(variant.launch(extents), variant), rows: extents[0], features })
}

fn backward(gate_up: &Operand, dy: &Operand) -> Result<Rows<SwiGluGrad>, PlanError> {
    let (extents, features) = extents(dy)?;
    let variant = SwiGluGrad::new(float(dy.dtype)?, extents, aligned(&[gate_up, dy]));
    Ok(Rows { kernel: Plan::new(variant.launch(extents), variant), rows: extents[0], features })
}

/// The rows and features of [.., F], and the features as a kernel extent.
fn extents(x: &Operand) -> Result<([u64; 2], u32), PlanError> {
    let shape = x.layout.shape();
    let features = shape.last().copied().unwrap_or(1);
    let rows = shape.elements().checked_div(features).unwrap_or(0);
    let width = extent(FAMILY, "features", features, MAX_EXTENT)?;
    Ok(([rows as u64, features as u64], width))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, Layout, Shape};

    fn operand(dtype: DType, shape: &[usize], offset: usize) -> Operand {
        let layout = Layout::contiguous(Shape::new(shape).unwrap(), offset);
        Operand { dtype, layout }
    }

    #[test]
    fn unaligned_rows_use_the_looping_kernel() {
        let dy = operand(DType::BF16, &[3, 64], 0);
        let variant = |offset| {
            let gate_up = operand(DType::BF16, &[3, 2, 64], offset);
            backward(&gate_up, &dy).unwrap().kernel.variant
        };
        assert_eq!(variant(0), variant(8));
        assert_ne!(variant(0), variant(1));
    }

    #[test]
    fn empty_inputs_launch_nothing_and_f64_is_rejected() {
        for shape in [[0, 64], [3, 0]] {
            let y = operand(DType::F32, &shape, 0);
            assert_eq!(forward(&y, &y).unwrap().kernel.launch, None);
        }
        let double = operand(DType::F64, &[3, 4], 0);
        let refused = forward(&double, &double).err();
        assert_eq!(refused, Some(PlanError::DType(DType::F64)));
    }
}
