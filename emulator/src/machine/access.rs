//! Loads and stores: address resolution, the checks, and the data movement.

use super::addresses::{Addresses, ResolvedAddresses};
use super::check::AccessInfo;
use super::cta::Cta;
use super::fault::Fault;
use super::happens_before::SyncVar;
use super::lanes::each_lane;
use super::registers::{LANES, lanes_of};
use super::undefined::{UndefinedBytes, low_bits};
use super::warp::Warp;
use super::windows::MemoryId;
use crate::memory::Block;
use crate::memory::races::PriorAccess;
use crate::program::op::{Access, Address, Scope, Strength, Target};

impl Cta<'_> {
    pub(super) fn access(
        &mut self,
        warp: &mut Warp,
        access: &Access,
        mask: u32,
    ) -> Result<(), Box<Fault>> {
        match self.access_coalesced(warp, access, mask)? {
            true => Ok(()),
            false => self.access_general(warp, access, mask),
        }
    }

    #[inline(never)]
    fn access_general(
        &mut self,
        warp: &mut Warp,
        access: &Access,
        mask: u32,
    ) -> Result<(), Box<Fault>> {
        let addresses = self.addresses(warp, &access.address, mask)?;
        let bytes = access.bytes * access.registers.len();
        let info = AccessInfo {
            strong: access.strength != Strength::Weak,
            ..AccessInfo::new(bytes, !access.store, access.store, self.pc)
        };
        if access.store {
            self.progress();
        }
        let stored = self.stored_undefined(warp, access, mask);
        let mut rest = mask;
        while rest != 0 {
            let resolved = self.resolve(warp, access.space, &addresses, rest, info.bytes)?;
            self.count_access(&resolved, info);
            let _locked = self.check(warp, &resolved, info, &|data, lane, earlier| {
                !access.store || changes(data, &resolved.offsets, lane, access, warp, earlier)
            })?;
            let strength = (access.strength, access.scope);
            self.order_access(warp, strength, info, &resolved, &addresses);
            let data = self.data(resolved.memory);
            match (access.store, &stored) {
                (true, None) => store(data, &resolved.offsets, resolved.lanes, access, warp),
                (true, Some(undefined)) => {
                    store(data, &resolved.offsets, resolved.lanes, access, warp);
                    self.store_undefined(warp, &resolved, undefined, self.pc)?;
                }
                (false, _) => {
                    let undefined = self.undefined_bytes(warp, &resolved, info.bytes, self.pc);
                    load(data, &resolved.offsets, resolved.lanes, access, warp);
                    if let Some(undefined) = undefined {
                        load_undefined(&undefined, resolved.lanes, access, warp);
                    }
                }
            }
            rest &= !resolved.lanes;
        }
        Ok(())
    }

    /// The undefined bytes of the registers that a store writes.
    fn stored_undefined(
        &self,
        warp: &Warp,
        access: &Access,
        mask: u32,
    ) -> Option<Box<UndefinedBytes>> {
        let slots = || access.registers.iter().filter_map(|target| target.slot);
        let missing = slots().any(|slot| warp.registers.missing(&[slot], mask) != 0);
        if !access.store || !missing || !self.grid.options.sanitize {
            return None;
        }
        let mut undefined = Box::<UndefinedBytes>::default();
        for (index, target) in access.registers.iter().enumerate() {
            if let Some(slot) = target.slot {
                let register = warp.registers.undefined(slot, target.bits);
                undefined.add(&register, index * access.bytes, access.bytes);
            }
        }
        Some(undefined)
    }

    /// The addresses of an operand.
    #[inline(always)]
    pub(super) fn addresses(
        &self,
        warp: &Warp,
        address: &Address,
        mask: u32,
    ) -> Result<Addresses, Box<Fault>> {
        self.require_defined(warp, address.base, mask)?;
        let offset = address.offset;
        Ok(match address.wide {
            true => {
                let base = warp.registers.wide(address.base);
                each_lane(|lane| base[lane].wrapping_add_signed(offset))
            }
            false => {
                let base = warp.registers.narrow(address.base);
                each_lane(|lane| u64::from(base[lane].wrapping_add(offset as u32)))
            }
        })
    }

    /// Updates the happens-before order for strong accesses.
    pub(super) fn order_access(
        &mut self,
        warp: &mut Warp,
        (strength, scope): (Strength, Scope),
        info: AccessInfo,
        resolved: &ResolvedAddresses,
        addresses: &Addresses,
    ) {
        if strength == Strength::Weak || !self.grid.options.sanitize {
            return;
        }
        let acquire = matches!(strength, Strength::Acquire | Strength::AcquireRelease);
        let release = matches!(strength, Strength::Release | Strength::AcquireRelease);
        // The read of an atomic counts as an acquire: kernels that elect the last CTA by a counter
        // rely on it.
        let acquire = acquire || (info.reads && info.writes);
        let (acquire, release) = (acquire.then_some(scope), release.then_some(scope));
        let mut keys: Vec<u64> = lanes_of(resolved.lanes).map(|lane| addresses[lane]).collect();
        keys.sort_unstable();
        keys.dedup();
        let by = &mut warp.clock;
        let mut order = |sync_vars: &mut std::collections::HashMap<u64, SyncVar>| {
            for key in &keys {
                let sync_var = sync_vars.entry(*key).or_default();
                if info.reads {
                    sync_var.read(by, *key, acquire);
                }
                if info.writes {
                    sync_var.write(by, release);
                }
            }
        };
        match resolved.memory {
            MemoryId::Shared => order(&mut self.sync_vars),
            MemoryId::Global(_) => {
                let locked = self.grid.sync_vars.lock();
                order(&mut locked.unwrap_or_else(std::sync::PoisonError::into_inner));
            }
            MemoryId::Local | MemoryId::Param => {}
        }
    }
}

fn load(data: &Block, offsets: &Addresses, lanes: u32, access: &Access, warp: &mut Warp) {
    for (index, target) in access.registers.iter().enumerate() {
        let Target { slot: Some(slot), bits } = *target else {
            continue;
        };
        let skip = index * access.bytes;
        if access.bytes == 4 && bits == 32 {
            let mut value = [0; LANES];
            data.gather(offsets, skip, lanes, &mut value);
            warp.registers.set_narrow(slot, lanes, &value);
            continue;
        }
        let mut value = [0u64; LANES];
        for lane in lanes_of(lanes) {
            value[lane] = element(data, offsets[lane] as usize + skip, access);
        }
        match bits {
            64 => warp.registers.set_wide(slot, lanes, &value),
            _ => {
                let keep = (1u64 << bits) - 1;
                let value = each_lane(|lane| (value[lane] & keep) as u32);
                warp.registers.set_narrow(slot, lanes, &value);
            }
        }
    }
}

/// Marks the undefined bits of the registers that a load wrote.
#[inline(never)]
fn load_undefined(undefined: &UndefinedBytes, lanes: u32, access: &Access, warp: &mut Warp) {
    for (index, target) in access.registers.iter().enumerate() {
        if let Some(slot) = target.slot {
            let element = undefined.element(index * access.bytes, access.bytes, access.signed);
            let register = element.with_bits(|bits| bits & low_bits(target.bits));
            warp.registers.set_undefined(slot, lanes, &register);
        }
    }
}

/// One element, extended to 64 bits.
#[inline(always)]
fn element(data: &Block, at: usize, access: &Access) -> u64 {
    match (access.bytes, access.signed) {
        (1, false) => u64::from(data.load_u8(at)),
        (1, true) => i64::from(data.load_u8(at) as i8) as u64,
        (2, false) => u64::from(data.load_u16(at)),
        (2, true) => i64::from(data.load_u16(at) as i16) as u64,
        (4, false) => u64::from(data.load_u32(at)),
        (4, true) => i64::from(data.load_u32(at) as i32) as u64,
        _ => data.load_u64(at),
    }
}

fn store(data: &Block, offsets: &Addresses, lanes: u32, access: &Access, warp: &Warp) {
    for (index, target) in access.registers.iter().enumerate() {
        let Target { slot: Some(slot), bits } = *target else {
            continue;
        };
        let skip = index * access.bytes;
        for lane in lanes_of(lanes) {
            let value = register_value(warp, slot, bits, lane);
            let at = offsets[lane] as usize + skip;
            match access.bytes {
                1 => data.store_u8(at, value as u8),
                2 => data.store_u16(at, value as u16),
                4 => data.store_u32(at, value as u32),
                _ => data.store_u64(at, value),
            }
        }
    }
}

#[inline(always)]
fn register_value(warp: &Warp, slot: u32, bits: u32, lane: usize) -> u64 {
    match bits {
        64 => warp.registers.wide(slot)[lane],
        _ => u64::from(warp.registers.narrow(slot)[lane]),
    }
}

/// Whether a store changes the bytes of its lane. A store of the same value by another lane of the
/// same instruction does not count as a change.
fn changes(
    data: &Block,
    offsets: &Addresses,
    lane: usize,
    access: &Access,
    warp: &Warp,
    earlier: &PriorAccess,
) -> bool {
    let keep = u64::MAX >> (64 - access.bytes * 8);
    let mark = earlier.mark;
    let same_instruction = earlier.wrote
        && mark.cta() == warp.clock.cta
        && usize::from(mark.agent()) == warp.index
        && mark.clock() == warp.clock.now;
    let other = usize::from(mark.lane());
    access.registers.iter().enumerate().any(|(index, target)| {
        let Some(slot) = target.slot else {
            return false;
        };
        let new = register_value(warp, slot, target.bits, lane);
        let at = offsets[lane] as usize + index * access.bytes;
        let differs = (element(data, at, access) ^ new) & keep != 0;
        let theirs = register_value(warp, slot, target.bits, other);
        let agree =
            same_instruction && offsets[other] == offsets[lane] && (theirs ^ new) & keep == 0;
        differs && !agree
    })
}
