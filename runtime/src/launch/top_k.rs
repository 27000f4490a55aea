//! Launches of argmax, argmin and top-k. Operands are contiguous, and their rows are not empty.

pub(crate) use meshgrad_kernels::arg_reduce::Extreme;
use meshgrad_kernels::arg_reduce::{
    ArgReduce, ArgReduceArguments, ArgReduceChunks, ArgReduceChunksArguments, chunks_per_row,
};
use meshgrad_kernels::top_k::{
    MergeRuns, MergeRunsArguments, Runs, SortTiles, SortTilesArguments, SortedKeys,
};
use meshgrad_kernels::{In, Out};

use crate::launch::{Operand, Plan, PlanError, extent, float};
use crate::{Call, DType, Result, Tensor, UninitTensor};

/// The family's name in errors of kernels.
const FAMILY: &str = "top_k";

/// indices\[r\] = the index of the first extreme among the `columns` elements of row r.
pub(crate) fn first_best(
    call: &Call,
    extreme: Extreme,
    x: &Tensor,
    columns: usize,
    indices: &UninitTensor,
) -> Result<()> {
    call.launch(|gpu| {
        let plan = gpu.planned(Extremes::plan(extreme, &Operand::of(x), columns))?;
        let x = gpu.ptr(x)?;
        let to = gpu.uninit_ptr(indices)?;
        if plan.chunks == 1 {
            return gpu.run(&plan.best, &plan.arguments(x, to));
        }

        let workspace = call.workspace(plan.rows as usize * plan.chunks as usize, DType::I64)?;
        let keys = gpu.uninit_ptr(&workspace)?;
        gpu.run(&plan.best, &plan.arguments(x, keys))?;
        let arguments =
            ArgReduceChunksArguments { keys: keys.written(), indices: to, chunks: plan.chunks };
        gpu.run(&plan.of_chunks, &arguments)
    })
}

/// The plan of argmax and argmin.
#[derive(Debug)]
struct Extremes {
    best: Plan<ArgReduce>,
    /// The kernel that merges the chunks of a row, if there are several.
    of_chunks: Plan<ArgReduceChunks>,
    rows: u64,
    features: u64,
    chunks: u32,
}

impl Extremes {
    fn plan(extreme: Extreme, x: &Operand, columns: usize) -> Result<Extremes, PlanError> {
        let features = u64::from(extent(FAMILY, "features", columns, u32::MAX - 1)?);
        let rows = x.layout.shape().elements() as u64 / features.max(1);
        let best = ArgReduce::new(extreme, float(x.dtype)?, rows, features, x.is_aligned());
        Ok(Extremes {
            best: Plan::new(best.launch(rows, features), best),
            of_chunks: Plan::new(ArgReduceChunks.launch(rows), ArgReduceChunks),
            rows,
            features,
            chunks: chunks_per_row(rows, features) as u32,
        })
    }

    fn arguments(&self, x: In, indices: Out) -> ArgReduceArguments {
        ArgReduceArguments::new(x, indices, [self.rows, self.features])
    }
}

/// The `k` largest of the `columns` elements of each row in descending order, and their indices.
pub(crate) fn top_k(
    call: &Call,
    x: &Tensor,
    [columns, k]: [usize; 2],
    values: &UninitTensor,
    indices: &UninitTensor,
) -> Result<()> {
    call.launch(|gpu| {
        let plan = gpu.planned(Top::plan(&Operand::of(x), columns, k))?;
        let room = |runs: Runs| call.workspace(plan.keys_of(runs), DType::I64);
        let mut held = room(plan.runs)?;
        let mut to = SortedKeys {
            keys: gpu.uninit_ptr(&held)?,
            x: gpu.ptr(x)?,
            values: gpu.uninit_ptr(values)?,
            indices: gpu.uninit_ptr(indices)?,
            features: plan.features,
        };
        let arguments = SortTilesArguments { to, kept: plan.runs.len, tiles: plan.runs.count };
        gpu.run(&plan.sort, &arguments)?;

        let mut runs = plan.runs;
        while runs.count > 1 {
            let merged = runs.merged(plan.k);
            let merged_keys = room(merged)?;
            let from = gpu.uninit_ptr(&held)?.written();
            to.keys = gpu.uninit_ptr(&merged_keys)?;
            let arguments = MergeRunsArguments::new(from, to, runs, merged.len);
            gpu.run(&plan.merge(runs), &arguments)?;
            (held, runs) = (merged_keys, merged);
        }
        Ok(())
    })
}

/// The plan of top-k: sort tiles, then merge their runs until one run is left.
#[derive(Debug)]
struct Top {
    sort: Plan<SortTiles>,
    /// The runs of the sorted tiles.
    runs: Runs,
    dtype: meshgrad_kernels::Dtype,
    rows: u64,
    features: u32,
    k: u32,
}

impl Top {
    fn plan(x: &Operand, columns: usize, k: usize) -> Result<Top, PlanError> {
        let most = u32::try_from(SortTiles::MAX_FEATURES).unwrap_or(u32::MAX);
        let features = extent(FAMILY, "features", columns, most)?;
        let (wide, k) = (u64::from(features), k as u32);
        let rows = x.layout.shape().elements() as u64 / wide.max(1);
        let dtype = float(x.dtype)?;
        let sort = SortTiles::new(dtype, wide, x.is_aligned());
        let len = sort.tile().min(k.into());
        let in_last_tile = wide - (sort.tiles(wide) - 1) * sort.tile();
        Ok(Top {
            runs: Runs {
                count: sort.tiles(wide) as u32,
                len: len as u32,
                last: in_last_tile.min(len) as u32,
            },
            sort: Plan::new(sort.launch(rows, wide), sort),
            dtype,
            rows,
            features,
            k,
        })
    }

    fn merge(&self, runs: Runs) -> Plan<MergeRuns> {
        let variant = MergeRuns::new(runs, self.dtype);
        Plan::new(variant.launch(self.rows, runs), variant)
    }

    /// The number of keys in the runs of all rows. A single run has none: it is written as values
    /// and indices.
    fn keys_of(&self, runs: Runs) -> usize {
        match runs.count {
            1 => 0,
            count => self.rows as usize * count as usize * runs.len as usize,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Layout, Shape};

    fn operand(dtype: DType, shape: &[usize]) -> Operand {
        let layout = Layout::contiguous(Shape::new(shape).unwrap(), 0);
        Operand { dtype, layout }
    }

    /// A few long rows are split, to occupy the GPU; many rows are not.
    #[test]
    fn few_long_rows_are_split() {
        let chunks = |rows: usize| {
            let x = operand(DType::BF16, &[rows, 151_936]);
            let plan = Extremes::plan(Extreme::Max, &x, 151_936);
            plan.unwrap().chunks
        };
        assert_eq!((chunks(1), chunks(1024), chunks(0)), (19, 1, 19));
    }

    #[test]
    fn top_k_of_a_vocabulary_sorts_tiles_and_merges_runs() {
        let x = operand(DType::BF16, &[2, 151_936]);
        let plan = Top::plan(&x, 151_936, 50).unwrap();
        let runs = |count| Runs { count, len: 50, last: 50 };
        assert_eq!(plan.runs, runs(149));
        assert_eq!(plan.keys_of(plan.runs), 2 * 149 * 50);
        let whole = Top::plan(&x, 151_936, 151_936).unwrap();
        assert_eq!((whole.runs.len, whole.runs.last), (1024, 384));
        assert_eq!(plan.keys_of(runs(1)), 0);

        let refused = Top::plan(&operand(DType::F64, &[2, 3]), 3, 1);
        assert_eq!(refused.err(), Some(PlanError::DType(DType::F64)));
    }
}
