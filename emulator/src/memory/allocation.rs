//! One allocation: its bytes and its shadow state.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use super::block::Block;
use super::bytes::ByteSet;
use super::poison::Poison;
use super::races::RaceShadow;
use crate::report::Finding;

/// The kind of memory that an allocation is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    /// Memory of this device.
    Device(u32),
    /// Page-locked host memory.
    Pinned,
    /// Managed memory, preferably located on this device.
    Managed(u32),
    /// Variables of a module loaded on this device.
    Module(u32),
    /// Constants of a module loaded on this device.
    Constant(u32),
}

impl fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemoryKind::Device(device) => write!(f, "device {device}"),
            MemoryKind::Pinned => f.write_str("pinned host memory"),
            MemoryKind::Managed(device) => write!(f, "managed, device {device}"),
            MemoryKind::Constant(device) => write!(f, "constants of a module, device {device}"),
            MemoryKind::Module(device) => write!(f, "module variables, device {device}"),
        }
    }
}

/// The properties of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocationInfo {
    /// The first address.
    pub base: u64,
    /// The requested size in bytes.
    pub bytes: usize,
    /// The kind of memory.
    pub kind: MemoryKind,
    /// The number of the allocation, counted from 1.
    pub number: u64,
}

/// An allocation, live or freed. A freed allocation keeps its addresses but not its bytes, so that
/// reports can name it.
pub(crate) struct Allocation {
    pub(crate) info: AllocationInfo,
    pub(crate) data: Block,
    freed: AtomicBool,
    initialized: ByteSet,
    poison: OnceLock<Poison>,
    races: OnceLock<RaceShadow>,
}

impl Allocation {
    pub(crate) fn new(info: AllocationInfo, data: Block) -> Allocation {
        Allocation {
            info,
            data,
            freed: AtomicBool::new(false),
            initialized: ByteSet::new(info.bytes),
            poison: OnceLock::new(),
            races: OnceLock::new(),
        }
    }

    /// The placeholder of a freed allocation, which keeps its properties.
    pub(crate) fn freed_placeholder(info: AllocationInfo, nothing: Block) -> Allocation {
        Allocation {
            info,
            data: nothing,
            freed: AtomicBool::new(true),
            initialized: ByteSet::new(0),
            poison: OnceLock::new(),
            races: OnceLock::new(),
        }
    }

    /// One past the last address.
    pub(crate) fn end(&self) -> u64 {
        self.info.base + self.info.bytes as u64
    }

    pub(crate) fn is_freed(&self) -> bool {
        self.freed.load(Relaxed)
    }

    pub(crate) fn set_freed(&self) {
        self.freed.store(true, Relaxed);
    }

    pub(crate) fn initialized(&self) -> &ByteSet {
        &self.initialized
    }

    /// Marks the bytes of `mask` from `start` as undefined by a store.
    pub(crate) fn store_undefined(&self, start: usize, mask: u32, store: impl FnOnce() -> Finding) {
        let poison = self.poison.get_or_init(|| Poison::new(self.info.bytes));
        let bytes = (0..32).filter(|byte| mask >> byte & 1 != 0);
        let bytes: Vec<usize> = bytes.map(|byte| start + byte).collect();
        poison.add(&bytes, || Arc::new(store()));
        bytes.iter().for_each(|at| self.initialized.unset(*at, 1));
    }

    /// The first of `count` bytes from `offset` that holds an undefined value, and its store.
    pub(crate) fn stored_undefined(
        &self,
        offset: u64,
        count: usize,
    ) -> Option<(usize, Arc<Finding>)> {
        let (poison, offset) = (self.poison.get()?, offset as usize);
        if self.initialized.all(offset, count) {
            return None;
        }
        let mut unset = (offset..offset + count).filter(|at| !self.initialized.all(*at, 1));
        unset.find_map(|at| Some((at, poison.at(at)?)))
    }

    /// Copies which of `count` bytes hold undefined values that a kernel stored.
    pub(crate) fn copy_undefined(&self, from: usize, count: usize, target: &Allocation, to: usize) {
        if let Some(poison) = target.poison.get() {
            poison.remove(to, count);
        }
        if self.stored_undefined(from as u64, count).is_none() {
            return;
        }
        for at in 0..count {
            if let Some((_, store)) = self.stored_undefined((from + at) as u64, 1) {
                target.store_undefined(to + at, 1, || Finding::clone(&store));
            }
        }
    }

    /// Clears the race detector's marks.
    pub(crate) fn clear_races(&self) {
        if let Some(races) = self.races.get() {
            races.clear();
        }
    }

    /// The race detector's marks; allocated on first use.
    pub(crate) fn races(&self) -> &RaceShadow {
        self.races.get_or_init(|| RaceShadow::new(self.info.bytes))
    }
}
