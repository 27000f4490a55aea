//! The state of a warp's asynchronous products (`wgmma`): which are pending, and what a wait
//! completes.

use std::collections::VecDeque;

use super::product_registers::ProductRegisters;
use super::registers::Slot;
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
