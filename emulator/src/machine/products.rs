//! The state of asynchronous products (`wgmma`): which ones of a warp are pending, what a wait
//! completes, the registers that they use, fences of the proxy, and what the warps of a warpgroup
//! have started.

use std::collections::VecDeque;

use super::registers::{LANES, Slot};
use crate::numerics::fragment::Operand as Element;

/// A product that a warp has started: its part of a product of the warpgroup.
#[derive(Clone, Debug)]
pub(crate) struct Product {
    /// Its number, counted from 1.
    pub(crate) number: u32,
    /// The instruction that started it.
    pub(crate) pc: u32,
    pub(crate) element: Element,
    pub(crate) negates: bool,
    pub(crate) accumulates: bool,
    pub(crate) a: Rows,
    pub(crate) b: Units,
    pub(crate) d: Vec<Slot>,
}

/// The 16 rows of A of a product.
#[derive(Clone, Debug)]
pub(crate) enum Rows {
    Registers([Slot; 4]),
    Shared(Units),
}

/// A factor in shared memory.
#[derive(Clone, Debug)]
pub(crate) struct Units {
    /// The offsets of its units in shared memory, 16 for every 8 lines.
    pub(crate) offsets: Vec<u64>,
    pub(crate) transposed: bool,
}

/// The asynchronous products of a warp.
#[derive(Clone, Debug, Default)]
pub(crate) struct Products {
    /// Not performed yet, oldest first.
    pub(crate) pending: VecDeque<Product>,
    /// The number of the last product.
    pub(crate) started: u32,
    /// The last product of each committed group, without groups that the warp waited for.
    groups: VecDeque<u32>,
    /// The last committed product.
    committed: u32,
    /// The last product that the warp waited for.
    pub(crate) waited: u32,
    pub(super) registers: ProductRegisters,
}

impl Products {
    pub(crate) fn commit(&mut self) {
        self.groups.push_back(self.started);
        self.committed = self.started;
    }

    pub(crate) fn is_committed(&self, number: u32) -> bool {
        number <= self.committed
    }

    /// Waits until at most `left` groups are pending. Returns the last product that is complete.
    pub(crate) fn wait(&mut self, left: u32) -> u32 {
        let due = self.groups.len().saturating_sub(left as usize);
        if let Some(last) = self.groups.drain(..due).next_back() {
            self.waited = last;
        }
        self.waited
    }

    /// Removes and returns the pending products up to a number.
    pub(crate) fn take(&mut self, last: u32) -> Vec<Product> {
        let due = self.pending.partition_point(|it| it.number <= last);
        self.pending.drain(..due).collect()
    }
}

/// The use of a register by a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Use {
    pub(super) product: u32,
    pub(super) pc: u32,
    /// Its position in D and the number of registers of D; `None` in A.
    pub(super) accumulator: Option<(u32, u32)>,
}

/// The registers of a warp's products.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProductRegisters {
    /// Whether the warp ever executed `wgmma.fence`.
    pub(super) fenced: bool,
    /// The last use by a product, by slot.
    pub(super) uses: Vec<Option<Use>>,
    /// Registers that other instructions have accessed since the last fence, and the instruction.
    pub(super) touched: Vec<(Slot, u32)>,
}

impl ProductRegisters {
    pub(crate) fn fence(&mut self) {
        self.fenced = true;
        self.touched.clear();
    }

    pub(super) fn last_use(&self, slot: Slot) -> Option<Use> {
        self.uses.get(slot as usize).copied().flatten()
    }

    pub(super) fn set_use(&mut self, slot: Slot, new: Use) {
        let needed = slot as usize + 1;
        if self.uses.len() < needed {
            self.uses.resize(needed, None);
        }
        self.uses[slot as usize] = Some(new);
    }
}

/// The fences of a warp, oldest first.
pub(crate) type ProxyFences = Vec<ProxyFence>;

/// One execution of the fence.
#[derive(Clone, Debug)]
pub(crate) struct ProxyFence {
    /// The warp's clock: the accesses of the warp up to this clock came before the fence.
    pub(super) clock: u32,
    pub(super) lanes: u32,
    /// The last epoch of copies that each lane had waited for.
    pub(super) waited: Box<[u32; LANES]>,
}

/// Warps of a warpgroup.
pub(super) const WARPS: usize = 4;

/// What the warps of a warpgroup must agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shared {
    pub(super) pc: u32,
    /// The descriptors of A and B; zero for A in registers.
    pub(super) descriptors: [u64; 2],
    pub(super) accumulates: bool,
}

/// The products of a warpgroup.
#[derive(Clone, Debug, Default)]
pub(crate) struct Warpgroup {
    /// Products that every warp has started.
    pub(super) common: u32,
    /// The products after them that some warp has started.
    pub(super) log: VecDeque<Shared>,
    /// Products that each warp has started.
    pub(super) started: [u32; WARPS],
    /// Whether each warp has exited.
    pub(super) exited: [bool; WARPS],
}

impl Warpgroup {
    pub(super) fn advance(&mut self, member: usize) {
        self.started[member] += 1;
        let least = self.started.into_iter().min().unwrap_or(0);
        self.log.drain(..(least - self.common) as usize);
        self.common = least;
    }
}
