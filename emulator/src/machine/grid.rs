//! The state that all CTAs of a launch share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

use super::happens_before::SyncVar;
use super::registers::LANES;
use crate::memory::{AddressSpace, Allocation, Block, ByteSet};
use crate::options::Options;
use crate::program::Kernel;

/// A launch in progress.
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
    /// All allocations, sorted by address.
    pub(crate) allocations: Vec<Arc<Allocation>>,
    /// Whether several host threads run it.
    pub(crate) contended: bool,
    /// Distinguishes the marks of this launch from earlier ones.
    pub(crate) stamp: u32,
    /// Synchronization state of global memory, by address.
    pub(crate) sync_vars: Mutex<HashMap<u64, SyncVar>>,
    /// Bytes read and bytes written per allocation; only when counting.
    pub(crate) accessed: Option<Vec<[OnceLock<ByteSet>; 2]>>,
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

    /// The coordinates of the CTA with linear index `index`; x varies fastest.
    pub(crate) fn cta_id(&self, index: u64) -> [u32; 3] {
        unravel(index, self.grid)
    }

    /// The coordinates of the thread with linear index `index` in its CTA.
    pub(crate) fn thread_id(&self, index: u64) -> [u32; 3] {
        unravel(index, self.block)
    }

    /// The coordinates of the threads of a warp.
    pub(crate) fn thread_ids(&self, warp: usize) -> [[u32; 3]; LANES] {
        unravel_row((warp * LANES) as u64, self.block)
    }

    /// The allocation that contains `address`, live or freed; tries the one at `hint` first.
    #[inline(always)]
    pub(crate) fn find(&self, address: u64, hint: usize) -> Option<usize> {
        let holds = |at: usize| {
            let allocation = self.allocations.get(at)?;
            let inside = address >= allocation.info.base && address < allocation.end();
            inside.then_some(at)
        };
        holds(hint).or_else(|| {
            let after = self.allocations.partition_point(|it| it.info.base <= address);
            holds(after.checked_sub(1)?)
        })
    }
}

fn unravel(index: u64, [x, y, _]: [u32; 3]) -> [u32; 3] {
    let (x, y) = (u64::from(x.max(1)), u64::from(y.max(1)));
    [(index % x) as u32, (index / x % y) as u32, (index / (x * y)) as u32]
}

/// [`unravel`] for `first` and the indices after it.
fn unravel_row(first: u64, extents: [u32; 3]) -> [[u32; 3]; LANES] {
    let mut next = unravel(first, extents);
    std::array::from_fn(|_| {
        let this = next;
        next[0] += 1;
        for dim in 0..2 {
            if next[dim] >= extents[dim] {
                next[dim] = 0;
                next[dim + 1] += 1;
            }
        }
        this
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_unraveled_like_its_elements() {
        for extents in [[1, 1, 1], [48, 1, 1], [3, 5, 7], [1, 40, 2], [64, 2, 1]] {
            for first in [0, 32, 64] {
                let row = unravel_row(first, extents);
                let each: [_; LANES] =
                    std::array::from_fn(|lane| unravel(first + lane as u64, extents));
                assert_eq!(row, each, "{extents:?} from {first} on");
            }
        }
    }
}
