//! Launches of sums over rows. Operands are contiguous.

use meshgrad_kernels::assembler::List;
use meshgrad_kernels::column_sums::{
    ColumnSums, ColumnSumsArguments, SumPartials, SumPartialsArguments, rows_per_partial,
};

use super::symbol::{Constants, Tracer, operands as symbols};
use crate::launch::{Launcher, MAX_EXTENT, Operand, Plan, PlanError, extent, float};
use crate::{Call, DType, Result, RowFunction, Tensor};

/// to += (or =, if `to` is `empty`) the sum over all rows of the value of `f`. `call` allocates the
/// workspace.
pub(crate) fn sum_rows<const N: usize, const S: usize, F: RowFunction<N, S>>(
    gpu: &Launcher<'_>,
    call: &Call,
    f: &F,
    matrices: [&Tensor; N],
    numbers: [&Tensor; S],
    (to, empty): (&Tensor, bool),
) -> Result<()> {
    let features = to.elements();
    let rows = call.rows();
    let plan = gpu.planned(plan(f, &matrices.map(Operand::of), [rows, features], empty))?;
    // The first kernel writes the sums of blocks of rows, the second adds them in order.
    let workspace = call.workspace(plan.lines as usize * features, DType::F32)?;
    let partials = gpu.uninit_ptr(&workspace)?;
    let arguments = ColumnSumsArguments {
        matrices: matrices.iter().map(|x| gpu.ptr(x)).collect::<Result<_>>()?,
        numbers: numbers.iter().map(|x| gpu.ptr(x)).collect::<Result<_>>()?,
        partials,
        scalars: List::new(&plan.constants),
        rows: rows as u64,
        rows_per_partial: rows_per_partial(rows as u64),
        features: plan.features,
    };
    let to = gpu.mut_ptr(to)?;
    gpu.run(&plan.partials, &arguments)?;

    let arguments = SumPartialsArguments {
        partials: partials.written(),
        to,
        rows: plan.lines,
        features: plan.features,
    };
    gpu.run(&plan.sum, &arguments)
}

/// The plan of a sum over rows.
#[derive(Debug)]
struct RowSums {
    partials: Plan<ColumnSums>,
    sum: Plan<SumPartials>,
    constants: Constants,
    /// Partial sums per feature.
    lines: u64,
    features: u32,
}

/// A sum that overwrites its result if it is `empty`.
fn plan<const N: usize, const S: usize, F: RowFunction<N, S>>(
    f: &F,
    matrices: &[Operand; N],
    [rows, features]: [usize; 2],
    empty: bool,
) -> Result<RowSums, PlanError> {
    let dtype = matrices.first().map_or(DType::F32, |it| it.dtype);
    let aligned = matrices.iter().all(Operand::is_aligned);
    let mut tracer = Tracer::new();
    let value = tracer.expression(|| f.value(symbols(0), symbols(N)))?;
    let width = extent("column_sums", "features", features, MAX_EXTENT)?;
    let partials = ColumnSums::new((float(dtype)?, features, aligned), [N, S], value);
    let sum = SumPartials::new(!empty);
    let rows = rows as u64;
    Ok(RowSums {
        partials: Plan::new(partials.launch(rows, width), partials),
        sum: Plan::new(sum.launch(width), sum),
        constants: tracer.constants(),
        lines: rows.div_ceil(rows_per_partial(rows)),
        features: width,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Layout, Number, Shape};

    struct Product;

    impl RowFunction<2, 0> for Product {
        fn value<W: Number>(&self, [a, b]: [W; 2], _: [W; 0]) -> W {
            a * b
        }
    }

    fn operand(dtype: DType, shape: &[usize]) -> Operand {
        let layout = Layout::contiguous(Shape::new(shape).unwrap(), 0);
        Operand { dtype, layout }
    }

    #[test]
    fn there_is_one_partial_sum_per_block_of_rows() {
        let x = operand(DType::BF16, &[1000, 96]);
        let of = plan(&Product, &[x, x], [1000, 96], true).unwrap();
        assert_eq!(of.lines, 1000u64.div_ceil(64));
        assert_eq!(of.sum.variant, SumPartials::new(false));

        let none = operand(DType::BF16, &[0, 96]);
        let of = plan(&Product, &[none, none], [0, 96], true).unwrap();
        assert_eq!((of.lines, of.partials.launch), (0, None));
        assert!(of.sum.launch.is_some(), "an empty sum is written");

        let double = operand(DType::F64, &[2, 3]);
        let refused = plan(&Product, &[double, double], [2, 3], true);
        assert_eq!(refused.err(), Some(PlanError::DType(DType::F64)));
    }
}
