//! The memory of a device: an allocator that reuses what was given back, and counts.
//!
//! On a GPU it is the caching allocator of [`driver`](crate::driver). On the host sizes are rounded up
//! to classes, eight to each power of two, so that a block that was given back fits the next
//! request of about its size. A device without memory of its own counts in exactly the same way,
//! which is what makes its predicted peak the measured one.

use std::alloc::Layout as Allocation;
use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::driver::{self, Allocator, AllocatorStats, MemoryStats, NoBlock, Pool};

/// Alignment of every block, in bytes: a cache line, and the widest vector register.
pub(crate) const ALIGNMENT: usize = 64;

/// What a storage lies in.
pub(crate) enum Block {
    /// Memory of the host.
    Host(HostBlock),
    /// Memory of a GPU; on a device that only counts, a number.
    Gpu(driver::Block),
    /// Nothing, on a device that only counts the memory of the host.
    Nothing,
}

/// Why there is no block.
pub(crate) enum NoMemory {
    Host,
    Gpu(NoBlock),
}

/// The memory of a device.
pub(crate) enum Memory {
    Host(HostMemory),
    Gpu(Mutex<Allocator>),
}

impl Memory {
    /// A block of at least `bytes` bytes; on a GPU of `pool`.
    pub(crate) fn take(&self, pool: Pool, bytes: usize) -> Result<Block, NoMemory> {
        match self {
            Memory::Host(memory) => match memory.take(bytes) {
                Some(Some(block)) => Ok(Block::Host(block)),
                Some(None) => Ok(Block::Nothing),
                None => Err(NoMemory::Host),
            },
            Memory::Gpu(memory) => {
                let block = locked(memory).take(pool, bytes);
                block.map(Block::Gpu).map_err(NoMemory::Gpu)
            }
        }
    }

    /// Takes back what [`Memory::take`] gave for `bytes`. `used_elsewhere` says whether other
    /// streams than that of the block's pool used it.
    pub(crate) fn give_back(&self, bytes: usize, block: Block, used_elsewhere: bool) {
        match (self, block) {
            (Memory::Host(memory), Block::Host(block)) => memory.give_back(bytes, Some(block)),
            (Memory::Host(memory), _) => memory.give_back(bytes, None),
            (Memory::Gpu(memory), Block::Gpu(block)) => {
                locked(memory).give_back(block, used_elsewhere);
            }
            (Memory::Gpu(_), _) => {}
        }
    }

    /// Returns what no tensor uses to the operating system or the driver.
    pub(crate) fn release_kept(&self) {
        match self {
            Memory::Host(memory) => memory.release_kept(),
            Memory::Gpu(memory) => locked(memory).release_cached(),
        }
    }

    pub(crate) fn usage(&self) -> MemoryStats {
        match self {
            Memory::Host(memory) => memory.usage(),
            Memory::Gpu(memory) => locked(memory).usage().memory(),
        }
    }

    pub(crate) fn reset_peak(&self) {
        match self {
            Memory::Host(memory) => memory.reset_peak(),
            Memory::Gpu(memory) => locked(memory).reset_peak(),
        }
    }

    /// The caching allocator's numbers, on a GPU.
    pub(crate) fn cache(&self) -> Option<AllocatorStats> {
        self.gpu().map(|memory| memory.usage())
    }

    /// The caching allocator, on a GPU.
    pub(crate) fn gpu(&self) -> Option<MutexGuard<'_, Allocator>> {
        match self {
            Memory::Host(_) => None,
            Memory::Gpu(memory) => Some(locked(memory)),
        }
    }
}

/// The state behind a lock is valid between any two statements, so a panic elsewhere cannot have
/// broken it.
fn locked<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A block of the host's memory, zeroed when it was new and holding stale bytes after reuse: never
/// uninitialised.
pub(crate) struct HostBlock {
    address: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a block is plain memory that belongs to its holder alone.
unsafe impl Send for HostBlock {}
// SAFETY: shared access to a block only reads its address and size.
unsafe impl Sync for HostBlock {}

impl HostBlock {
    fn new(bytes: usize) -> Option<HostBlock> {
        let allocation = Allocation::from_size_align(bytes, ALIGNMENT).ok()?;
        // SAFETY: size classes are never zero.
        let address = unsafe { std::alloc::alloc_zeroed(allocation) };
        Some(HostBlock {
            address: NonNull::new(address)?,
            bytes,
        })
    }

    pub(crate) fn address(&self) -> NonNull<u8> {
        self.address
    }
}

impl Drop for HostBlock {
    fn drop(&mut self) {
        let allocation = Allocation::from_size_align(self.bytes, ALIGNMENT);
        if let Ok(allocation) = allocation {
            // SAFETY: allocated in `new` with the same size and alignment, and freed only here.
            unsafe { std::alloc::dealloc(self.address.as_ptr(), allocation) }
        }
    }
}

/// The host's allocator. Blocks are kept by size class.
pub(crate) struct HostMemory {
    state: Mutex<State>,
    /// Whether there is memory behind the numbers.
    backed: bool,
}

#[derive(Default)]
struct State {
    kept: HashMap<usize, Vec<Option<HostBlock>>>,
    usage: MemoryStats,
}

impl HostMemory {
    pub(crate) fn new(backed: bool) -> HostMemory {
        HostMemory {
            state: Mutex::default(),
            backed,
        }
    }

    /// A block of at least `bytes` bytes (`None` inside where nothing backs it), or `None` when
    /// memory has run out.
    fn take(&self, bytes: usize) -> Option<Option<HostBlock>> {
        let class = size_class(bytes);
        let mut state = self.lock();

        let reused = state.kept.get_mut(&class).and_then(Vec::pop);
        let block = match reused {
            Some(block) => block,
            None => {
                let block = if self.backed {
                    Some(HostBlock::new(class)?)
                } else {
                    None
                };
                state.usage.reserved += class;
                block
            }
        };

        state.usage.live += class;
        state.usage.peak = state.usage.peak.max(state.usage.live);
        Some(block)
    }

    /// Takes back what [`HostMemory::take`] gave for `bytes`.
    fn give_back(&self, bytes: usize, block: Option<HostBlock>) {
        let class = size_class(bytes);
        let mut state = self.lock();
        state.usage.live -= class;
        state.kept.entry(class).or_default().push(block);
    }

    /// Returns every block that no tensor uses to the operating system.
    fn release_kept(&self) {
        let mut state = self.lock();
        state.kept.clear();
        state.usage.reserved = state.usage.live;
    }

    fn usage(&self) -> MemoryStats {
        self.lock().usage
    }

    fn reset_peak(&self) {
        let mut state = self.lock();
        state.usage.peak = state.usage.live;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }
}

/// The smallest class that holds `bytes`: eight classes to each power of two, at least one
/// alignment unit.
fn size_class(bytes: usize) -> usize {
    let bytes = bytes.max(1);
    let step = (bytes.next_power_of_two() / 16).max(ALIGNMENT);
    bytes.next_multiple_of(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_hold_their_size_and_waste_little() {
        for bytes in (1..5000).chain((5000..4_000_000).step_by(997)) {
            let class = size_class(bytes);
            assert!(class >= bytes);
            assert!(
                class < bytes + ALIGNMENT.max(bytes / 8 + 1),
                "{bytes} -> {class}"
            );
            assert_eq!(size_class(class), class);
        }
    }

    #[test]
    fn blocks_are_reused_and_counted() {
        let memory = HostMemory::new(true);
        let block = memory.take(1000).unwrap();
        let address = block.as_ref().unwrap().address();
        memory.give_back(1000, block);

        let again = memory.take(1010).unwrap();
        assert_eq!(again.as_ref().unwrap().address(), address);
        assert_eq!(
            memory.usage(),
            MemoryStats {
                live: 1024,
                peak: 1024,
                reserved: 1024
            }
        );

        memory.give_back(1010, again);
        memory.release_kept();
        memory.reset_peak();
        assert_eq!(memory.usage(), MemoryStats::default());
    }

    /// The device without memory counts what the device with memory counts.
    #[test]
    fn counting_does_not_need_memory() {
        let (real, counted) = (HostMemory::new(true), HostMemory::new(false));
        for memory in [&real, &counted] {
            let blocks: Vec<_> = (1..50)
                .map(|n| (n * 37, memory.take(n * 37).unwrap()))
                .collect();
            for (bytes, block) in blocks {
                memory.give_back(bytes, block);
            }
        }
        assert_eq!(real.usage(), counted.usage());
    }
}
