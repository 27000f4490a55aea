//! Atomics: lanes execute one after the other, so each reads the result of the previous one.

use super::addresses::ResolvedAddresses;
use super::check::{ALWAYS, AccessInfo};
use super::cta::Cta;
use super::fault::Fault;
use super::lanes::{narrowed, widened};
use super::registers::{LANES, lanes_of};
use super::warp::Warp;
use super::windows::MemoryId;
use crate::memory::Block;
use crate::program::op::Atomic;
use std::sync::atomic::Ordering::Relaxed;

impl Cta<'_> {
    pub(super) fn atomic(
        &mut self,
        warp: &mut Warp,
        atomic: &Atomic,
        mask: u32,
    ) -> Result<(), Box<Fault>> {
        let addresses = self.addresses(warp, &atomic.address, mask)?;
        self.require_defined(warp, atomic.from, mask)?;
        if let Some(swap) = atomic.swap {
            self.require_defined(warp, swap, mask)?;
        }
        let info =
            AccessInfo { strong: true, ..AccessInfo::new(atomic.bytes, true, true, self.pc) };
        let wide = atomic.bytes == 8;
        let source = |slot| -> [u64; LANES] {
            match wide {
                true => *warp.registers.wide(slot),
                false => widened(warp.registers.narrow(slot)),
            }
        };
        let from = source(atomic.from);
        let swap = atomic.swap.map(source);
        let mut old = [0; LANES];
        let mut rest = mask;
        while rest != 0 {
            let resolved = self.resolve(warp, atomic.space, &addresses, rest, info.bytes)?;
            self.count_access(&resolved, info);
            let _locked = self.check(warp, &resolved, info, ALWAYS)?;
            let strength = (atomic.strength, atomic.scope);
            self.order_access(warp, strength, info, &resolved, &addresses);
            let ResolvedAddresses { memory, lanes, offsets } = resolved;
            let combine = match memory {
                MemoryId::Global(_) => atomic.update_in_global,
                _ => atomic.update,
            };
            let mut progress = false;
            let data = self.data(memory);
            for lane in lanes_of(lanes) {
                let update = |current: u64| match &swap {
                    None => combine(current, from[lane]),
                    Some(new) if current == from[lane] => new[lane],
                    Some(_) => current,
                };
                old[lane] = exchange(data, offsets[lane] as usize, atomic.bytes, update);
                // A failed compare-and-swap is a wait, not progress.
                if update(old[lane]) != old[lane] || memory == MemoryId::Local {
                    progress = true;
                }
            }
            if progress {
                self.progress();
            }
            rest &= !lanes;
        }
        if let Some(to) = atomic.to {
            match wide {
                true => warp.registers.set_wide(to, mask, &old),
                false => warp.registers.set_narrow(to, mask, &narrowed(&old)),
            }
        }
        Ok(())
    }
}

/// Replaces the value `v` at `at` by `update(v)` and returns `v`.
fn exchange(data: &Block, at: usize, bytes: usize, update: impl Fn(u64) -> u64) -> u64 {
    macro_rules! exchange {
        ($at:ident, $int:ty) => {{
            let cell = data.$at(at);
            let new = |old| Some(update(u64::from(old)) as $int);
            // The closure always returns a value, so this cannot fail.
            let old = cell.fetch_update(Relaxed, Relaxed, new);
            u64::from(old.unwrap_or_else(|old| old))
        }};
    }
    match bytes {
        2 => exchange!(at_u16, u16),
        4 => exchange!(at_u32, u32),
        _ => exchange!(at_u64, u64),
    }
}
