//! Memory that programs ask for: whose it is, how much a device has left, and how it is given back.

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

/// Who owns which memory.
#[derive(Default)]
pub(crate) struct Ledger {
    /// By first address.
    pub(crate) owners: BTreeMap<u64, Owner>,
    /// Bytes of devices that belong to no pool.
    plain: BTreeMap<u32, usize>,
}

#[derive(Clone, Copy)]
pub(crate) struct Owner {
    pub(crate) context: ContextHandle,
    pub(crate) device: u32,
    bytes: usize,
    pub(crate) kind: Kind,
    /// An operation of a stream that was submitted will free it.
    doomed: bool,
}

/// How memory was asked for, and so how it is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
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
    /// A node of a graph; live between a launch and its being freed.
    Graph { live: bool },
}

impl Kind {
    fn memory_kind(self, device: u32) -> MemoryKind {
        match self {
            Kind::Device | Kind::Pool(_) | Kind::Graph { .. } => MemoryKind::Device(device),
            Kind::Pinned | Kind::Registered => MemoryKind::Pinned,
            Kind::Managed => MemoryKind::Managed(device),
        }
    }

    fn takes_plain_memory(self) -> bool {
        !matches!(self, Kind::Pinned | Kind::Registered | Kind::Pool(_))
    }
}

/// Device addresses lie here, and no host pointer does.
const DEVICE_ADDRESSES: std::ops::Range<u64> = 0x1000_0000_0000..0x4000_0000_0000;

impl Driver {
    /// `cuMemAlloc`, `cuMemAllocManaged` and `cuMemHostAlloc`.
    pub(crate) fn allocate(&self, bytes: usize, kind: Kind) -> Result<u64> {
        let mut state = self.lock();
        let context = state.current()?;
        state.refuse_while_capturing("an allocation")?;
        match state.allocate(context, bytes, kind) {
            Err(error) if error.code == Code::OutOfMemory => {
                // What streams are to free may be enough.
                let mut state = self.wait(state, |state| state.schedule.is_idle(context));
                state.healthy(context)?;
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
        state.refuse_implicit(stream)?;
        let pool = match pool {
            Some(pool) => pool,
            None => state.device_pools[state.contexts.get(context)?.device as usize].1,
        };
        match state.allocate(context, bytes, Kind::Pool(pool)) {
            Err(error) if error.code == Code::OutOfMemory => {
                let mut state = self.wait(state, |state| state.schedule.is_idle(context));
                state.healthy(context)?;
                state.allocate(context, bytes, Kind::Pool(pool))
            }
            outcome => outcome,
        }
    }

    /// `cuMemFree`: waits for what runs, except for memory of a pool, of which the caller says that
    /// nothing uses it any more.
    pub(crate) fn free(&self, address: u64) -> Result<()> {
        if address == 0 {
            return Ok(());
        }
        let mut state = self.lock();
        let context = state.current()?;
        state.refuse_while_capturing("cuMemFree")?;
        match state.owner(address)?.kind {
            Kind::Graph { .. } => state.free_in_graph(address),
            Kind::Pinned | Kind::Registered => Err(Code::InvalidValue.because(format!(
                "{address:#x} is page-locked memory of the host, not of a device"
            ))),
            Kind::Pool(_) => state.free_now(address),
            Kind::Device | Kind::Managed => {
                let mut state = self.wait(state, |state| state.schedule.is_idle(context));
                state.healthy(context)?;
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
        state.refuse_while_capturing("cuMemFreeHost")?;
        if state.owner(address)?.kind != Kind::Pinned {
            let words = format!("{address:#x} is not from cuMemHostAlloc");
            return Err(Code::InvalidValue.because(words));
        }
        let mut state = self.wait(state, |state| state.schedule.is_idle(context));
        state.healthy(context)?;
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
                let words = format!("{address:#x} was not allocated in the same capture");
                return Err(Code::InvalidValue.because(words));
            }
            return state.capture_node(stream, NodeKind::Free(address));
        }
        match kind {
            Kind::Pool(_) => {
                state.enqueue(stream, Vec::new(), Work::Free { address })?;
                state.ledger.doom(address);
            }
            Kind::Graph { .. } => state.free_in_graph(address)?,
            Kind::Device | Kind::Pinned | Kind::Registered | Kind::Managed => {
                let words = format!("{address:#x} is not from cuMemAllocAsync");
                return Err(Code::InvalidValue.because(words));
            }
        }
        self.settle(state, stream)
    }

    /// Does what `cuMemFreeAsync` asked for.
    pub(crate) fn perform_free(&self, address: u64) -> Result<()> {
        self.with(|state| state.free_now(address))
    }

    /// `cuMemGetInfo`: free and total bytes of the current device.
    pub(crate) fn memory_info(&self) -> Result<(usize, usize)> {
        self.with(|state| {
            let context = state.current()?;
            let device = state.contexts.get(context)?.device;
            Ok((
                state.free_memory(device),
                state.devices[device as usize].memory,
            ))
        })
    }
}

impl State {
    /// An error unless `bytes` bytes at `address` lie in one allocation that will stay.
    pub(crate) fn check_range(&self, address: u64, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let info = self.allocation(address)?;
        if self
            .ledger
            .owners
            .get(&info.base)
            .is_some_and(|it| it.doomed)
        {
            let words = format!(
                "{}, was given to cuMemFreeAsync",
                self.space.describe(address)
            );
            return Err(Code::InvalidValue.because(words));
        }
        match (address - info.base).checked_add(bytes as u64) {
            Some(end) if end <= info.bytes as u64 => Ok(()),
            _ => {
                let words = format!("{bytes} bytes at {}", self.space.describe(address));
                Err(Code::InvalidValue.because(words))
            }
        }
    }

    /// Whether an address is certainly not the host's own.
    pub(crate) fn is_foreign(address: u64) -> bool {
        address == 0 || DEVICE_ADDRESSES.contains(&address)
    }

    /// Frees memory, whatever it is.
    pub(crate) fn free_now(&mut self, address: u64) -> Result<()> {
        self.space.free(address).map_err(invalid)?;
        self.forget_owner(address);
        Ok(())
    }

    /// The first addresses of what belongs to `context`, apart from what will be freed anyway.
    pub(crate) fn memory_of(&self, context: ContextHandle) -> Vec<u64> {
        let all = self.ledger.owners.iter();
        let here = all.filter(|(_, owner)| owner.context == context && !owner.doomed);
        here.map(|(address, _)| *address).collect()
    }

    pub(crate) fn allocation(&self, address: u64) -> Result<AllocationInfo> {
        let found = self.space.find(address);
        found.ok_or_else(|| Code::InvalidValue.because(self.space.describe(address).to_string()))
    }

    fn owner(&self, address: u64) -> Result<Owner> {
        match self.ledger.owners.get(&address) {
            Some(owner) if !owner.doomed => Ok(*owner),
            Some(_) => {
                let words = format!("{} was freed before", self.space.describe(address));
                Err(Code::InvalidValue.because(words))
            }
            None => {
                let words = format!("cannot free {}", self.space.describe(address));
                Err(Code::InvalidValue.because(words))
            }
        }
    }

    fn allocate(&mut self, context: ContextHandle, bytes: usize, kind: Kind) -> Result<u64> {
        if bytes == 0 {
            return Err(Code::InvalidValue.because("an allocation of no bytes"));
        }
        let device = self.contexts.get(context)?.device;
        if let Kind::Pool(pool) = kind {
            self.take_from_pool(pool, bytes)?;
        } else if kind.takes_plain_memory() {
            if bytes > self.free_memory(device) {
                self.trim_pools(device);
            }
            self.check_room(device, bytes)?;
            *self.ledger.plain.entry(device).or_default() += bytes;
        }
        let owner = Owner {
            context,
            device,
            bytes,
            kind,
            doomed: false,
        };
        match self.space.allocate(bytes, kind.memory_kind(device)) {
            Ok(address) => {
                self.ledger.owners.insert(address, owner);
                if matches!(kind, Kind::Pinned | Kind::Managed) {
                    // The host may write it any time, unseen.
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

    /// Notes that memory which takes none of a device's belongs to `context`.
    pub(crate) fn own(
        &mut self,
        context: ContextHandle,
        address: u64,
        bytes: usize,
        kind: Kind,
    ) -> Result<()> {
        let owner = Owner {
            context,
            device: self.contexts.get(context)?.device,
            bytes,
            kind,
            doomed: false,
        };
        self.ledger.owners.insert(address, owner);
        Ok(())
    }

    /// An error unless the device has `bytes` more.
    pub(crate) fn check_room(&self, device: u32, bytes: usize) -> Result<()> {
        let free = self.free_memory(device);
        if bytes <= free {
            return Ok(());
        }
        let total = self.devices[device as usize].memory;
        Err(Code::OutOfMemory.because(format!(
            "{bytes} bytes asked for and {free} of {total} free on device {device}"
        )))
    }

    pub(crate) fn free_memory(&self, device: u32) -> usize {
        let plain = self.ledger.plain.get(&device).copied().unwrap_or(0);
        let pooled = self.reserved_by_pools(device);
        self.devices[device as usize]
            .memory
            .saturating_sub(plain + pooled)
    }

    fn allocate_in_capture(
        &mut self,
        stream: StreamHandle,
        context: ContextHandle,
        bytes: usize,
    ) -> Result<u64> {
        self.captured_tail(stream)?;
        let address = self.allocate(context, bytes, Kind::Graph { live: false })?;
        self.capture_node(stream, NodeKind::Allocate(address))?;
        Ok(address)
    }

    fn free_in_graph(&mut self, address: u64) -> Result<()> {
        if !self.ledger.is_live_in_graph(address) {
            let words = format!("no launch of its graph has allocated {address:#x}");
            return Err(Code::InvalidValue.because(words));
        }
        self.ledger.set_live_in_graph(address, false);
        Ok(())
    }

    fn forget_owner(&mut self, address: u64) {
        if let Some(owner) = self.ledger.owners.remove(&address) {
            self.account_free(&owner);
        }
    }

    fn account_free(&mut self, owner: &Owner) {
        match owner.kind {
            Kind::Pool(pool) => self.return_to_pool(pool, owner.bytes),
            kind if kind.takes_plain_memory() => {
                let plain = self.ledger.plain.entry(owner.device).or_default();
                *plain = plain.saturating_sub(owner.bytes);
            }
            _ => {}
        }
    }

    /// Gives a graph's memory back when nothing else can launch it, after `after` has run.
    pub(crate) fn give_back(&mut self, memory: &Arc<Vec<u64>>, after: Vec<Ticket>) -> Result<()> {
        if Arc::strong_count(memory) > 1 {
            return Ok(());
        }
        for address in memory.iter() {
            if let Some(owner) = self.ledger.owners.get_mut(address) {
                owner.doomed = true;
                let free = Work::Free { address: *address };
                self.schedule.add(owner.context, after.clone(), free);
            }
        }
        Ok(())
    }
}

impl Ledger {
    /// Marks memory as freed by an operation that was submitted.
    fn doom(&mut self, address: u64) {
        if let Some(owner) = self.owners.get_mut(&address) {
            owner.doomed = true;
        }
    }

    pub(crate) fn is_live_in_graph(&self, address: u64) -> bool {
        let owner = self.owners.get(&address);
        owner.is_some_and(|it| it.kind == Kind::Graph { live: true })
    }

    pub(crate) fn set_live_in_graph(&mut self, address: u64, live: bool) {
        if let Some(owner) = self.owners.get_mut(&address) {
            owner.kind = Kind::Graph { live };
        }
    }
}

/// The program named memory that is not there.
pub(crate) fn invalid(error: MemoryError) -> Error {
    Code::InvalidValue.because(error.to_string())
}
