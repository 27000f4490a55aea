//! Launches of RMS norm fused with rotary position embedding, per head. Heads and tables may be
//! views, as in [`rope`](super::rope).

use meshgrad_kernels::column_sums::{SumPartials, SumPartialsArguments, rows_per_partial};
use meshgrad_kernels::norm_rope::{
    NormRope, NormRopeArguments, NormRopeGradInput, NormRopeGradInputArguments, NormRopeGradWeight,
    NormRopeGradWeightArguments,
};

use super::rope::{RotatedHeads, format, head_strides, is_aligned};
use crate::core::arguments::rope::Angles;
use crate::launch::{Launcher, Operand, Plan, PlanError, float};
use crate::{DType, Result, Tensor, UninitTensor};

/// y = rotated(x w inv_rms) with inv_rms = 1 / sqrt(mean(x^2) + eps), per head.
pub(crate) fn norm_rope(
    gpu: &Launcher<'_>,
    [x, w]: [&Tensor; 2],
    angles: &Angles<'_>,
    eps: f64,
    [y, inv_rms]: [&UninitTensor; 2],
) -> Result<()> {
    let rotated = gpu.planned(rotated(x, angles))?;
    let aligned = rotated.aligned && Operand::of(w).is_aligned();
    let dtype = gpu.planned(float(x.dtype()))?;
    let variant = NormRope::new(dtype, format(angles.style), &rotated.heads, aligned);
    let arguments = NormRopeArguments {
        x: gpu.ptr(x)?,
        w: gpu.ptr(w)?,
        cos: gpu.ptr(angles.cos)?,
        sin: gpu.ptr(angles.sin)?,
        y: gpu.uninit_ptr(y)?,
        inv_rms: gpu.uninit_ptr(inv_rms)?,
        heads: rotated.heads,
        eps: eps as f32,
        of_x: rotated.of_x,
        of_cos: rotated.of_tables[0],
        of_sin: rotated.of_tables[1],
    };
    let launch = variant.launch(&rotated.heads);
    gpu.run(&Plan { variant, launch }, &arguments)
}

/// dx = inv_rms (dz w - x inv_rms^2 mean(dz w x)) with dz = dy rotated back, per head.
pub(crate) fn norm_rope_grad_input(
    gpu: &Launcher<'_>,
    [dy, x, w, inv_rms]: [&Tensor; 4],
    angles: &Angles<'_>,
    dx: &UninitTensor,
) -> Result<()> {
    let rotated = gpu.planned(rotated(x, angles))?;
    let dy_aligned = gpu.planned(is_aligned(&Operand::of(dy)))?;
    let aligned = rotated.aligned && dy_aligned && Operand::of(w).is_aligned();
    let dtype = gpu.planned(float(x.dtype()))?;
    let variant = NormRopeGradInput::new(dtype, format(angles.style), &rotated.heads, aligned);
    let arguments = NormRopeGradInputArguments {
        dy: gpu.ptr(dy)?,
        x: gpu.ptr(x)?,
        w: gpu.ptr(w)?,
        inv_rms: gpu.ptr(inv_rms)?,
        cos: gpu.ptr(angles.cos)?,
        sin: gpu.ptr(angles.sin)?,
        dx: gpu.uninit_ptr(dx)?,
        heads: rotated.heads,
        of_dy: head_strides(&Operand::of(dy)),
        of_x: rotated.of_x,
        of_cos: rotated.of_tables[0],
        of_sin: rotated.of_tables[1],
    };
    let launch = variant.launch(&rotated.heads);
    gpu.run(&Plan { variant, launch }, &arguments)
}

/// The plan of the gradient of the weight.
#[derive(Debug)]
pub(crate) struct GradWeight {
    partials: Plan<NormRopeGradWeight>,
    sum: Plan<SumPartials>,
    rotated: RotatedHeads,
    /// Partial sums per feature.
    lines: u64,
}

impl GradWeight {
    /// The gradient from `dy` and `x`. It overwrites `dw` if `dw` is `empty`.
    pub(crate) fn plan(
        [dy, x]: [&Tensor; 2],
        angles: &Angles<'_>,
        empty: bool,
    ) -> Result<GradWeight, PlanError> {
        let rotated = rotated(x, angles)?;
        let aligned = rotated.aligned && is_aligned(&Operand::of(dy))?;
        let (dtype, heads) = (float(x.dtype())?, &rotated.heads);
        let partials = NormRopeGradWeight::new(dtype, format(angles.style), heads, aligned);
        let sum = SumPartials::new(!empty);
        let rows = u64::from(heads.rows);
        Ok(GradWeight {
            partials: Plan::new(partials.launch(heads), partials),
            sum: Plan::new(sum.launch(heads.features), sum),
            lines: rows.div_ceil(rows_per_partial(rows)),
            rotated,
        })
    }

    /// The elements and dtype of its workspace.
    pub(crate) fn workspace(&self) -> (usize, DType) {
        let features = self.rotated.heads.features as usize;
        (self.lines as usize * features, DType::F32)
    }
}

/// dw += (or =, if `dw` is `empty`) the sum over heads of dz x inv_rms with dz = dy rotated back.
/// The first kernel writes the sums of blocks of heads to `workspace`, the second adds them in
/// order.
pub(crate) fn norm_rope_grad_weight(
    gpu: &Launcher<'_>,
    plan: &GradWeight,
    [dy, x, inv_rms]: [&Tensor; 3],
    angles: &Angles<'_>,
    workspace: &UninitTensor,
    dw: &Tensor,
) -> Result<()> {
    let partials = gpu.uninit_ptr(workspace)?;
    let rotated = &plan.rotated;
    let arguments = NormRopeGradWeightArguments {
        dy: gpu.ptr(dy)?,
        x: gpu.ptr(x)?,
        inv_rms: gpu.ptr(inv_rms)?,
        cos: gpu.ptr(angles.cos)?,
        sin: gpu.ptr(angles.sin)?,
        partials,
        heads: rotated.heads,
        rows_per_partial: rows_per_partial(rotated.heads.rows.into()) as u32,
        of_dy: head_strides(&Operand::of(dy)),
        of_x: rotated.of_x,
        of_cos: rotated.of_tables[0],
        of_sin: rotated.of_tables[1],
    };
    let to = gpu.mut_ptr(dw)?;
    gpu.run(&plan.partials, &arguments)?;

    let arguments = SumPartialsArguments {
        partials: partials.written(),
        to,
        rows: plan.lines,
        features: rotated.heads.features,
    };
    gpu.run(&plan.sum, &arguments)
}

fn rotated(x: &Tensor, angles: &Angles<'_>) -> Result<RotatedHeads, PlanError> {
    RotatedHeads::new(&Operand::of(x), [angles.cos, angles.sin].map(Operand::of))
}
