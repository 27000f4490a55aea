//! Copies in every unit, transposes, fills, and casts from and to every format.

use super::Family;
use meshgrad_kernels::copies::{Arange, Cast, Copy, Fill, Format, Transpose, Unit};
use meshgrad_kernels::elementwise::IterationSpace;
use meshgrad_kernels::{Result, Variant};

/// Source and destination formats.
pub const CASTS: [[Format; 2]; 15] = [
    [Format::I64, Format::I32],
    [Format::I64, Format::F32],
    [Format::I32, Format::F16],
    [Format::I32, Format::U8],
    [Format::U32, Format::Bool],
    [Format::U8, Format::I64],
    [Format::Bool, Format::F64],
    [Format::F32, Format::I64],
    [Format::F32, Format::I32],
    [Format::F32, Format::U8],
    [Format::F16, Format::F32],
    [Format::F64, Format::Bf16],
    [Format::F64, Format::Bool],
    [Format::Bf16, Format::U32],
    [Format::F32, Format::Bool],
];

pub(super) fn copies() -> Family {
    let rows = |far| IterationSpace::new(&[5, 70], &[70, 1], &[&[far, 1]]);
    let columns = IterationSpace::new(&[5, 70], &[70, 1], &[&[1, 5]]);
    let transposed = IterationSpace::new(&[40, 70], &[70, 1], &[&[1, 40]]);
    let stack = IterationSpace::new(&[2, 40, 3, 70], &[8400, 210, 70, 1], &[&[40, 1, 80, 240]]);
    let copy = |unit, space: Result<IterationSpace>, at| Ok(Copy::new(unit, &space?, at).ptx());
    let transpose = |unit, space: &Result<IterationSpace>| {
        let space = space.clone()?;
        let (transpose, _) = Transpose::new(unit, &space).expect("a space that is transposed");
        Ok(transpose.ptx())
    };

    let mut kernels: Family =
        Unit::ALL.into_iter().map(|unit| copy(unit, rows(100), false)).collect();
    kernels.push(copy(Unit::B4, rows(1 << 40), false));
    kernels.push(copy(Unit::B4, rows(100), true));
    for unit in [Unit::B1, Unit::B2, Unit::B4, Unit::B8] {
        kernels.push(transpose(unit, &transposed));
        kernels.push(Ok(Fill::new(unit, true).ptx()));
        kernels.push(Ok(Fill::new(unit, false).ptx()));
    }
    kernels.push(transpose(Unit::B2, &stack));
    kernels.extend([false, true].map(|wide| Ok(Arange::new(wide).ptx())));
    for [from, to] in CASTS {
        let cast = columns.clone().map(|space| Cast::new(from, to, &space).ptx());
        kernels.push(cast);
    }
    kernels
}
