//! What indices choose: every unit, every format of indices.

use super::Family;
use crate::copies::Unit;
use crate::elementwise::Walk;
use crate::indexing::{Gather, Ids, Keys, Pass, Select, Starts, SumRows};
use crate::{Dtype, Variant};

pub(super) fn indexing() -> Family {
    let gather = |unit, ids, far| {
        let walk = Walk::new(&[3, 50], &[50, 1], &[&[1, 3], &[far, 0]])?;
        Ok(Gather::new(unit, ids, &walk).ptx())
    };
    let select = |inner, ids, elements| Ok(Select::new(Unit::B1, ids, inner, 0, elements).0.ptx());
    let keys = |ids, step| {
        let walk = Walk::new(&[50], &[1], &[&[step], &[0]])?;
        Ok(Keys::new(ids, &walk).ptx())
    };
    let sum = |from, to, inner, every| Ok(SumRows::new(from, to, inner, true, every).ptx());
    let (f32, bf16) = (Dtype::F32, Dtype::Bf16);
    vec![
        gather(Unit::B1, Ids::I64, 7),
        gather(Unit::B2, Ids::I32, 7),
        gather(Unit::B4, Ids::U32, 7),
        gather(Unit::B8, Ids::I64, 7),
        gather(Unit::B4, Ids::I32, 1 << 40),
        select(1, Ids::I64, 100),
        select(2, Ids::I32, 100),
        select(4, Ids::U32, 100),
        select(8, Ids::I64, 100),
        select(16, Ids::I64, 100),
        select(16, Ids::I32, 1 << 40),
        keys(Ids::I64, 1),
        keys(Ids::U32, 1 << 40),
        Ok(Pass::Count.ptx()),
        Ok(Pass::Scan.ptx()),
        Ok(Pass::Place.ptx()),
        Ok(Starts.ptx()),
        sum(f32, f32, 64, true),
        sum(f32, f32, 64, false),
        sum(bf16, f32, 64, false),
        sum(bf16, bf16, 64, true),
        sum(bf16, f32, 7, true),
        sum(f32, f32, 1, false),
    ]
}
