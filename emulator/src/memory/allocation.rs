//! One allocation: its bytes and its shadow state.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::block::Block;
use super::bytes::ByteSet;
use super::races::RaceShadow;

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

    /// The placeholder of a freed allocation, which keeps its properties.
    pub(crate) fn freed_placeholder(info: AllocationInfo, nothing: Block) -> Allocation {
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
