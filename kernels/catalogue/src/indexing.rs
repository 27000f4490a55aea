//! Gathers, index selects and segment sums, with every unit and index dtype.

use super::Family;
use meshgrad_kernels::copies::Unit;
use meshgrad_kernels::elementwise::IterationSpace;
use meshgrad_kernels::indexing::{
    Gather, IndexDtype, IndexKeys, IndexSelect, SegmentStarts, SegmentSum,
};
use meshgrad_kernels::sort::RadixPass;
use meshgrad_kernels::{Dtype, Variant};

pub(super) fn indexing() -> Family {
    let gather = |unit, ids, far| {
        let space = IterationSpace::new(&[3, 50], &[50, 1], &[&[1, 3], &[far, 0]])?;
        Ok(Gather::new(unit, ids, &space).ptx())
    };
    let select =
        |inner, ids, elements| Ok(IndexSelect::new(Unit::B1, ids, inner, 0, elements).0.ptx());
    let keys = |ids, step| {
        let space = IterationSpace::new(&[50], &[1], &[&[step], &[0]])?;
        Ok(IndexKeys::new(ids, &space).ptx())
    };
    let sum = |from, to, inner, write_all_rows| {
        Ok(SegmentSum::new(from, to, inner, true, write_all_rows).ptx())
    };
    let (f32, bf16) = (Dtype::F32, Dtype::Bf16);
    vec![
        gather(Unit::B1, IndexDtype::I64, 7),
        gather(Unit::B2, IndexDtype::I32, 7),
        gather(Unit::B4, IndexDtype::U32, 7),
        gather(Unit::B8, IndexDtype::I64, 7),
        gather(Unit::B4, IndexDtype::I32, 1 << 40),
        select(1, IndexDtype::I64, 100),
        select(2, IndexDtype::I32, 100),
        select(4, IndexDtype::U32, 100),
        select(8, IndexDtype::I64, 100),
        select(16, IndexDtype::I64, 100),
        select(16, IndexDtype::I32, 1 << 40),
        keys(IndexDtype::I64, 1),
        keys(IndexDtype::U32, 1 << 40),
        Ok(RadixPass::Count.ptx()),
        Ok(RadixPass::Scan.ptx()),
        Ok(RadixPass::Scatter.ptx()),
        Ok(SegmentStarts.ptx()),
        sum(f32, f32, 64, true),
        sum(f32, f32, 64, false),
        sum(bf16, f32, 64, false),
        sum(bf16, bf16, 64, true),
        sum(bf16, f32, 7, true),
        sum(f32, f32, 1, false),
    ]
}
