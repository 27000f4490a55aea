//! Memory allocation: owners, frees, and the free bytes of each device.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::memory::{AllocationInfo, MemoryError, MemoryKind};

use super::context::ContextHandle;
use super::error::{Code, Error, Result};
use super::graph::NodeKind;
use super::pool::PoolHandle;
use super::schedule::Ticket;
use super::stream::StreamHandle;
use super::work::Work;
use super::{Driver, State};

/// The owners of all allocations.
#[derive(Default)]
pub(crate) struct Ownership {
    /// Owners by base address.
    pub(crate) owners: BTreeMap<u64, Owner>,
    /// Bytes per device that are allocated outside of pools.
    plain: BTreeMap<u32, usize>,
}

#[derive(Clone, Copy)]
pub(crate) struct Owner {
    pub(crate) context: ContextHandle,
    pub(crate) device: u32,
    bytes: usize,
    pub(crate) kind: AllocationKind,
    /// A submitted stream operation will free it.
    pending_free: bool,
}

/// How memory was allocated, which determines how it is freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AllocationKind {
    /// `cuMemAlloc`.
    Device,
    /// `cuMemAllocAsync`.
    Pool(PoolHandle),
    /// `cuMemHostAlloc`.
    Pinned,
    /// `cuMemHostRegister`.
    Registered,
    /// `cuMemAllocManaged`.
    Managed,
    /// A graph node. The memory is live from a launch until it is freed.
    Graph { live: bool },
}

impl AllocationKind {
    fn memory_kind(self, device: u32) -> MemoryKind {
        match self {
            AllocationKind::Device | AllocationKind::Pool(_) | AllocationKind::Graph { .. } => {
                MemoryKind::Device(device)
            }
            AllocationKind::Pinned | AllocationKind::Registered => MemoryKind::Pinned,
            AllocationKind::Managed => MemoryKind::Managed(device),
        }
    }

    fn takes_plain_memory(self) -> bool {
        !matches!(
            self,
            AllocationKind::Pinned | AllocationKind::Registered | AllocationKind::Pool(_)
        )
    }
}

/// The range of device addresses; it contains no host pointers.
const DEVICE_ADDRESSES: std::ops::Range<u64> = 0x1000_0000_0000..0x4000_0000_0000;

impl Driver {
    /// `cuMemAlloc`, `cuMemAllocManaged` and `cuMemHostAlloc`.
    pub(crate) fn allocate(&self, bytes: usize, kind: AllocationKind) -> Result<u64> {
        let mut state = self.lock();
        let context = state.current()?;
        state.reject_while_capturing("an allocation")?;
        match state.allocate(context, bytes, kind) {
            Err(error) if error.code == Code::OutOfMemory => {
                // Pending frees of streams may make enough room.
                let mut state = self.wait(state, |state| state.schedule.is_idle(context));
                state.check_context(context)?;
                state.allocate(context, bytes, kind)
            }
            outcome => outcome,
        }
    }

    /// `cuMemAllocAsync` and `cuMemAllocFromPoolAsync`.
    pub(crate) fn allocate_async(
        &self,
        bytes: usize,
        pool: Option<PoolHandle>,
        raw: u64,
    ) -> Result<u64> {
        let mut state = self.lock();
        let (stream, context) = state.stream(raw)?;
        if state.streams.get(stream)?.capture.is_some() {
            return state.allocate_in_capture(stream, context, bytes);
        }
        state.reject_implicit_sync(stream)?;
        let pool = match pool {
            Some(pool) => pool,
            None => state.device_pools[state.contexts.get(context)?.device as usize].1,
        };
        match state.allocate(context, bytes, AllocationKind::Pool(pool)) {
            Err(error) if error.code == Code::OutOfMemory => {
                let mut state = self.wait(state, |state| state.schedule.is_idle(context));
                state.check_context(context)?;
                state.allocate(context, bytes, AllocationKind::Pool(pool))
            }
            outcome => outcome,
        }
    }

    /// `cuMemFree`: waits for running operations. For pool memory, the caller guarantees that it is
    /// no longer in use.
    pub(crate) fn free(&self, address: u64) -> Result<()> {
        if address == 0 {
            return Ok(());
        }
        let mut state = self.lock();
        let context = state.current()?;
        state.reject_while_capturing("cuMemFree")?;
        match state.owner(address)?.kind {
            AllocationKind::Graph { .. } => state.free_in_graph(address),
            AllocationKind::Pinned | AllocationKind::Registered => Err(Code::InvalidValue.because(
                format!("{address:#x} is page-locked host memory; free it with cuMemFreeHost"),
            )),
            AllocationKind::Pool(_) => state.free_now(address),
            AllocationKind::Device | AllocationKind::Managed => {
                let mut state = self.wait(state, |state| state.schedule.is_idle(context));
                state.check_context(context)?;
                state.free_now(address)
            }
        }
    }

    /// `cuMemFreeHost`.
    pub(crate) fn free_host(&self, address: u64) -> Result<()> {
        if address == 0 {
            return Ok(());
        }
        let mut state = self.lock();
        let context = state.current()?;
        state.reject_while_capturing("cuMemFreeHost")?;
        if state.owner(address)?.kind != AllocationKind::Pinned {
            let message = format!("{address:#x} is not from cuMemHostAlloc");
            return Err(Code::InvalidValue.because(message));
        }
        let mut state = self.wait(state, |state| state.schedule.is_idle(context));
        state.check_context(context)?;
        state.free_now(address)
    }

    /// `cuMemFreeAsync`.
    pub(crate) fn free_async(&self, address: u64, raw: u64) -> Result<()> {
        if address == 0 {
            return Ok(());
        }
        let mut state = self.lock();
        let (stream, _) = state.stream(raw)?;
        let kind = state.owner(address)?.kind;
        if state.streams.get(stream)?.capture.is_some() {
            if !state.captured_graph(stream)?.holds(address) {
                let message = format!("{address:#x} was not allocated in the same capture");
                return Err(Code::InvalidValue.because(message));
            }
            return state.capture_node(stream, NodeKind::Free(address));
        }
        match kind {
            AllocationKind::Pool(_) => {
                state.enqueue(stream, Vec::new(), Work::Free { address })?;
                state.ownership.mark_pending_free(address);
            }
            AllocationKind::Graph { .. } => state.free_in_graph(address)?,
            AllocationKind::Device
            | AllocationKind::Pinned
            | AllocationKind::Registered
            | AllocationKind::Managed => {
                let message = format!("{address:#x} is not from cuMemAllocAsync");
                return Err(Code::InvalidValue.because(message));
            }
        }
        self.run_submitted(state, stream)
    }

    /// Executes a `cuMemFreeAsync`.
    pub(crate) fn perform_free(&self, address: u64) -> Result<()> {
        self.with(|state| state.free_now(address))
    }

    /// `cuMemGetInfo`: free and total bytes of the current device.
    pub(crate) fn memory_info(&self) -> Result<(usize, usize)> {
        self.with(|state| {
            let context = state.current()?;
            let device = state.contexts.get(context)?.device;
            Ok((state.free_memory(device), state.devices[device as usize].memory))
        })
    }
}

impl State {
    /// Fails unless `bytes` bytes at `address` are in one allocation without a pending free.
    pub(crate) fn check_range(&self, address: u64, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let info = self.allocation(address)?;
        if self.ownership.owners.get(&info.base).is_some_and(|it| it.pending_free) {
            let message =
                format!("{}, was already freed by cuMemFreeAsync", self.space.describe(address));
            return Err(Code::InvalidValue.because(message));
        }
        match (address - info.base).checked_add(bytes as u64) {
            Some(end) if end <= info.bytes as u64 => Ok(()),
            _ => {
                let message = format!(
                    "{bytes} bytes at {} exceed the allocation",
                    self.space.describe(address)
                );
                Err(Code::InvalidValue.because(message))
            }
        }
    }

    /// Whether an address cannot be a host pointer.
    pub(crate) fn is_foreign(address: u64) -> bool {
        address == 0 || DEVICE_ADDRESSES.contains(&address)
    }

    /// Frees memory of any kind.
    pub(crate) fn free_now(&mut self, address: u64) -> Result<()> {
        self.space.free(address).map_err(invalid)?;
        self.forget_owner(address);
        Ok(())
    }

    /// Base addresses of the memory that `context` owns, without pending frees.
    pub(crate) fn memory_of(&self, context: ContextHandle) -> Vec<u64> {
        let all = self.ownership.owners.iter();
        let here = all.filter(|(_, owner)| owner.context == context && !owner.pending_free);
        here.map(|(address, _)| *address).collect()
    }

    pub(crate) fn allocation(&self, address: u64) -> Result<AllocationInfo> {
        let found = self.space.find(address);
        found.ok_or_else(|| {
            let location = self.space.describe(address);
            Code::InvalidValue.because(format!("invalid address {location}"))
        })
    }

    fn owner(&self, address: u64) -> Result<Owner> {
        match self.ownership.owners.get(&address) {
            Some(owner) if !owner.pending_free => Ok(*owner),
            Some(_) => {
                let message = format!("{} was already freed", self.space.describe(address));
                Err(Code::InvalidValue.because(message))
            }
            None => {
                let message = format!("cannot free {}", self.space.describe(address));
                Err(Code::InvalidValue.because(message))
            }
        }
    }

    fn allocate(
        &mut self,
        context: ContextHandle,
        bytes: usize,
        kind: AllocationKind,
    ) -> Result<u64> {
        if bytes == 0 {
            return Err(Code::InvalidValue.because("cannot allocate 0 bytes"));
        }
        let device = self.contexts.get(context)?.device;
        if let AllocationKind::Pool(pool) = kind {
            self.take_from_pool(pool, bytes)?;
        } else if kind.takes_plain_memory() {
            if bytes > self.free_memory(device) {
                self.trim_pools(device);
            }
            self.check_room(device, bytes)?;
            *self.ownership.plain.entry(device).or_default() += bytes;
        }
        let owner = Owner { context, device, bytes, kind, pending_free: false };
        match self.space.allocate(bytes, kind.memory_kind(device)) {
            Ok(address) => {
                self.ownership.owners.insert(address, owner);
                if matches!(kind, AllocationKind::Pinned | AllocationKind::Managed) {
                    // The host writes this memory directly, so it counts as initialized.
                    self.space.fill(address, &[0], bytes).map_err(invalid)?;
                }
                Ok(address)
            }
            Err(error) => {
                self.account_free(&owner);
                Err(Code::OutOfMemory.because(error.to_string()))
            }
        }
    }

    /// Records `context` as the owner of memory that uses no device memory.
    pub(crate) fn own(
        &mut self,
        context: ContextHandle,
        address: u64,
        bytes: usize,
        kind: AllocationKind,
    ) -> Result<()> {
        let owner = Owner {
            context,
            device: self.contexts.get(context)?.device,
            bytes,
            kind,
            pending_free: false,
        };
        self.ownership.owners.insert(address, owner);
        Ok(())
    }

    /// Fails unless the device has `bytes` free bytes.
    pub(crate) fn check_room(&self, device: u32, bytes: usize) -> Result<()> {
        let free = self.free_memory(device);
        if bytes <= free {
            return Ok(());
        }
        let total = self.devices[device as usize].memory;
        Err(Code::OutOfMemory.because(format!(
            "out of memory on device {device}: {bytes} bytes requested, {free} of {total} free"
        )))
    }

    pub(crate) fn free_memory(&self, device: u32) -> usize {
        let plain = self.ownership.plain.get(&device).copied().unwrap_or(0);
        let used = plain + self.reserved_by_pools(device) + self.memory_of_communicators(device);
        self.devices[device as usize].memory.saturating_sub(used)
    }

    fn allocate_in_capture(
        &mut self,
        stream: StreamHandle,
        context: ContextHandle,
        bytes: usize,
    ) -> Result<u64> {
        self.captured_tail(stream)?;
        let address = self.allocate(context, bytes, AllocationKind::Graph { live: false })?;
        self.capture_node(stream, NodeKind::Allocate(address))?;
        Ok(address)
    }

    fn free_in_graph(&mut self, address: u64) -> Result<()> {
        if !self.ownership.is_live_in_graph(address) {
            let message = format!(
                "{address:#x} belongs to a graph and is not allocated; launch the graph first"
            );
            return Err(Code::InvalidValue.because(message));
        }
        self.ownership.set_live_in_graph(address, false);
        Ok(())
    }

    fn forget_owner(&mut self, address: u64) {
        if let Some(owner) = self.ownership.owners.remove(&address) {
            self.account_free(&owner);
        }
    }

    fn account_free(&mut self, owner: &Owner) {
        match owner.kind {
            AllocationKind::Pool(pool) => self.return_to_pool(pool, owner.bytes),
            kind if kind.takes_plain_memory() => {
                let plain = self.ownership.plain.entry(owner.device).or_default();
                *plain = plain.saturating_sub(owner.bytes);
            }
            _ => {}
        }
    }

    /// Frees a graph's memory after `after` has run, unless another graph shares it.
    pub(crate) fn release_graph_memory(
        &mut self,
        memory: &Arc<Vec<u64>>,
        after: Vec<Ticket>,
    ) -> Result<()> {
        if Arc::strong_count(memory) > 1 {
            return Ok(());
        }
        for address in memory.iter() {
            if let Some(owner) = self.ownership.owners.get_mut(address) {
                owner.pending_free = true;
                let free = Work::Free { address: *address };
                self.schedule.add(owner.context, after.clone(), free);
            }
        }
        Ok(())
    }
}

impl Ownership {
    /// Marks memory as freed by a submitted operation.
    fn mark_pending_free(&mut self, address: u64) {
        if let Some(owner) = self.owners.get_mut(&address) {
            owner.pending_free = true;
        }
    }

    pub(crate) fn is_live_in_graph(&self, address: u64) -> bool {
        let owner = self.owners.get(&address);
        owner.is_some_and(|it| it.kind == AllocationKind::Graph { live: true })
    }

    pub(crate) fn set_live_in_graph(&mut self, address: u64, live: bool) {
        if let Some(owner) = self.owners.get_mut(&address) {
            owner.kind = AllocationKind::Graph { live };
        }
    }
}

/// The caller passed an address that is not allocated.
pub(crate) fn invalid(error: MemoryError) -> Error {
    Code::InvalidValue.because(error.to_string())
}
