//! Launches of sums of rows by index. The positions are sorted by index, and one thread per element
//! of the result adds the rows of its index in order of position. So every run gives the same bits.

use meshgrad_kernels::Out;
use meshgrad_kernels::elementwise::IterationSpace;
use meshgrad_kernels::indexing::{
    IndexKeys, IndexKeysArguments, SegmentStarts, SegmentStartsArguments, SegmentSum, Segments,
};

use super::elementwise::Target;
use super::indexing::{around, format, indexed_dim};
use super::sort::Sorter;
use crate::core::arguments::indexed::IndexRange;
use crate::launch::{Launcher, Operand, Plan, PlanError, extent, float};
use crate::{Call, DType, Layout, Result, Shape, Tensor};

/// The family's name in errors of kernels.
const FAMILY: &str = "sum_rows";

/// The rows of a result that other rows are added to. They are numbered as in a contiguous tensor
/// of extents `numbers`, in which an index tensor selects along `dim`.
pub(crate) struct Rows {
    /// The extents of the numbering.
    pub(crate) numbers: Shape,
    /// The indexed dim.
    pub(crate) dim: usize,
    /// The indices of the rows. Others are left out.
    pub(crate) range: IndexRange,
    /// The number of independent sums, which are consecutive in memory.
    pub(crate) outer: usize,
    /// Elements per row.
    pub(crate) inner: usize,
    /// If true, every row is written, with zeros if no index selects it. If false, the sums are
    /// added to the rows.
    pub(crate) every: bool,
}

/// to\[o, v, ..\] = (or +=, see [`Rows::every`]) the sum of x\[o, p, ..\] over the positions p at
/// which the index tensor is v. `x` is contiguous. `call` allocates the workspace.
pub(crate) fn sum_rows(
    gpu: &Launcher<'_>,
    call: &Call,
    [x, index]: [&Tensor; 2],
    rows: &Rows,
    to: &Target,
) -> Result<()> {
    let operands = [x, index].map(Operand::of);
    let plan = gpu.planned(IndexSum::plan(&operands, rows, &to.operand))?;
    let workspace = call.workspace(plan.workspace(), DType::U32)?;
    let start = gpu.uninit_ptr(&workspace)?;
    let mut sorter = Sorter::new(gpu, start, plan.count);
    let starts = start.byte_add(4 * Sorter::workspace(plan.count) as u64);
    let [keys, positions] = sorter.lists();

    let choices = rows.numbers[rows.dim];
    let numbers = Layout::contiguous(rows.numbers, 0);
    let arguments = IndexKeysArguments {
        index: gpu.ptr(index)?,
        keys,
        positions,
        space: plan.space,
        indexed: indexed_dim(gpu, choices, rows.range, numbers.strides()[rows.dim] as i64),
        rows: plan.rows,
    };
    gpu.run(&plan.keys, &arguments)?;

    sorter.sort(plan.rows)?;
    let sorted = sorter.lists().map(Out::written);
    let arguments =
        SegmentStartsArguments { keys: sorted[0], starts, count: plan.count, rows: plan.rows };
    let kernel = Plan::new(SegmentStarts.launch(plan.rows), SegmentStarts);
    gpu.run(&kernel, &arguments)?;

    let extents =
        Segments { outer: plan.outer, count: plan.count, rows: plan.rows, inner: plan.inner };
    let (x, starts) = (gpu.ptr(x)?, starts.written());
    let arguments = plan.sum.arguments(x, sorted, starts, to.address, &extents);
    let kernel = Plan { launch: plan.sum.launch(&extents), variant: plan.sum };
    gpu.run(&kernel, &arguments)
}

/// The plan of a sum of rows.
#[derive(Debug)]
struct IndexSum {
    keys: Plan<IndexKeys>,
    space: IterationSpace,
    sum: SegmentSum,
    outer: u32,
    count: u32,
    rows: u32,
    inner: u32,
}

impl IndexSum {
    fn plan([x, index]: &[Operand; 2], rows: &Rows, to: &Operand) -> Result<IndexSum, PlanError> {
        let numbers = Layout::contiguous(rows.numbers, 0);
        let space = around(&numbers, rows.dim, &index.layout)?;
        let keys = IndexKeys::new(format(index.dtype)?, &space);
        let count = index.layout.shape().elements();
        let all = rows.numbers.elements().saturating_mul(rows.outer);
        // The number of rows must fit too: it is the key of out-of-range indices.
        extent(FAMILY, "rows", all, u32::MAX - 1)?;
        let inner = extent(FAMILY, "features", rows.inner, i32::MAX as u32)?;
        let aligned = x.is_aligned() && to.is_aligned();
        let sum = SegmentSum::new(float(x.dtype)?, float(to.dtype)?, inner, aligned, rows.every);
        Ok(IndexSum {
            keys: Plan::new(keys.launch(count as u64), keys),
            space,
            sum,
            outer: extent(FAMILY, "matrices", rows.outer, u32::MAX)?,
            count: extent(FAMILY, "indices", count, i32::MAX as u32)?,
            rows: extent(FAMILY, "rows", rows.numbers.elements(), u32::MAX - 1)?,
            inner,
        })
    }

    /// The elements of the workspace: two lists of keys and of positions, the digit counts, and the
    /// offsets of the rows in the sorted list.
    fn workspace(&self) -> usize {
        let starts = u64::from(self.rows) + 1;
        Sorter::workspace(self.count) + starts as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operand(dtype: DType, shape: &[usize]) -> Operand {
        let layout = Layout::contiguous(Shape::new(shape).unwrap(), 0);
        Operand { dtype, layout }
    }

    fn rows(numbers: usize) -> Rows {
        Rows {
            numbers: Shape::new(&[numbers]).unwrap(),
            dim: 0,
            range: IndexRange { first: 0, total: numbers },
            outer: 1,
            inner: 64,
            every: true,
        }
    }

    #[test]
    fn plans_size_the_workspace_and_reject_unsupported_operands() {
        let operands = [operand(DType::BF16, &[3000, 64]), operand(DType::I64, &[3000])];
        let to = operand(DType::F32, &[9, 64]);
        let plan = IndexSum::plan(&operands, &rows(9), &to).unwrap();
        assert_eq!(plan.workspace(), 4 * 3000 + 256 * 3 + 10);

        let refused = IndexSum::plan(&operands, &rows(u32::MAX as usize), &to);
        assert!(matches!(refused, Err(PlanError::Kernel(_))), "{refused:?}");
        let double = [operand(DType::F64, &[3000, 64]), operands[1]];
        let refused = IndexSum::plan(&double, &rows(9), &to).err();
        assert_eq!(refused, Some(PlanError::DType(DType::F64)));
    }
}
