//! Plans of the norm of heads and their turn, and their launches. Heads and tables are read as they
//! lie, as by [`rope`](super::rope).

use meshgrad_kernels::norm_rope::{
    NormRope, NormRopeArguments, NormRopeGradInput, NormRopeGradInputArguments, NormRopeGradWeight,
    NormRopeGradWeightArguments,
};
use meshgrad_kernels::rms_norm::{SumPartials, SumPartialsArguments, rows_per_partial};

use super::rope::{Turned, format, head_strides, is_aligned};
use crate::cpu::norm_rope::Angles;
use crate::plan::{Launcher, Operand, Plan, Unplanned, float};
use crate::{DType, Fresh, Result, Tensor};

/// y = turned(x w inv_rms) with inv_rms = 1 / sqrt(mean(x^2) + eps), head by head.
pub(crate) fn norm_rope(
    gpu: &Launcher<'_>,
    [x, w]: [&Tensor; 2],
    angles: &Angles<'_>,
    eps: f64,
    [y, inv_rms]: [&Fresh; 2],
) -> Result<()> {
    let turned = gpu.planned(turned(x, angles))?;
    let aligned = turned.aligned && Operand::of(w).is_aligned();
    let dtype = gpu.planned(float(x.dtype()))?;
    let variant = NormRope::new(dtype, format(angles.style), &turned.heads, aligned);
    let arguments = NormRopeArguments {
        x: gpu.read(x)?,
        w: gpu.read(w)?,
        cos: gpu.read(angles.cos)?,
        sin: gpu.read(angles.sin)?,
        y: gpu.make(y)?,
        inv_rms: gpu.make(inv_rms)?,
        heads: turned.heads,
        eps: eps as f32,
        of_x: turned.of_x,
        of_tables: turned.of_tables,
    };
    let launch = variant.launch(&turned.heads);
    gpu.run(&Plan { variant, launch }, &arguments.arguments())
}

/// dx = inv_rms (dz w - x inv_rms^2 mean(dz w x)) with dz = dy turned back, head by head.
pub(crate) fn norm_rope_grad_input(
    gpu: &Launcher<'_>,
    [dy, x, w, inv_rms]: [&Tensor; 4],
    angles: &Angles<'_>,
    dx: &Fresh,
) -> Result<()> {
    let turned = gpu.planned(turned(x, angles))?;
    let dy_aligned = gpu.planned(is_aligned(&Operand::of(dy)))?;
    let aligned = turned.aligned && dy_aligned && Operand::of(w).is_aligned();
    let dtype = gpu.planned(float(x.dtype()))?;
    let variant = NormRopeGradInput::new(dtype, format(angles.style), &turned.heads, aligned);
    let arguments = NormRopeGradInputArguments {
        dy: gpu.read(dy)?,
        x: gpu.read(x)?,
        w: gpu.read(w)?,
        inv_rms: gpu.read(inv_rms)?,
        cos: gpu.read(angles.cos)?,
        sin: gpu.read(angles.sin)?,
        dx: gpu.make(dx)?,
        heads: turned.heads,
        of_heads: [head_strides(&Operand::of(dy)), turned.of_x],
        of_tables: turned.of_tables,
    };
    let launch = variant.launch(&turned.heads);
    gpu.run(&Plan { variant, launch }, &arguments.arguments())
}

/// What the gradient of the weight asks of a GPU.
#[derive(Debug)]
pub(crate) struct GradWeight {
    partials: Plan<NormRopeGradWeight>,
    sum: Plan<SumPartials>,
    turned: Turned,
    /// Partial sums of each feature.
    lines: u64,
}

impl GradWeight {
    /// The gradient from `dy` and `x`, added to what is there unless that is `empty`.
    pub(crate) fn plan(
        [dy, x]: [&Tensor; 2],
        angles: &Angles<'_>,
        empty: bool,
    ) -> Result<GradWeight, Unplanned> {
        let turned = turned(x, angles)?;
        let aligned = turned.aligned && is_aligned(&Operand::of(dy))?;
        let (dtype, heads) = (float(x.dtype())?, &turned.heads);
        let partials = NormRopeGradWeight::new(dtype, format(angles.style), heads, aligned);
        let sum = SumPartials::new(!empty);
        let rows = u64::from(heads.rows);
        Ok(GradWeight {
            partials: Plan {
                launch: partials.launch(heads),
                variant: partials,
            },
            sum: Plan {
                launch: sum.launch(heads.features),
                variant: sum,
            },
            lines: rows.div_ceil(rows_per_partial(rows)),
            turned,
        })
    }

    /// The elements and dtype of the memory that it needs beside its operands.
    pub(crate) fn workspace(&self) -> (usize, DType) {
        let features = self.turned.heads.features as usize;
        (self.lines as usize * features, DType::F32)
    }
}

/// dw = sum over heads of dz x inv_rms, added to `dw` unless that is `empty`: blocks of heads into
/// `workspace`, which is as large as the plan says, and those in order.
pub(crate) fn norm_rope_grad_weight(
    gpu: &Launcher<'_>,
    plan: &GradWeight,
    [dy, x, inv_rms]: [&Tensor; 3],
    angles: &Angles<'_>,
    workspace: &Fresh,
    dw: &Tensor,
) -> Result<()> {
    let partials = gpu.make(workspace)?;
    let turned = &plan.turned;
    let arguments = NormRopeGradWeightArguments {
        dy: gpu.read(dy)?,
        x: gpu.read(x)?,
        inv_rms: gpu.read(inv_rms)?,
        cos: gpu.read(angles.cos)?,
        sin: gpu.read(angles.sin)?,
        partials,
        heads: turned.heads,
        of_heads: [head_strides(&Operand::of(dy)), turned.of_x],
        of_tables: turned.of_tables,
    };
    let to = gpu.change(dw)?;
    gpu.run(&plan.partials, &arguments.arguments())?;

    let arguments = SumPartialsArguments {
        partials,
        to,
        rows: plan.lines,
        features: turned.heads.features,
    };
    gpu.run(&plan.sum, &arguments.arguments())
}

fn turned(x: &Tensor, angles: &Angles<'_>) -> Result<Turned, Unplanned> {
    Turned::new(&Operand::of(x), [angles.cos, angles.sin].map(Operand::of))
}
