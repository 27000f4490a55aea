//! Launches of cumulative sums. Operands are contiguous.

use meshgrad_kernels::cumsum::{Cumsum, CumsumArguments};

use crate::launch::{Launcher, MAX_EXTENT, Plan, extent, float};
use crate::{Result, Tensor, UninitTensor};

/// y\[r, d\] = the sum of x\[r, ..=d\], or of x\[r, d..\] in reverse, for rows of `columns` elements.
pub(crate) fn cumsum(
    gpu: &Launcher<'_>,
    x: &Tensor,
    columns: usize,
    reverse: bool,
    y: &UninitTensor,
) -> Result<()> {
    // The step of a loop past the end must not overflow.
    let features = gpu.planned(extent("cumsum", "features", columns, MAX_EXTENT))?;
    let variant = Cumsum::new(gpu.planned(float(x.dtype()))?, reverse);
    let rows = x.elements().checked_div(columns).unwrap_or(0);
    let arguments = CumsumArguments { x: gpu.ptr(x)?, y: gpu.uninit_ptr(y)?, features };
    gpu.run(&Plan::new(variant.launch(rows as u64), variant), &arguments)
}
