//! Plans of the norms. Operands are contiguous.

use meshgrad_kernels::rms_norm::{
    RmsNorm, RmsNormArguments, RmsNormGradInput, RmsNormGradInputArguments, RmsNormGradWeight,
    RmsNormGradWeightArguments, SumPartials, SumPartialsArguments, rows_per_partial,
};

use crate::plan::{Launcher, Plan, aligned};
use crate::{Call, Fresh, Result, Tensor};

/// y = x w inv_rms with inv_rms = 1 / sqrt(mean(x^2) + eps), row by row.
pub(crate) fn rms_norm(
    gpu: &Launcher<'_>,
    [x, w]: [&Tensor; 2],
    eps: f64,
    y: &Fresh,
    inv_rms: &Fresh,
) -> Result<()> {
    let arguments = RmsNormArguments {
        x: x.address()?,
        w: w.address()?,
        y: y.address()?,
        inv_rms: inv_rms.address()?,
        rows: inv_rms.shape().elements() as u64,
        features: gpu.u32("features", w.elements())?,
        eps: eps as f32,
    };
    let aligned = aligned(&[arguments.x, arguments.w, arguments.y]);
    let variant = RmsNorm::new(gpu.float(x.dtype())?, w.elements(), aligned);
    let plan = Plan {
        launch: variant.launch(arguments.rows),
        variant,
    };
    gpu.launch(&plan, &arguments.arguments())
}

/// dx = inv_rms (dy w - x inv_rms^2 mean(dy w x)), row by row.
pub(crate) fn rms_norm_grad_input(
    gpu: &Launcher<'_>,
    [dy, x, w, inv_rms]: [&Tensor; 4],
    dx: &Fresh,
) -> Result<()> {
    let arguments = RmsNormGradInputArguments {
        dy: dy.address()?,
        x: x.address()?,
        w: w.address()?,
        inv_rms: inv_rms.address()?,
        dx: dx.address()?,
        rows: inv_rms.elements() as u64,
        features: gpu.u32("features", w.elements())?,
    };
    let aligned = aligned(&[arguments.dy, arguments.x, arguments.w, arguments.dx]);
    let variant = RmsNormGradInput::new(gpu.float(x.dtype())?, w.elements(), aligned);
    let plan = Plan {
        launch: variant.launch(arguments.rows),
        variant,
    };
    gpu.launch(&plan, &arguments.arguments())
}

/// How many partial sums of a weight's gradient there are for `rows` rows.
fn partials(rows: usize) -> usize {
    rows.div_ceil(rows_per_partial(rows as u64) as usize)
}

/// Memory for the partial sums of [`rms_norm_grad_weight`].
pub(crate) fn workspace(call: &Call, rows: usize, features: usize) -> Result<Fresh> {
    call.workspace(partials(rows) * features, crate::DType::F32)
}

/// dw = sum over rows of dy x inv_rms, added to `dw` unless that is `empty`: blocks of rows into
/// `workspace`, and those in order.
pub(crate) fn rms_norm_grad_weight(
    gpu: &Launcher<'_>,
    [dy, x, inv_rms]: [&Tensor; 3],
    workspace: &Fresh,
    dw: &Tensor,
    empty: bool,
) -> Result<()> {
    let features = gpu.u32("features", dw.elements())?;
    let arguments = RmsNormGradWeightArguments {
        dy: dy.address()?,
        x: x.address()?,
        inv_rms: inv_rms.address()?,
        partials: workspace.address()?,
        rows: inv_rms.elements() as u64,
        features,
    };
    let aligned = aligned(&[arguments.dy, arguments.x, arguments.partials]);
    let variant = RmsNormGradWeight::new(gpu.float(x.dtype())?, dw.elements(), aligned);
    let plan = Plan {
        launch: variant.launch(arguments.rows, features),
        variant,
    };
    gpu.launch(&plan, &arguments.arguments())?;

    let variant = SumPartials::new(!empty);
    let plan = Plan {
        launch: variant.launch(features),
        variant,
    };
    let arguments = SumPartialsArguments {
        partials: arguments.partials,
        to: dw.address_to_write(gpu.op())?,
        rows: partials(inv_rms.elements()) as u64,
        features,
    };
    gpu.launch(&plan, &arguments.arguments())
}
