//! Reductions over slices of a GPU, and copies of slices.

use super::operands::Operands;
use crate::{DType, Device, GpuSlice, LentMut, Result, Shape, StreamWork, TreeOp, UninitTensor};

/// Covers every dtype, and full and ragged trees.
pub(super) fn tree_reduce(source: &Operands<'_>) -> Result<()> {
    let device = source.device;
    let dtypes: &[DType] = match source.dtype {
        DType::F32 => {
            &[DType::F32, DType::F64, DType::F16, DType::I64, DType::I32, DType::U32, DType::U8]
        }
        DType::BF16 => &[DType::BF16, DType::Bool],
        other => unreachable!("launches are of f32 and bf16, not {other}"),
    };
    for dtype in dtypes {
        reduced(device, *dtype, TreeOp::Max, 3)?;
        reduced(device, *dtype, TreeOp::Min, 3)?;
        if *dtype != DType::Bool {
            reduced(device, *dtype, TreeOp::Sum, 3)?;
        }
        if dtype.is_float() {
            reduced(device, *dtype, TreeOp::Mean, 3)?;
        }
    }
    for sources in [1, 2, 8] {
        reduced(device, source.dtype, TreeOp::Sum, sources)?;
    }
    Ok(())
}

fn reduced(device: &Device, dtype: DType, op: TreeOp, sources: usize) -> Result<()> {
    let zeros = || -> Result<LentMut> {
        let mut zeros = UninitTensor::new(device, Shape::new(&[300])?, dtype)?;
        zeros.fill_zero()?;
        zeros.lend_mut("test")
    };
    let (mut work, _) = StreamWork::begin(&device.stream()?, || Ok(()))?;
    work.run(|| {
        let loans = (0..sources).map(|_| zeros()).collect::<Result<Vec<_>>>();
        let (mut loans, mut y) = (loans?, zeros()?);
        let sources = loans.iter_mut().map(|it| it.gpu_slice().as_slice().clone());
        let sources: Vec<GpuSlice<'_>> = sources.collect();
        let y = y.gpu_slice();
        y.copy_from(&sources[0])?;
        y.reduce_from(op, &sources)
    })?;
    work.finish()?.wait()
}
