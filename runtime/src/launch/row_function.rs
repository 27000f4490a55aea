//! Launches of functions of rows.

use meshgrad_kernels::assembler::List;
use meshgrad_kernels::row_map::{RowMap, RowMapArguments, RowNumber};

use super::symbol::{Constants, Tracer, operands as symbols};
use crate::launch::{Launcher, MAX_EXTENT, Operand, Plan, PlanError, extent, float};
use crate::{Result, RowFunction, Tensor, UninitTensor};

/// `y` = the value of `f` at each element, and `numbers` = the computed numbers of each row, unless
/// empty. All tensors are contiguous; an operand is \[.., D\] like `y`, or \[D\].
pub(crate) fn map_rows<const N: usize, const S: usize, const G: usize, F: RowFunction<N, S>>(
    gpu: &Launcher<'_>,
    f: &F,
    operands: [&Tensor; N],
    given: [&Tensor; G],
    y: &UninitTensor,
    numbers: &[UninitTensor],
) -> Result<()> {
    let (whole, formats) = (Operand::uninit(y), operands.map(Operand::of));
    let plan = gpu.planned(plan(f, &whole, &formats, !numbers.is_empty()))?;
    let arguments = RowMapArguments {
        operands: operands.iter().map(|x| gpu.ptr(x)).collect::<Result<_>>()?,
        given: given.iter().map(|x| gpu.ptr(x)).collect::<Result<_>>()?,
        y: gpu.uninit_ptr(y)?,
        numbers: numbers.iter().map(|y| gpu.uninit_ptr(y)).collect::<Result<_>>()?,
        scalars: List::new(&plan.constants),
        rows: plan.rows,
        features: plan.features,
    };
    gpu.run(&plan.kernel, &arguments)
}

/// The plan of a function of rows.
struct RowPlan {
    kernel: Plan<RowMap>,
    constants: Constants,
    rows: u64,
    features: u32,
}

fn plan<const N: usize, const S: usize, F: RowFunction<N, S>>(
    f: &F,
    y: &Operand,
    operands: &[Operand; N],
    writes_numbers: bool,
) -> Result<RowPlan, PlanError> {
    let (features, rows) = y.layout.shape().split_last().unwrap_or((&1, &[]));
    let rows = rows.iter().product::<usize>() as u64;

    let mut tracer = Tracer::new();
    let mut numbers = [const { None }; S];
    for (at, number) in numbers.iter_mut().enumerate().skip(F::GIVEN) {
        *number = Some(RowNumber {
            summand: tracer.expression(|| f.summand(at, symbols(0), symbols(N)))?,
            number: tracer.expression(|| f.number(at, symbols(0)))?,
        });
    }
    let value = tracer.expression(|| f.value(symbols(0), symbols(N)))?;

    let variant = RowMap::new(
        (float(y.dtype)?, *features, operands.iter().all(Operand::is_aligned)),
        operands.each_ref().map(|it| it.layout.shape() == y.layout.shape()),
        F::GIVEN,
        numbers.into_iter().flatten(),
        value,
        writes_numbers,
    )?;
    Ok(RowPlan {
        kernel: Plan::new(variant.launch(rows), variant),
        constants: tracer.constants(),
        rows,
        features: extent("row_map", "features", *features, MAX_EXTENT)?,
    })
}
