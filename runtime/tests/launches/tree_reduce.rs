//! Reductions over slices of several GPUs, and copies between them.

use crate::{DType, Device, Result, Shape, StreamWork, TreeOp, UninitTensor};

/// Every dtype, and full and ragged trees.
pub(super) fn tree_reduce(device: &Device, dtype: DType) -> Result<()> {
    let dtypes: &[DType] = match dtype {
        DType::F32 => &[
            DType::F32,
            DType::F64,
            DType::F16,
            DType::I64,
            DType::I32,
            DType::U32,
            DType::U8,
        ],
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
        reduced(device, dtype, TreeOp::Sum, sources)?;
    }
    Ok(())
}

fn reduced(device: &Device, dtype: DType, op: TreeOp, sources: usize) -> Result<()> {
    let zeros = || -> Result<_> {
        let mut zeros = UninitTensor::new(device, Shape::new(&[300])?, dtype)?;
        zeros.fill_zero()?;
        Ok(zeros.lend_mut("test")?.gpu_slice())
    };
    let (mut work, _) = StreamWork::begin(&device.stream()?, || Ok(()))?;
    work.run(|| {
        let sources = (0..sources).map(|_| Ok(zeros()?.as_slice().clone()));
        let sources = sources.collect::<Result<Vec<_>>>()?;
        let y = zeros()?;
        y.copy_from(&sources[0])?;
        y.reduce_from(op, &sources)
    })?;
    work.finish()?.wait()
}
