//! Undefined bytes of memory: loads read which bytes are undefined, stores write it.

use super::addresses::ResolvedAddresses;
use super::check::for_ranges;
use super::cta::Cta;
use super::fault::Fault;
use super::locate::locate;
use super::registers::lanes_of;
use super::undefined::{Load, Origin, UndefinedBytes};
use super::warp::Warp;
use super::windows::MemoryId;
use crate::memory::MemoryKind;

impl Cta<'_> {
    /// The undefined bytes that an access at instruction `pc` reads; `None` if there are none.
    #[inline(always)]
    pub(super) fn undefined_bytes(
        &self,
        warp: &Warp,
        resolved: &ResolvedAddresses,
        bytes: usize,
        pc: u32,
    ) -> Option<Box<UndefinedBytes>> {
        let initialized = self.region(resolved.memory).initialized?;
        let sanitize = self.grid.options.sanitize;
        if !sanitize || for_ranges(resolved, bytes, |at, count| initialized.all(at, count)) {
            return None;
        }
        self.find_undefined_bytes(warp, resolved, bytes, pc)
    }

    #[inline(never)]
    fn find_undefined_bytes(
        &self,
        warp: &Warp,
        resolved: &ResolvedAddresses,
        bytes: usize,
        pc: u32,
    ) -> Option<Box<UndefinedBytes>> {
        let initialized = self.region(resolved.memory).initialized?;
        let mut found = Box::<UndefinedBytes>::default();
        for lane in lanes_of(resolved.lanes) {
            let at = resolved.offsets[lane] as usize;
            let missing = (0..bytes).filter(|byte| !initialized.all(at + byte, 1));
            let missing = missing.fold(0u32, |mask, byte| mask | 1 << byte);
            if missing == 0 {
                continue;
            }
            let offset = (at + missing.trailing_zeros() as usize) as u64;
            let load = Load {
                memory: resolved.memory,
                offset,
                stored: self.is_poisoned(resolved.memory, offset),
                pc,
                warp: warp.index as u16,
                lane: lane as u16,
            };
            found.bytes[lane] = missing;
            found.origins[lane] =
                self.stored_origin(resolved.memory, offset).unwrap_or(Origin::Memory(load));
        }
        Some(found)
    }

    fn is_poisoned(&self, memory: MemoryId, offset: u64) -> bool {
        match memory {
            MemoryId::Global(index) => {
                let allocation = &self.grid.allocations[index];
                allocation.stored_undefined(offset, 1).is_some()
            }
            MemoryId::Shared | MemoryId::Local | MemoryId::Param => false,
        }
    }

    /// The origin of the undefined value that this CTA stored at a byte.
    pub(super) fn stored_origin(&self, memory: MemoryId, offset: u64) -> Option<Origin> {
        let origins = match memory {
            MemoryId::Shared => &self.shared.origins,
            MemoryId::Local => &self.local.origins,
            MemoryId::Param | MemoryId::Global(_) => return None,
        };
        origins.get(&(offset / 4)).copied()
    }

    /// Records which of the bytes that were just stored are undefined.
    #[inline(never)]
    pub(super) fn store_undefined(
        &mut self,
        warp: &Warp,
        resolved: &ResolvedAddresses,
        undefined: &UndefinedBytes,
        pc: u32,
    ) -> Result<(), Box<Fault>> {
        let lanes = match self.grid.options.sanitize {
            true => undefined.lanes() & resolved.lanes,
            false => 0,
        };
        for lane in lanes_of(lanes) {
            let (mask, origin) = (undefined.bytes[lane], undefined.origins[lane]);
            let start = resolved.offsets[lane] as usize;
            if let MemoryId::Global(index) = resolved.memory {
                self.poison(warp, (index, start), mask, (lane, pc, origin))?;
                continue;
            }
            let Some(memory) = (match resolved.memory {
                MemoryId::Shared => Some(&mut self.shared),
                MemoryId::Local => Some(&mut self.local),
                MemoryId::Param | MemoryId::Global(_) => None,
            }) else {
                continue;
            };
            for byte in lanes_of(mask) {
                memory.initialized.unset(start + byte, 1);
                memory.origins.insert(((start + byte) / 4) as u64, origin);
            }
        }
        Ok(())
    }

    /// Records that a lane stored undefined bytes in global memory. In pinned memory that is an error,
    /// because the host reads it without the driver.
    fn poison(
        &self,
        warp: &Warp,
        (index, start): (usize, usize),
        mask: u32,
        (lane, pc, origin): (usize, u32, Origin),
    ) -> Result<(), Box<Fault>> {
        let allocation = &self.grid.allocations[index];
        if allocation.info.kind == MemoryKind::Pinned {
            let what = "an undefined value in a store to host memory";
            return Err(self.undefined_use(1 << lane, what, |_| origin));
        }
        allocation.store_undefined(start, mask, || {
            let (kind, source) = self.describe_origin(origin);
            let fault = Fault {
                origin: Some(origin),
                ..*Fault::new(kind, lane, format!("it comes from {source}"))
            };
            locate(self.grid, self.index, warp.index, pc, fault)
        });
        Ok(())
    }
}
