//! The address space shared by host and devices (unified addressing), with shadow state for every
//! byte.
//!
//! Device addresses are never reused, and allocations are separated by gaps. A stale or wrong
//! access therefore hits a known address and not another allocation.

mod allocation;
mod block;
mod bytes;
mod description;
mod poison;
pub(crate) mod races;
mod stamps;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, PoisonError, RwLock};

pub(crate) use allocation::Allocation;
pub use allocation::{AllocationInfo, MemoryKind};
pub(crate) use block::{ALIGNMENT, Block, HOST_ALIGNMENT};
pub(crate) use bytes::ByteSet;
pub use description::AddressDescription;
use description::describe_allocation;
pub(crate) use stamps::Stamp;
use stamps::Stamps;

use crate::report::Finding;

/// Undefined bytes by their place, and the stores of those that a kernel stored.
pub(crate) type Undefined = BTreeMap<usize, Option<Arc<Finding>>>;

/// Start of device memory: above typical host pointers.
const FIRST_ADDRESS: u64 = 0x0000_1000_0000_0000;

/// Errors of memory operations.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// The host has no memory to back device memory.
    #[error("out of host memory: cannot allocate {bytes} bytes to back device memory")]
    HostMemory {
        /// The requested size.
        bytes: usize,
    },

    /// A range is not in a live allocation.
    #[error("invalid range of {bytes} bytes at {location}")]
    Invalid {
        /// The size of the range.
        bytes: usize,
        /// The address.
        location: AddressDescription,
    },

    /// The host reads a value that a kernel stored although it was undefined.
    #[error("{0}")]
    Undefined(Box<Finding>),

    /// Memory of a collective was written before the collective was done.
    #[error("{0}")]
    Race(String),

    /// The address to free is not the start of a live allocation.
    #[error("cannot free {0}: only the start of a live allocation can be freed")]
    NotFreeable(AddressDescription),
}

/// All allocations of the process.
#[derive(Default)]
pub struct AddressSpace {
    allocations: RwLock<Allocations>,
    stamps: Stamps,
    locks: races::LineLocks,
}

/// Freed allocations that are remembered for reports.
const QUARANTINED: usize = 4096;

#[derive(Default)]
struct Allocations {
    /// Live and freed allocations, sorted by address.
    by_address: Vec<Arc<Allocation>>,
    /// Base addresses of remembered freed allocations, oldest first.
    quarantine: VecDeque<u64>,
    next: u64,
    count: u64,
}

impl AddressSpace {
    /// An empty address space.
    pub fn new() -> AddressSpace {
        AddressSpace::default()
    }

    /// Allocates `bytes` bytes of uninitialized memory. Pinned and managed memory has the same
    /// address on the host.
    ///
    /// # Errors
    ///
    /// [`MemoryError::HostMemory`].
    pub fn allocate(&self, bytes: usize, kind: MemoryKind) -> Result<u64, MemoryError> {
        let data = Block::new(bytes).ok_or(MemoryError::HostMemory { bytes })?;
        let mut state = self.write_lock();
        let base = match kind {
            MemoryKind::Pinned | MemoryKind::Managed(_) => data.host_address(),
            MemoryKind::Device(_) | MemoryKind::Module(_) | MemoryKind::Constant(_) => {
                state.next_address(bytes)
            }
        };
        state.count += 1;
        let number = state.count;
        let info = AllocationInfo { base, bytes, kind, number };
        state.insert(Allocation::new(info, data));
        Ok(base)
    }

    /// Registers host memory as page-locked at its own address; all of it counts as written.
    /// Returns false if it overlaps an allocation.
    pub(crate) fn register(&self, data: Block) -> bool {
        let (base, bytes) = (data.host_address(), data.bytes());
        let mut state = self.write_lock();
        let below = state.position(base + bytes as u64 - 1);
        let below = below.map(|at| &state.by_address[at]);
        if below.is_some_and(|it| it.end() > base) {
            return false;
        }
        state.count += 1;
        let info = AllocationInfo { base, bytes, kind: MemoryKind::Pinned, number: state.count };
        let allocation = Allocation::new(info, data);
        allocation.initialized().set(0, bytes);
        state.insert(allocation);
        true
    }

    /// Frees an allocation. Its addresses stay known as freed.
    ///
    /// # Errors
    ///
    /// [`MemoryError::NotFreeable`].
    pub fn free(&self, address: u64) -> Result<(), MemoryError> {
        let mut state = self.write_lock();
        let found = state.position(address).filter(|at| {
            let allocation = &state.by_address[*at];
            allocation.info.base == address && !allocation.is_freed()
        });
        let Some(at) = found else {
            drop(state);
            return Err(MemoryError::NotFreeable(self.describe(address)));
        };

        let info = state.by_address[at].info;
        state.by_address[at].set_freed();
        match info.kind {
            // The host may reuse these addresses.
            MemoryKind::Pinned | MemoryKind::Managed(_) => drop(state.by_address.remove(at)),
            MemoryKind::Device(_) | MemoryKind::Module(_) | MemoryKind::Constant(_) => {
                let nothing = Block::new(0).ok_or(MemoryError::HostMemory { bytes: 8 })?;
                state.by_address[at] = Arc::new(Allocation::freed_placeholder(info, nothing));
                state.add_to_quarantine(info.base);
            }
        }
        Ok(())
    }

    /// Writes from the host and marks the bytes as initialized.
    ///
    /// # Errors
    ///
    /// [`MemoryError::Invalid`].
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<(), MemoryError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let (allocation, offset) = self.range(address, bytes.len())?;
        allocation.data.write(offset, bytes);
        allocation.initialized().set(offset, bytes.len());
        Ok(())
    }

    /// Reads from the host.
    ///
    /// # Errors
    /// [`MemoryError::Invalid`]; [`MemoryError::Undefined`] if a kernel stored an undefined value in the
    /// range. Memory that was never written can be read.
    pub fn read(&self, address: u64, into: &mut [u8]) -> Result<(), MemoryError> {
        if into.is_empty() {
            return Ok(());
        }
        let (allocation, offset) = self.range(address, into.len())?;
        check_host_read(&allocation, offset, into.len())?;
        allocation.data.read(offset, into);
        Ok(())
    }

    /// Reads for a computation whose results are undefined where these bytes are. Returns which are.
    pub(crate) fn read_any(&self, address: u64, into: &mut [u8]) -> Result<Undefined, MemoryError> {
        let mut undefined = Undefined::new();
        if into.is_empty() {
            return Ok(undefined);
        }
        let (allocation, offset) = self.range(address, into.len())?;
        allocation.data.read(offset, into);
        if !allocation.initialized().all(offset, into.len()) {
            for at in (0..into.len()).filter(|at| !allocation.initialized().all(offset + at, 1)) {
                let store = allocation.stored_undefined((offset + at) as u64, 1);
                undefined.insert(at, store.map(|(_, store)| store));
            }
        }
        Ok(undefined)
    }

    /// Makes bytes undefined that lie at these places from `address` on.
    pub(crate) fn undefine<'a>(
        &self,
        address: u64,
        bytes: impl Iterator<Item = (usize, &'a Option<Arc<Finding>>)>,
    ) -> Result<(), MemoryError> {
        for (at, store) in bytes {
            let (allocation, offset) = self.range(address + at as u64, 1)?;
            allocation.initialized().unset(offset, 1);
            if let Some(store) = store {
                allocation.store_undefined(offset, 1, || Finding::clone(store));
            }
        }
        Ok(())
    }

    /// Makes bytes as if they had never been written.
    pub(crate) fn forget(&self, address: u64, bytes: usize) -> Result<(), MemoryError> {
        if bytes > 0 {
            let (allocation, offset) = self.range(address, bytes)?;
            allocation.initialized().unset(offset, bytes);
        }
        Ok(())
    }

    /// Whether none of these bytes has been written since [`AddressSpace::forget`].
    pub(crate) fn is_forgotten(&self, address: u64, bytes: usize) -> Result<bool, MemoryError> {
        if bytes == 0 {
            return Ok(true);
        }
        let (allocation, offset) = self.range(address, bytes)?;
        Ok(allocation.initialized().none(offset, bytes))
    }

    /// Writes `pattern` `count` times.
    ///
    /// # Errors
    /// [`MemoryError::Invalid`].
    pub fn fill(&self, address: u64, pattern: &[u8], count: usize) -> Result<(), MemoryError> {
        let bytes = pattern.len() * count;
        if bytes == 0 {
            return Ok(());
        }
        let (allocation, offset) = self.range(address, bytes)?;
        let repeats = (64 * 1024 / pattern.len()).clamp(1, count);
        let chunk = pattern.repeat(repeats);
        let mut at = 0;
        while at < bytes {
            let part = chunk.len().min(bytes - at);
            allocation.data.write(offset + at, &chunk[..part]);
            at += part;
        }
        allocation.initialized().set(offset, bytes);
        Ok(())
    }

    /// Copies `bytes` bytes and their initialization state.
    ///
    /// # Errors
    ///
    /// [`MemoryError::Invalid`]; [`MemoryError::Undefined`] as for [`AddressSpace::read`], if the
    /// destination is pinned host memory.
    pub fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<(), MemoryError> {
        if bytes == 0 {
            return Ok(());
        }
        let (source, from) = self.range(from, bytes)?;
        let (target, to) = self.range(to, bytes)?;
        if target.info.kind == MemoryKind::Pinned {
            check_host_read(&source, from, bytes)?;
        }
        let mut copied = vec![0; bytes];
        source.data.read(from, &mut copied);
        target.data.write(to, &copied);
        target.initialized().copy(to, source.initialized(), from, bytes);
        source.copy_undefined(from, bytes, &target, to);
        Ok(())
    }

    /// The live allocation that contains `address`.
    pub fn find(&self, address: u64) -> Option<AllocationInfo> {
        let state = self.read_lock();
        let allocation = &state.by_address[state.position(address)?];
        let inside = address < allocation.end().max(allocation.info.base + 1);
        (inside && !allocation.is_freed()).then_some(allocation.info)
    }

    /// All live allocations, by address.
    pub fn live(&self) -> Vec<AllocationInfo> {
        let state = self.read_lock();
        let live = state.by_address.iter().filter(|it| !it.is_freed());
        live.map(|allocation| allocation.info).collect()
    }

    /// Describes an address for messages: the allocation and the offset in it.
    pub fn describe(&self, address: u64) -> AddressDescription {
        let state = self.read_lock();
        let below = state.position(address).map(|at| &state.by_address[at]);
        let above = state.by_address.iter().find(|it| it.info.base > address);
        AddressDescription::new(address, below, above)
    }

    /// All allocations at this time, for the address lookups of a launch.
    pub(crate) fn snapshot(&self) -> Vec<Arc<Allocation>> {
        self.read_lock().by_address.clone()
    }

    /// The stamp of a launch, which ends when the stamp is dropped (see [`races`]).
    pub(crate) fn next_stamp(&self) -> Stamp<'_> {
        self.stamps.next(|| {
            for allocation in self.snapshot() {
                allocation.clear_races();
            }
        })
    }

    /// Locks of the lines that a launch writes.
    pub(crate) fn locks(&self) -> &races::LineLocks {
        &self.locks
    }

    fn range(&self, address: u64, bytes: usize) -> Result<(Arc<Allocation>, usize), MemoryError> {
        let state = self.read_lock();
        let found = state.position(address).map(|at| &state.by_address[at]);
        let fits = |it: &&Arc<Allocation>| {
            let end = address.checked_add(bytes as u64);
            !it.is_freed() && end.is_some_and(|end| end <= it.end())
        };
        match found.filter(fits) {
            Some(allocation) => {
                let offset = (address - allocation.info.base) as usize;
                Ok((allocation.clone(), offset))
            }
            None => {
                drop(state);
                Err(MemoryError::Invalid { bytes, location: self.describe(address) })
            }
        }
    }

    fn read_lock(&self) -> std::sync::RwLockReadGuard<'_, Allocations> {
        self.allocations.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_lock(&self) -> std::sync::RwLockWriteGuard<'_, Allocations> {
        self.allocations.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Allocations {
    fn next_address(&mut self, bytes: usize) -> u64 {
        let address = FIRST_ADDRESS + self.next;
        // A gap as wide as the alignment follows each allocation.
        let taken = bytes.next_multiple_of(ALIGNMENT) + ALIGNMENT;
        self.next += taken as u64;
        address
    }

    /// Remembers a freed allocation. If there are too many, the oldest is forgotten, because every
    /// launch searches all of them.
    fn add_to_quarantine(&mut self, base: u64) {
        self.quarantine.push_back(base);
        if self.quarantine.len() <= QUARANTINED {
            return;
        }
        let oldest = self.quarantine.pop_front().and_then(|base| self.position(base));
        if let Some(oldest) = oldest {
            self.by_address.remove(oldest);
        }
    }

    fn insert(&mut self, allocation: Allocation) {
        let at = self.by_address.partition_point(|it| it.info.base < allocation.info.base);
        self.by_address.insert(at, Arc::new(allocation));
    }

    /// The last allocation that starts at or before `address`.
    fn position(&self, address: u64) -> Option<usize> {
        self.by_address.partition_point(|it| it.info.base <= address).checked_sub(1)
    }
}

/// Fails if a kernel stored an undefined value in a range that the host reads.
fn check_host_read(from: &Allocation, offset: usize, bytes: usize) -> Result<(), MemoryError> {
    let Some((at, store)) = from.stored_undefined(offset as u64, bytes) else {
        return Ok(());
    };
    let mut finding = Finding::clone(&store);
    finding.message = format!(
        "the host reads byte {at} of {}, where this instruction stored an undefined value; {}",
        describe_allocation(from),
        store.message
    );
    Err(MemoryError::Undefined(Box::new(finding)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limited_number_of_freed_allocations_is_remembered() {
        let space = AddressSpace::new();
        let kind = MemoryKind::Device(0);
        let first = space.allocate(1 << 20, kind).unwrap();
        space.free(first).unwrap();
        assert!(space.describe(first).freed);
        for _ in 0..QUARANTINED {
            let next = space.allocate(4, kind).unwrap();
            space.free(next).unwrap();
        }
        assert!(!space.describe(first).freed);
        assert_eq!(space.snapshot().len(), QUARANTINED);
    }

    #[test]
    fn bytes_are_read_back_and_ranges_are_checked() {
        let space = AddressSpace::new();
        let at = space.allocate(100, MemoryKind::Device(0)).unwrap();
        space.write(at + 10, &[1, 2, 3]).unwrap();
        let mut back = [0; 4];
        space.read(at + 9, &mut back).unwrap();
        assert_eq!(back, [0, 1, 2, 3]);

        let error = space.write(at + 98, &[1, 2, 3]).unwrap_err().to_string();
        assert!(error.contains("3 bytes at"), "{error}");
        assert!(error.contains("byte 98 of allocation #1 (100 bytes"), "{error}");
        assert!(space.describe(at + 104).to_string().contains("4 bytes past"));
        assert!(space.describe(at - 8).to_string().contains("8 bytes before"));
    }

    #[test]
    fn freed_memory_is_reported_as_freed_and_never_reused() {
        let space = AddressSpace::new();
        let first = space.allocate(64, MemoryKind::Device(0)).unwrap();
        space.free(first).unwrap();
        let second = space.allocate(64, MemoryKind::Device(0)).unwrap();
        assert_ne!(first, second);
        assert!(space.describe(first + 4).freed);
        assert!(space.read(first, &mut [0]).is_err());
        let error = space.free(first).unwrap_err().to_string();
        assert!(error.contains("freed"), "{error}");
        assert!(space.free(second + 1).is_err());
        assert_eq!(space.live().len(), 1);
    }

    #[test]
    fn copies_preserve_initialization() {
        let space = AddressSpace::new();
        let from = space.allocate(64, MemoryKind::Device(0)).unwrap();
        let to = space.allocate(64, MemoryKind::Device(0)).unwrap();
        space.fill(from, &[1, 2], 8).unwrap();
        space.fill(to, &[9], 64).unwrap();
        space.copy(to + 1, from + 8, 16).unwrap();
        let allocation = space.range(to, 1).unwrap().0;
        assert!(allocation.initialized().all(0, 9));
        assert!(allocation.initialized().all(0, 9) && !allocation.initialized().all(9, 1));
        assert!(allocation.initialized().all(17, 47));
    }

    #[test]
    fn pinned_memory_has_its_host_address() {
        let space = AddressSpace::new();
        let at = space.allocate(64, MemoryKind::Pinned).unwrap();
        assert_eq!(space.find(at + 63).unwrap().base, at);
        space.free(at).unwrap();
        assert_eq!(space.find(at), None);
    }
}
