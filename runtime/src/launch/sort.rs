//! Launches that sort.

use meshgrad_kernels::argsort::{Argsort, ArgsortArguments};
use meshgrad_kernels::sort::{RadixPass, RadixPassArguments, passes_for, workspace_words};
use meshgrad_kernels::{In, Out};

use crate::launch::{Launcher, MAX_EXTENT, Plan, extent, float};
use crate::{Call, DType, Result, Tensor, UninitTensor};

/// A list of keys and one of positions, which a stable sort moves to a second pair of lists and
/// back. All are in one workspace.
pub(crate) struct Sorter<'a> {
    gpu: &'a Launcher<'a>,
    lists: [[Out; 2]; 2],
    counts: Out,
    count: u32,
    /// The pair that has the current order.
    current: usize,
}

impl<'a> Sorter<'a> {
    /// The elements of u32 in the workspace for `count` keys.
    pub(crate) fn workspace(count: u32) -> usize {
        (4 * u64::from(count) + workspace_words(count)) as usize
    }

    pub(crate) fn new(gpu: &'a Launcher<'a>, workspace: Out, count: u32) -> Sorter<'a> {
        let place = |list: u64| workspace.byte_add(4 * list * u64::from(count));
        Sorter {
            gpu,
            lists: [[place(0), place(1)], [place(2), place(3)]],
            counts: place(4),
            count,
            current: 0,
        }
    }

    /// The keys and positions in the current order.
    pub(crate) fn lists(&self) -> [Out; 2] {
        self.lists[self.current]
    }

    /// Sorts by keys that are at most `largest`.
    pub(crate) fn sort(&mut self, largest: u32) -> Result<()> {
        for pass in 0..passes_for(largest) {
            let (from, to) = (self.lists(), self.lists[1 - self.current]);
            let from = from.map(Out::written);
            let arguments = RadixPassArguments::new(from, to, self.counts, self.count, pass);
            for variant in RadixPass::ALL {
                let launch = variant.launch(self.count);
                self.gpu.run(&Plan { variant, launch }, &arguments)?;
            }
            self.current = 1 - self.current;
        }
        Ok(())
    }
}

/// The indices that sort each row of `columns` elements of `x`, which is contiguous.
pub(crate) fn argsort(
    call: &Call,
    x: &Tensor,
    columns: usize,
    descending: bool,
    indices: &UninitTensor,
) -> Result<()> {
    call.launch(|gpu| {
        let dtype = gpu.planned(float(x.dtype()))?;
        let count = gpu.planned(extent("argsort", "elements", x.elements(), MAX_EXTENT))?;
        let rows = count.checked_div(columns as u32).unwrap_or(0);
        let workspace = call.workspace(Sorter::workspace(count), DType::U32)?;
        let mut sorter = Sorter::new(gpu, gpu.uninit_ptr(&workspace)?, count);
        let run = |variant: Argsort, from: In, keys: Option<Out>, to: Out| {
            let arguments = ArgsortArguments { from, keys, to, count, features: columns as u32 };
            gpu.run(&Plan::new(variant.launch(count), variant), &arguments)
        };

        let [keys, positions] = sorter.lists();
        run(Argsort::Values { dtype, descending }, gpu.ptr(x)?, Some(keys), positions)?;
        sorter.sort(u32::MAX)?;
        if rows > 1 {
            // Each thread replaces the position that it reads.
            let [keys, positions] = sorter.lists();
            run(Argsort::Rows, positions.written(), Some(keys), positions)?;
            sorter.sort(rows - 1)?;
        }
        let [_, positions] = sorter.lists();
        run(Argsort::Columns, positions.written(), None, gpu.uninit_ptr(indices)?)
    })
}
