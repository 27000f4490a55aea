//! Launches of the residual addition fused with a norm. Operands are contiguous.

use meshgrad_kernels::add_rms_norm::{
    AddRmsNorm, AddRmsNormArguments, AddRmsNormGradInput, AddRmsNormGradInputArguments,
};

use crate::launch::{Launcher, MAX_EXTENT, Operand, Plan, PlanError, Rows, aligned, extent, float};
use crate::{Result, Tensor, UninitTensor};

/// The family's name in errors of kernels.
const FAMILY: &str = "add_rms_norm";

/// h = x + b and y = h w inv_rms with inv_rms = 1 / sqrt(mean(h^2) + eps), per row.
pub(crate) fn add_rms_norm(
    gpu: &Launcher<'_>,
    [x, b, w]: [&Tensor; 3],
    eps: f64,
    [h, y, inv_rms]: [&UninitTensor; 3],
) -> Result<()> {
    let operands = [x, b, w].map(Operand::of);
    let plan = gpu.planned(add_forward(&operands, inv_rms.shape().elements()))?;
    let arguments = AddRmsNormArguments {
        x: gpu.ptr(x)?,
        b: gpu.ptr(b)?,
        w: gpu.ptr(w)?,
        h: gpu.uninit_ptr(h)?,
        y: gpu.uninit_ptr(y)?,
        inv_rms: gpu.uninit_ptr(inv_rms)?,
        rows: plan.rows,
        features: plan.features,
        eps: eps as f32,
    };
    gpu.run(&plan.kernel, &arguments)
}

/// dx = dh + inv_rms (dy w - h inv_rms^2 mean(dy w h)), per row.
pub(crate) fn add_rms_norm_grad_input(
    gpu: &Launcher<'_>,
    [dh, dy, h, w, inv_rms]: [&Tensor; 5],
    dx: &UninitTensor,
) -> Result<()> {
    let operands = [dh, dy, h, w].map(Operand::of);
    let plan = gpu.planned(add_grad_input(&operands, inv_rms.elements()))?;
    let arguments = AddRmsNormGradInputArguments {
        dh: gpu.ptr(dh)?,
        dy: gpu.ptr(dy)?,
        h: gpu.ptr(h)?,
        w: gpu.ptr(w)?,
        inv_rms: gpu.ptr(inv_rms)?,
        dx: gpu.uninit_ptr(dx)?,
        rows: plan.rows,
        features: plan.features,
    };
    gpu.run(&plan.kernel, &arguments)
}

fn add_forward([x, b, w]: &[Operand; 3], rows: usize) -> Result<Rows<AddRmsNorm>, PlanError> {
    let features = w.layout.shape().elements();
    let variant = AddRmsNorm::new(float(x.dtype)?, features, aligned(&[x, b, w]));
    Ok(Rows {
        kernel: Plan::new(variant.launch(rows as u64), variant),
        rows: rows as u64,
        features: extent(FAMILY, "features", features, MAX_EXTENT)?,
    })
}

fn add_grad_input(
    [dh, dy, h, w]: &[Operand; 4],
    rows: usize,
) -> Result<Rows<AddRmsNormGradInput>, PlanError> {
    let features = w.layout.shape().elements();
    let variant = AddRmsNormGradInput::new(float(h.dtype)?, features, aligned(&[dh, dy, h, w]));
    Ok(Rows {
        kernel: Plan::new(variant.launch(rows as u64), variant),
        rows: rows as u64,
        features: extent(FAMILY, "features", features, MAX_EXTENT)?,
    })
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
        let (b, w) = (operand(DType::F32, &[6, 64], 0), operand(DType::F32, &[64], 0));
        let variant = |offset| {
            let x = operand(DType::F32, &[6, 64], offset);
            add_forward(&[x, b, w], 6).unwrap().kernel.variant
        };
        let expected = |aligned| AddRmsNorm::new(meshgrad_kernels::Dtype::F32, 64, aligned);
        assert_eq!([0, 4, 1].map(variant), [true, true, false].map(expected));
    }
}
