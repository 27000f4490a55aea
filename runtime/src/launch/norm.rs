//! Launches of norms. Operands are contiguous.

use meshgrad_kernels::rms_norm::{
    AddRmsNorm, AddRmsNormArguments, AddRmsNormGradInput, AddRmsNormGradInputArguments, RmsNorm,
    RmsNormArguments, RmsNormGradInput, RmsNormGradInputArguments, RmsNormGradWeight,
    RmsNormGradWeightArguments, SumPartials, SumPartialsArguments, rows_per_partial,
};

use crate::launch::{Launcher, MAX_EXTENT, Operand, Plan, PlanError, Rows, aligned, extent, float};
use crate::{DType, Result, Tensor, UninitTensor};

/// The family's name in errors of kernels.
const FAMILY: &str = "rms_norm";

/// y = x w inv_rms with inv_rms = 1 / sqrt(mean(x^2) + eps), per row.
pub(crate) fn rms_norm(
    gpu: &Launcher<'_>,
    [x, w]: [&Tensor; 2],
    eps: f64,
    y: &UninitTensor,
    inv_rms: &UninitTensor,
) -> Result<()> {
    let rows = inv_rms.shape().elements();
    let plan = gpu.planned(forward(&Operand::of(x), &Operand::of(w), rows))?;
    let arguments = RmsNormArguments {
        x: gpu.ptr(x)?,
        w: gpu.ptr(w)?,
        y: gpu.uninit_ptr(y)?,
        inv_rms: gpu.uninit_ptr(inv_rms)?,
        rows: plan.rows,
        features: plan.features,
        eps: eps as f32,
    };
    gpu.run(&plan.kernel, &arguments)
}

/// dx = inv_rms (dy w - x inv_rms^2 mean(dy w x)), per row.
pub(crate) fn rms_norm_grad_input(
    gpu: &Launcher<'_>,
    [dy, x, w, inv_rms]: [&Tensor; 4],
    dx: &UninitTensor,
) -> Result<()> {
    let operands = [dy, x, w].map(Operand::of);
    let plan = gpu.planned(grad_input(&operands, inv_rms.elements()))?;
    let arguments = RmsNormGradInputArguments {
        dy: gpu.ptr(dy)?,
        x: gpu.ptr(x)?,
        w: gpu.ptr(w)?,
        inv_rms: gpu.ptr(inv_rms)?,
        dx: gpu.uninit_ptr(dx)?,
        rows: plan.rows,
        features: plan.features,
    };
    gpu.run(&plan.kernel, &arguments)
}

/// dw += (or =, if `dw` is `empty`) the sum over rows of dy x inv_rms. The first kernel writes the
/// sums of blocks of rows to `workspace`, the second adds them in order.
pub(crate) fn rms_norm_grad_weight(
    gpu: &Launcher<'_>,
    plan: &GradWeight,
    [dy, x, inv_rms]: [&Tensor; 3],
    workspace: &UninitTensor,
    dw: &Tensor,
) -> Result<()> {
    let partials = gpu.uninit_ptr(workspace)?;
    let arguments = RmsNormGradWeightArguments {
        dy: gpu.ptr(dy)?,
        x: gpu.ptr(x)?,
        inv_rms: gpu.ptr(inv_rms)?,
        partials,
        rows: plan.rows,
        rows_per_partial: rows_per_partial(plan.rows),
        features: plan.features,
    };
    let to = gpu.mut_ptr(dw)?;
    gpu.run(&plan.partials, &arguments)?;

    let arguments = SumPartialsArguments {
        partials: partials.written(),
        to,
        rows: plan.lines,
        features: plan.features,
    };
    gpu.run(&plan.sum, &arguments)
}

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

fn forward(x: &Operand, w: &Operand, rows: usize) -> Result<Rows<RmsNorm>, PlanError> {
    let features = w.layout.shape().elements();
    let variant = RmsNorm::new(float(x.dtype)?, features, aligned(&[x, w]));
    Ok(Rows {
        kernel: Plan::new(variant.launch(rows as u64), variant),
        rows: rows as u64,
        features: extent(FAMILY, "features", features, MAX_EXTENT)?,
    })
}

fn grad_input([dy, x, w]: &[Operand; 3], rows: usize) -> Result<Rows<RmsNormGradInput>, PlanError> {
    let features = w.layout.shape().elements();
    let variant = RmsNormGradInput::new(float(x.dtype)?, features, aligned(&[dy, x, w]));
    Ok(Rows {
        kernel: Plan::new(variant.launch(rows as u64), variant),
        rows: rows as u64,
        features: extent(FAMILY, "features", features, MAX_EXTENT)?,
    })
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

/// The plan of the gradient of the weight.
#[derive(Debug)]
pub(crate) struct GradWeight {
    partials: Plan<RmsNormGradWeight>,
    sum: Plan<SumPartials>,
    rows: u64,
    /// Partial sums per feature.
    lines: u64,
    features: u32,
}

impl GradWeight {
    /// The gradient from `dy` and `x` with `rows` rows. It overwrites `dw` if `dw` is `empty`.
    pub(crate) fn plan(
        [dy, x]: [Operand; 2],
        rows: usize,
        features: usize,
        empty: bool,
    ) -> Result<GradWeight, PlanError> {
        let width = extent(FAMILY, "features", features, MAX_EXTENT)?;
        let partials = RmsNormGradWeight::new(float(x.dtype)?, features, aligned(&[&dy, &x]));
        let sum = SumPartials::new(!empty);
        let rows = rows as u64;
        Ok(GradWeight {
            partials: Plan::new(partials.launch(rows, width), partials),
            sum: Plan::new(sum.launch(width), sum),
            rows,
            lines: rows.div_ceil(rows_per_partial(rows)),
            features: width,
        })
    }

    /// The elements and dtype of its workspace.
    pub(crate) fn workspace(&self) -> (usize, DType) {
        (self.lines as usize * self.features as usize, DType::F32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Layout, Shape};

    fn operand(dtype: DType, shape: &[usize], offset: usize) -> Operand {
        let layout = Layout::contiguous(Shape::new(shape).unwrap(), offset);
        Operand { dtype, layout }
    }

    #[test]
    fn unaligned_rows_use_the_looping_kernel() {
        let w = operand(DType::F32, &[64], 0);
        let variant = |offset| {
            let x = operand(DType::F32, &[6, 64], offset);
            forward(&x, &w, 6).unwrap().kernel.variant
        };
        assert_eq!(variant(0), variant(4));
        assert_eq!(
            variant(0),
            RmsNorm::new(meshgrad_kernels::Dtype::F32, 64, true)
        );
        assert_eq!(
            variant(1),
            RmsNorm::new(meshgrad_kernels::Dtype::F32, 64, false)
        );
    }

    #[test]
    fn the_workspace_has_one_row_per_block_of_rows() {
        let x = operand(DType::BF16, &[1000, 96], 0);
        let plan = GradWeight::plan([x, x], 1000, 96, true).unwrap();
        assert_eq!(plan.workspace(), (1000usize.div_ceil(64) * 96, DType::F32));
        assert_eq!(plan.sum.variant, SumPartials::new(false));

        let none = operand(DType::BF16, &[0, 96], 0);
        let plan = GradWeight::plan([none, none], 0, 96, true).unwrap();
        assert_eq!((plan.workspace().0, plan.partials.launch), (0, None));
        assert!(plan.sum.launch.is_some(), "an empty sum is written");

        let refused = GradWeight::plan([x, operand(DType::F64, &[2, 3], 0)], 2, 3, true);
        assert_eq!(refused.err(), Some(PlanError::DType(DType::F64)));
    }
}
