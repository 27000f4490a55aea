//! Launches of functions of rows.

use meshgrad_kernels::assembler::List;
use meshgrad_kernels::row_map::{RowMap, RowMapArguments, RowNumber};
use meshgrad_kernels::{In, Out};

use super::symbol::{Constants, Tracer, operands as symbols};
use crate::launch::{Launcher, MAX_EXTENT, Operand, Plan, PlanError, aligned, extent, float};
use crate::{Result, RowFunction, Tensor, UninitTensor};

/// `y` = the value of `f` at each element, and `numbers` = the computed numbers of each row, unless
/// empty. All tensors are contiguous; an operand is \[.., D\] like `y`, or \[D\].
pub(crate) fn map_rows<const N: usize, const S: usize, F: RowFunction<N, S>>(
    gpu: &Launcher<'_>,
    f: &F,
    operands: [&Tensor; N],
    given: &[&Tensor],
    y: &UninitTensor,
    numbers: &[UninitTensor],
) -> Result<()> {
    let (whole, formats) = (Operand::uninit(y), operands.map(Operand::of));
    let plan = gpu.planned(plan(f, &whole, &formats, !numbers.is_empty()))?;
    let read = |tensors: &[&Tensor]| -> Result<Vec<In>> {
        tensors.iter().map(|tensor| gpu.ptr(tensor)).collect()
    };
    let written = numbers.iter().map(|number| gpu.uninit_ptr(number));
    let arguments = RowMapArguments {
        operands: List::new(&read(&operands)?),
        given: List::new(&read(given)?),
        y: gpu.uninit_ptr(y)?,
        numbers: List::new(&written.collect::<Result<Vec<Out>>>()?),
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
    let numbers = (F::GIVEN..S).map(|at| {
        Ok(RowNumber {
            summand: tracer.expression(|| f.summand(at, symbols(0), symbols(N)))?,
            number: tracer.expression(|| f.number(at, symbols(0)))?,
        })
    });
    let numbers = numbers.collect::<Result<_, PlanError>>()?;
    let value = tracer.expression(|| f.value(symbols(0), symbols(N)))?;

    let all: Vec<&Operand> = operands.iter().collect();
    let variant = RowMap::new(
        (float(y.dtype)?, *features, aligned(&all)),
        operands
            .each_ref()
            .map(|it| it.layout.shape() == y.layout.shape()),
        F::GIVEN,
        numbers,
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
