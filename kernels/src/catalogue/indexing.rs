//! What indices choose: every unit, every format of indices.

use super::Family;
use crate::Variant;
use crate::copies::Unit;
use crate::elementwise::Walk;
use crate::indexing::{Gather, Ids, Select};

pub(super) fn indexing() -> Family {
    let gather = |unit, ids, far| {
        let walk = Walk::new(&[3, 50], &[50, 1], &[&[1, 3], &[far, 0]])?;
        Ok(Gather::new(unit, ids, &walk).ptx())
    };
    let select = |inner, ids, elements| Ok(Select::new(Unit::B1, ids, inner, 0, elements).0.ptx());
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
    ]
}
