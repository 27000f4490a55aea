//! What all CTAs of a launch share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::order::Published;
use crate::memory::{AddressSpace, Allocation, Block, ByteSet};
use crate::options::Options;
use crate::program::Kernel;

/// A launch under way.
pub(crate) struct Grid<'l> {
    pub(crate) kernel: &'l Kernel,
    pub(crate) space: &'l AddressSpace,
    pub(crate) options: &'l Options,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared_bytes: u32,
    pub(crate) dynamic_shared: u32,
    pub(crate) parameters: Block,
    pub(crate) parameter_bytes: usize,
    /// All allocations by address.
    pub(crate) allocations: Vec<Arc<Allocation>>,
    /// Whether several host threads run it.
    pub(crate) contended: bool,
    /// Tells the marks of this launch from others.
    pub(crate) stamp: u32,
    /// What was published where in global memory, by address.
    pub(crate) published: Mutex<HashMap<u64, Published>>,
    /// Bytes read and written so far by allocation; only when counting.
    pub(crate) touched: Option<Vec<[ByteSet; 2]>>,
    pub(crate) multiprocessors: u32,
    pub(crate) number: u64,
}

impl Grid<'_> {
    pub(crate) fn ctas(&self) -> u64 {
        self.grid.iter().map(|extent| u64::from(*extent)).product()
    }

    pub(crate) fn threads(&self) -> u32 {
        self.block.iter().product()
    }

    /// The CTA with linear index `index`, x fastest.
    pub(crate) fn cta_id(&self, index: u64) -> [u32; 3] {
        unravel(index, self.grid)
    }

    /// The thread with linear index `index` in its CTA.
    pub(crate) fn thread_id(&self, index: u64) -> [u32; 3] {
        unravel(index, self.block)
    }

    /// The allocation that holds `address`, live or freed, trying that at `hint` first.
    #[inline(always)]
    pub(crate) fn find(&self, address: u64, hint: usize) -> Option<usize> {
        let holds = |at: usize| {
            let allocation = self.allocations.get(at)?;
            let inside = address >= allocation.info.base && address < allocation.end();
            inside.then_some(at)
        };
        holds(hint).or_else(|| {
            let after = self
                .allocations
                .partition_point(|it| it.info.base <= address);
            holds(after.checked_sub(1)?)
        })
    }
}

fn unravel(index: u64, [x, y, _]: [u32; 3]) -> [u32; 3] {
    let (x, y) = (u64::from(x.max(1)), u64::from(y.max(1)));
    [
        (index % x) as u32,
        (index / x % y) as u32,
        (index / (x * y)) as u32,
    ]
}
