//! Launches of index_select and gather.

use meshgrad_kernels::elementwise::IterationSpace;
use meshgrad_kernels::indexing::{
    Gather, GatherArguments, IndexDtype, IndexSelect, IndexSelectArguments, IndexedDim,
};

use super::copies::unit;
use crate::core::arguments::indexed::IndexRange;
use crate::launch::{Launcher, Operand, Plan, PlanError};
use crate::{DType, Layout, Result, Tensor, UninitTensor};

/// y\[o, j, ..\] = x\[o, ids\[j\], ..\] along dim `dim`, of which x has the indices `range`, of
/// contiguous tensors.
pub(crate) fn select(
    gpu: &Launcher<'_>,
    x: &Tensor,
    (dim, range): (usize, IndexRange),
    ids: &Tensor,
    y: &UninitTensor,
) -> Result<()> {
    let operand = Operand::of(x);
    let plan = gpu.planned(selecting(&operand, dim, ids.dtype(), ids.elements()))?;
    let arguments = IndexSelectArguments {
        x: gpu.ptr(x)?,
        ids: gpu.ptr(ids)?,
        y: gpu.uninit_ptr(y)?,
        units: plan.units,
        chosen: ids.elements() as u64,
        inner: plan.inner,
        indexed: indexed_dim(gpu, x.shape()[dim], range, plan.inner as i64),
    };
    gpu.run(&plan.kernel, &arguments)
}

/// y\[c\] = x\[c'\], where c' is c with index\[c\] as its coordinate in dim `dim`, of which x has
/// the indices `range`.
pub(crate) fn gather(
    gpu: &Launcher<'_>,
    x: &Tensor,
    (dim, range): (usize, IndexRange),
    index: &Tensor,
    y: &UninitTensor,
) -> Result<()> {
    let operands = [x, index].map(Operand::of);
    let (kernel, space) = gpu.planned(gathering(&operands, dim))?;
    let stride = x.layout().strides()[dim] as i64;
    let arguments = GatherArguments {
        x: gpu.ptr(x)?,
        index: gpu.ptr(index)?,
        y: gpu.uninit_ptr(y)?,
        space,
        indexed: indexed_dim(gpu, x.shape()[dim], range, stride),
    };
    gpu.run(&kernel, &arguments)
}

/// The dim of which a tensor has `extent` indices, the given `range`.
pub(super) fn indexed_dim(
    gpu: &Launcher<'_>,
    extent: usize,
    range: IndexRange,
    stride: i64,
) -> IndexedDim {
    IndexedDim {
        extent: extent as u64,
        first: range.first as u64,
        total: range.total as u64,
        stride,
        faults: gpu.fault_site(range.total),
    }
}

/// The plan of [`select`]: `units` copy units, `inner` per row.
#[derive(Debug)]
struct Rows {
    kernel: Plan<IndexSelect>,
    units: u64,
    inner: u64,
}

fn selecting(x: &Operand, dim: usize, ids: DType, chosen: usize) -> Result<Rows, PlanError> {
    let shape = x.layout.shape();
    let outer: usize = shape[..dim].iter().product();
    let inner: usize = shape[dim + 1..].iter().product();
    let start = x.dtype.bytes(x.layout.offset()) as u64;
    let most = outer * inner * chosen.max(shape[dim]);
    let bytes = x.dtype.bytes(inner) as u64;
    let (variant, unit) = IndexSelect::new(unit(x.dtype), format(ids)?, bytes, start, most as u64);
    let inner = bytes / u64::from(unit.bytes());
    let units = IndexSelect::units([outer as u64, chosen as u64, inner]);
    let launch = variant.launch(units);
    Ok(Rows { kernel: Plan { variant, launch }, units, inner })
}

fn gathering(
    [x, index]: &[Operand; 2],
    dim: usize,
) -> Result<(Plan<Gather>, IterationSpace), PlanError> {
    let space = around(&x.layout, dim, &index.layout)?;
    let variant = Gather::new(unit(x.dtype), format(index.dtype)?, &space);
    let launch = variant.launch(space.elements());
    Ok((Plan { variant, launch }, space))
}

/// The iteration space of an index tensor, in three layouts: contiguous, that of the index tensor,
/// and that of the indexed tensor with stride 0 in `dim`.
pub(super) fn around(
    indexed: &Layout,
    dim: usize,
    index: &Layout,
) -> Result<IterationSpace, PlanError> {
    let dense = Layout::contiguous(*index.shape(), 0);
    let mut around = [0; crate::MAX_DIMS];
    let around = &mut around[..indexed.strides().len()];
    around.copy_from_slice(indexed.strides());
    around[dim] = 0;
    let operands = [index.strides(), around];
    Ok(IterationSpace::new(index.shape(), dense.strides(), &operands)?)
}

pub(super) fn format(ids: DType) -> Result<IndexDtype, PlanError> {
    match ids {
        DType::I64 => Ok(IndexDtype::I64),
        DType::I32 => Ok(IndexDtype::I32),
        DType::U32 => Ok(IndexDtype::U32),
        other => Err(PlanError::DType(other)),
    }
}

#[cfg(test)]
mod tests {
    use meshgrad_kernels::Variant;

    use super::*;
    use crate::Shape;

    fn operand(dtype: DType, shape: &[usize], offset: usize) -> Operand {
        let layout = Layout::contiguous(Shape::new(shape).unwrap(), offset);
        Operand { dtype, layout }
    }

    #[test]
    fn rows_move_in_units_that_fit() {
        let name = |inner, offset| {
            let x = operand(DType::BF16, &[9, inner], offset);
            selecting(&x, 0, DType::I32, 4).unwrap().kernel.variant.entry()
        };
        assert_eq!(name(64, 0), "index_select_b16_i32");
        assert_eq!(name(64, 4), "index_select_b8_i32");
        assert_eq!(name(6, 0), "index_select_b4_i32");
        assert_eq!(name(7, 0), "index_select_b2_i32");
    }

    #[test]
    fn empty_selections_launch_nothing_and_u8_indices_are_rejected() {
        let x = operand(DType::F32, &[9, 4], 0);
        assert_eq!(selecting(&x, 0, DType::I64, 0).unwrap().kernel.launch, None);
        let refused = selecting(&x, 0, DType::U8, 3).err();
        assert_eq!(refused, Some(PlanError::DType(DType::U8)));
    }
}
