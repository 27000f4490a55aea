//! One allocation: its bytes, and what is known about them.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::block::Block;
use super::bytes::ByteSet;
use super::races::RaceShadow;

/// What an allocation was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    /// Memory of this device.
    Device(u32),
    /// Page-locked memory of the host.
    Pinned,
    /// Managed memory, at home on this device.
    Managed(u32),
    /// Variables of a module that is loaded on this device.
    Module(u32),
    /// Constants of a module that is loaded on this device.
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

/// An allocation as the driver's functions see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocationInfo {
    /// Its first address.
    pub base: u64,
    /// How many bytes were asked for.
    pub bytes: usize,
    /// What it was made for.
    pub kind: MemoryKind,
    /// Counts allocations from 1 in the order they were made.
    pub number: u64,
}

/// An allocation, live or freed. A freed one keeps its addresses, so that a late access finds its
/// name, but not its bytes.
pub(crate) struct Allocation {
    pub(crate) info: AllocationInfo,
    pub(crate) data: Block,
    freed: AtomicBool,
    initialized: ByteSet,
    races: OnceLock<RaceShadow>,
}

impl Allocation {
    pub(crate) fn new(info: AllocationInfo, data: Block) -> Allocation {
        Allocation {
            info,
            data,
            freed: AtomicBool::new(false),
            initialized: ByteSet::new(info.bytes),
            races: OnceLock::new(),
        }
    }

    /// What is left of one that was freed: its addresses and its name.
    pub(crate) fn tomb(info: AllocationInfo, nothing: Block) -> Allocation {
        Allocation {
            info,
            data: nothing,
            freed: AtomicBool::new(true),
            initialized: ByteSet::new(0),
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

    /// Forgets who accessed which bytes.
    pub(crate) fn clear_races(&self) {
        if let Some(races) = self.races.get() {
            races.clear();
        }
    }

    /// Who accessed which bytes; made on first use.
    pub(crate) fn races(&self) -> &RaceShadow {
        self.races.get_or_init(|| RaceShadow::new(self.info.bytes))
    }
}
