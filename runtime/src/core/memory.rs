//! The memory of a device: an allocator that reuses freed blocks, and its statistics.
//!
//! On a GPU it is the caching allocator of [`driver`](crate::driver). On the host, sizes are
//! rounded up to classes, eight per power of two, so that a freed block fits the next request of
//! about its size. A meta device counts the same way, so its predicted peak equals the measured
//! one.

use std::alloc::Layout as Allocation;
use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use crate::driver::{self, Allocator, AllocatorStats, MemoryStats, NoBlock, Pinned, Pool};

/// Alignment of every block in bytes: the size of a cache line and of the widest vector register.
pub(crate) const ALIGNMENT: usize = 64;

/// The block of a storage.
pub(crate) enum Block {
    /// Host memory.
    Host(HostBlock),
    /// GPU memory; on a meta device that models a GPU, an address without memory.
    Gpu(RwLock<Place>),
    /// No memory, on a meta device that models a CPU.
    None,
}

/// Where the values of a GPU storage are.
pub(crate) enum Place {
    Gpu(driver::Block),
    /// In host memory, while it sleeps.
    Host(Pinned),
    /// It sleeps, and its values are not needed.
    Forgotten,
    /// The driver failed while the values returned to the GPU.
    Lost,
}

/// Why an allocation failed.
pub(crate) enum AllocationError {
    Host,
    Gpu(NoBlock),
}

/// The memory of a device.
pub(crate) enum Memory {
    Host(HostMemory),
    Gpu(Mutex<Allocator>),
}

impl Memory {
    /// Allocates a block of at least `bytes` bytes; on a GPU from `pool`.
    pub(crate) fn allocate(&self, pool: Pool, bytes: usize) -> Result<Block, AllocationError> {
        match self {
            Memory::Host(memory) => match memory.allocate(bytes) {
                Some(Some(block)) => Ok(Block::Host(block)),
                Some(None) => Ok(Block::None),
                None => Err(AllocationError::Host),
            },
            Memory::Gpu(memory) => {
                let block = locked(memory).allocate(pool, bytes);
                let block = block.map_err(AllocationError::Gpu)?;
                Ok(Block::Gpu(RwLock::new(Place::Gpu(block))))
            }
        }
    }

    /// Frees a block that [`Memory::allocate`] returned for `bytes`. `used_elsewhere`: whether a
    /// stream other than the pool's used the block.
    pub(crate) fn free(&self, bytes: usize, block: Block, used_elsewhere: bool) {
        match (self, block) {
            (Memory::Host(memory), Block::Host(block)) => memory.free(bytes, Some(block)),
            (Memory::Host(memory), _) => memory.free(bytes, None),
            (Memory::Gpu(memory), Block::Gpu(block)) => {
                let place = block.into_inner().unwrap_or_else(PoisonError::into_inner);
                if let Place::Gpu(block) = place {
                    locked(memory).free(block, used_elsewhere);
                }
            }
            (Memory::Gpu(_), _) => {}
        }
    }

    /// Returns cached blocks to the operating system or the driver.
    pub(crate) fn empty_cache(&self) {
        match self {
            Memory::Host(memory) => memory.empty_cache(),
            Memory::Gpu(memory) => locked(memory).empty_cache(),
        }
    }

    pub(crate) fn stats(&self) -> MemoryStats {
        match self {
            Memory::Host(memory) => memory.stats(),
            Memory::Gpu(memory) => locked(memory).stats().memory_stats(),
        }
    }

    pub(crate) fn reset_peak(&self) {
        match self {
            Memory::Host(memory) => memory.reset_peak(),
            Memory::Gpu(memory) => locked(memory).reset_peak(),
        }
    }

    /// The statistics of the caching allocator, on a GPU.
    pub(crate) fn allocator_stats(&self) -> Option<AllocatorStats> {
        self.gpu().map(|memory| memory.stats())
    }

    /// The caching allocator, on a GPU.
    pub(crate) fn gpu(&self) -> Option<MutexGuard<'_, Allocator>> {
        match self {
            Memory::Host(_) => None,
            Memory::Gpu(memory) => Some(locked(memory)),
        }
    }
}

/// Locks `state`. The state is valid between any two statements, so a panic cannot have broken it.
fn locked<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A block of host memory: zeroed when new, stale bytes after reuse, never uninitialized.
pub(crate) struct HostBlock {
    address: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a block is plain memory with one owner.
unsafe impl Send for HostBlock {}
// SAFETY: shared access to a block only reads its address and size.
unsafe impl Sync for HostBlock {}

impl HostBlock {
    fn new(bytes: usize) -> Option<HostBlock> {
        let allocation = Allocation::from_size_align(bytes, ALIGNMENT).ok()?;
        // SAFETY: size classes are never zero.
        let address = unsafe { std::alloc::alloc_zeroed(allocation) };
        Some(HostBlock { address: NonNull::new(address)?, bytes })
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

/// The host allocator. Freed blocks are cached by size class.
pub(crate) struct HostMemory {
    state: Mutex<State>,
    /// Whether blocks have memory; false on a meta device.
    backed: bool,
}

#[derive(Default)]
struct State {
    cached: HashMap<usize, Vec<Option<HostBlock>>>,
    stats: MemoryStats,
}

impl HostMemory {
    pub(crate) fn new(backed: bool) -> HostMemory {
        HostMemory { state: Mutex::default(), backed }
    }

    /// A block of at least `bytes` bytes (`Some(None)` without backing memory), or `None` when out
    /// of memory.
    fn allocate(&self, bytes: usize) -> Option<Option<HostBlock>> {
        let class = size_class(bytes);
        let mut state = self.lock();

        let reused = state.cached.get_mut(&class).and_then(Vec::pop);
        let block = match reused {
            Some(block) => block,
            None => {
                let block = if self.backed { Some(HostBlock::new(class)?) } else { None };
                state.stats.reserved += class;
                block
            }
        };

        state.stats.live += class;
        state.stats.peak = state.stats.peak.max(state.stats.live);
        state.stats.largest = state.stats.largest.max(class);
        Some(block)
    }

    /// Frees a block that [`HostMemory::allocate`] returned for `bytes`.
    fn free(&self, bytes: usize, block: Option<HostBlock>) {
        let class = size_class(bytes);
        let mut state = self.lock();
        state.stats.live -= class;
        state.cached.entry(class).or_default().push(block);
    }

    /// Returns all cached blocks to the operating system.
    fn empty_cache(&self) {
        let mut state = self.lock();
        state.cached.clear();
        state.stats.reserved = state.stats.live;
    }

    fn stats(&self) -> MemoryStats {
        self.lock().stats
    }

    fn reset_peak(&self) {
        let mut state = self.lock();
        state.stats.peak = state.stats.live;
        state.stats.largest = 0;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }
}

/// The smallest size class of at least `bytes`: eight classes per power of two, and at least
/// [`ALIGNMENT`].
fn size_class(bytes: usize) -> usize {
    let bytes = bytes.max(1);
    let step = (bytes.next_power_of_two() / 16).max(ALIGNMENT);
    bytes.next_multiple_of(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_class_wastes_at_most_an_eighth() {
        for bytes in (1..5000).chain((5000..4_000_000).step_by(997)) {
            let class = size_class(bytes);
            assert!(class >= bytes);
            assert!(class < bytes + ALIGNMENT.max(bytes / 8 + 1), "{bytes} -> {class}");
            assert_eq!(size_class(class), class);
        }
    }

    #[test]
    fn freed_blocks_are_reused_and_counted() {
        let memory = HostMemory::new(true);
        let block = memory.allocate(1000).unwrap();
        let address = block.as_ref().unwrap().address();
        memory.free(1000, block);

        let again = memory.allocate(1010).unwrap();
        assert_eq!(again.as_ref().unwrap().address(), address);
        assert_eq!(
            memory.stats(),
            MemoryStats { live: 1024, peak: 1024, largest: 1024, reserved: 1024 }
        );

        memory.free(1010, again);
        memory.empty_cache();
        memory.reset_peak();
        assert_eq!(memory.stats(), MemoryStats::default());
    }

    /// A meta device reports the same statistics as the CPU.
    #[test]
    fn statistics_do_not_depend_on_backing_memory() {
        let (real, counted) = (HostMemory::new(true), HostMemory::new(false));
        for memory in [&real, &counted] {
            let blocks: Vec<_> =
                (1..50).map(|n| (n * 37, memory.allocate(n * 37).unwrap())).collect();
            for (bytes, block) in blocks {
                memory.free(bytes, block);
            }
        }
        assert_eq!(real.stats(), counted.stats());
    }
}
