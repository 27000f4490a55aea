//! Asynchronous copies (`cp.async`). One instruction starts a copy and another waits for it, or an
//! mbarrier does. The data moves immediately, as late as allowed, or at a random time in between.

use super::addresses::Addresses;
use super::check::{ALWAYS, AccessInfo};
use super::copies::Copy;
use super::cta::Cta;
use super::fault::Fault;
use super::registers::{LANES, lanes_of};
use super::step::truth;
use super::undefined::UndefinedBytes;
use super::warp::Warp;
use crate::options::AsyncCopies;
use crate::program::op::{CopyAsync, Space};
use crate::report::FindingKind;

impl Cta<'_> {
    pub(super) fn start_copies(
        &mut self,
        warp: &mut Warp,
        copy: &CopyAsync,
        mask: u32,
    ) -> Result<(), Box<Fault>> {
        let to = self.addresses(warp, &copy.to, mask)?;
        let from = self.addresses(warp, &copy.from, mask)?;
        let ignored = match copy.ignore {
            Some(predicate) => {
                if let Some(index) = predicate.index {
                    self.require_predicate_defined(warp, index, mask)?;
                }
                truth(warp, predicate)
            }
            None => 0,
        };
        let mut source_bytes = [copy.bytes as u32; LANES];
        if let Some(slot) = copy.source_bytes {
            self.require_defined(warp, slot, mask)?;
            source_bytes = *warp.registers.narrow(slot);
        }
        warp.clock.start_copies(mask);
        let mut copies = Vec::with_capacity(LANES);
        for lane in lanes_of(mask) {
            let source_bytes = match ignored >> lane & 1 {
                0 => source_bytes[lane] as usize,
                _ => 0,
            };
            if source_bytes > copy.bytes {
                let message = format!(
                    "cp.async has a source size of {source_bytes} bytes, more than its copy size \
                     of {}",
                    copy.bytes
                );
                return Err(Fault::new(FindingKind::InvalidArgument, lane, message));
            }
            copies.push(Copy {
                lane,
                to: to[lane],
                from: from[lane],
                bytes: copy.bytes,
                source_bytes,
                epoch: warp.copies.open_epoch(lane),
                pc: self.pc,
            });
        }
        for batch in batches(&copies) {
            self.check_copies(warp, &batch)?;
        }
        match self.grid.options.async_copies {
            AsyncCopies::Eager => self.perform_copies(warp, &copies),
            AsyncCopies::Lazy | AsyncCopies::Random { .. } => {
                warp.copies.pending.extend(copies);
                Ok(())
            }
        }
    }

    /// Checks and counts the reads and writes of copies when they are started. Until the wait, a
    /// copy may happen at any time, so any access to the same bytes races with it.
    fn check_copies(&mut self, warp: &Warp, batch: &Batch) -> Result<(), Box<Fault>> {
        for (reads, space, addresses) in
            [(true, Space::Global, &batch.from), (false, Space::Shared, &batch.to)]
        {
            let (info, mut rest) = (access_info(&batch.first, reads), batch.lanes);
            while rest != 0 && info.bytes > 0 {
                let resolved = self.resolve(warp, space, addresses, rest, info.bytes)?;
                self.count_access(&resolved, info);
                self.check(warp, &resolved, info, ALWAYS)?;
                rest &= !resolved.lanes;
            }
        }
        Ok(())
    }

    pub(super) fn wait_for_copies(
        &mut self,
        warp: &mut Warp,
        left: Option<u32>,
        mask: u32,
    ) -> Result<(), Box<Fault>> {
        let done: [u32; LANES] = std::array::from_fn(|lane| match mask >> lane & 1 {
            0 => 0,
            _ => warp.copies.wait(lane, left),
        });
        let due = warp.copies.take(&done);
        self.perform_copies(warp, &due)?;
        for lane in lanes_of(mask) {
            warp.clock.wait_for_copies(lane, done[lane]);
        }
        Ok(())
    }

    /// Performs a random selection of pending copies and arrivals, possibly none.
    pub(super) fn maybe_perform_copies(&mut self, warp: &mut Warp) -> Result<(), Box<Fault>> {
        if warp.copies.is_idle() || self.copy_random.below(8) != 0 {
            return Ok(());
        }
        let pending = warp.copies.pending.len() as u64;
        let count = match pending {
            0 => 0,
            _ => 1 + self.copy_random.below(pending),
        };
        for left in (1..=pending).rev().take(count as usize) {
            let at = self.copy_random.below(left) as usize;
            let copy = warp.copies.pending.swap_remove(at);
            self.perform_copies(warp, &[copy])?;
        }
        self.maybe_arrive_for_copies(warp)
    }

    /// Copies from global to shared memory.
    pub(super) fn perform_copies(
        &mut self,
        warp: &Warp,
        copies: &[Copy],
    ) -> Result<(), Box<Fault>> {
        for batch in batches(copies) {
            let (reads, writes) = (batch.first.source_bytes, batch.first.bytes);
            let mut bytes = [[0u8; 16]; LANES];
            let mut undefined = UndefinedBytes::default();
            let mut rest = if reads > 0 { batch.lanes } else { 0 };
            while rest != 0 {
                let resolved = self.resolve(warp, Space::Global, &batch.from, rest, reads)?;
                let data = self.data(resolved.memory);
                for lane in lanes_of(resolved.lanes) {
                    data.read(resolved.offsets[lane] as usize, &mut bytes[lane][..reads]);
                }
                if let Some(read) = self.undefined_bytes(warp, &resolved, reads, batch.first.pc) {
                    undefined.merge(&read);
                }
                rest &= !resolved.lanes;
            }
            let resolved = self.resolve(warp, Space::Shared, &batch.to, batch.lanes, writes)?;
            for lane in lanes_of(batch.lanes) {
                let at = resolved.offsets[lane] as usize;
                self.shared.data.write(at, &bytes[lane][..writes]);
            }
            self.store_undefined(warp, &resolved, &undefined, batch.first.pc)?;
        }
        Ok(())
    }
}

/// The read or the write of a copy, for the checks.
fn access_info(copy: &Copy, reads: bool) -> AccessInfo {
    let bytes = if reads { copy.source_bytes } else { copy.bytes };
    AccessInfo {
        align: copy.bytes,
        copy: Some(copy.epoch),
        ..AccessInfo::new(bytes, reads, !reads, copy.pc)
    }
}

/// Similar copies of several lanes, at most one per lane.
struct Batch {
    first: Copy,
    lanes: u32,
    from: Addresses,
    to: Addresses,
}

/// Groups copies into batches. The copies of one lane keep their order.
fn batches(copies: &[Copy]) -> Vec<Batch> {
    let mut batches: Vec<Batch> = Vec::with_capacity(1);
    for copy in copies {
        let lane = 1 << copy.lane;
        let alike = |batch: &Batch| {
            let kind = |it: &Copy| (it.pc, it.epoch, it.bytes, it.source_bytes);
            kind(&batch.first) == kind(copy) && batch.lanes & lane == 0
        };
        // To keep each lane's order, a copy joins only batches after the last one that has its
        // lane.
        let since = batches.iter().rposition(|batch| batch.lanes & lane != 0);
        let open = &mut batches[since.map_or(0, |at| at + 1)..];
        if let Some(batch) = open.iter_mut().find(|batch| alike(batch)) {
            batch.lanes |= lane;
            batch.from[copy.lane] = copy.from;
            batch.to[copy.lane] = copy.to;
            continue;
        }
        let (mut from, mut to) = ([0; LANES], [0; LANES]);
        (from[copy.lane], to[copy.lane]) = (copy.from, copy.to);
        batches.push(Batch { first: *copy, lanes: lane, from, to });
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_hold_each_lane_once_and_keep_its_order() {
        let copy = |lane, pc| Copy {
            lane,
            to: 16 * lane as u64,
            from: u64::from(pc),
            bytes: 16,
            source_bytes: 16,
            epoch: 1,
            pc,
        };
        let copies = [copy(0, 1), copy(1, 1), copy(0, 2), copy(1, 2), copy(0, 1)];
        let batches = batches(&copies);
        let kinds: Vec<(u32, u32)> = batches.iter().map(|it| (it.first.pc, it.lanes)).collect();
        assert_eq!(kinds, [(1, 0b11), (2, 0b11), (1, 0b1)]);
        assert_eq!((batches[1].to[1], batches[1].from[1]), (16, 2));
    }
}
