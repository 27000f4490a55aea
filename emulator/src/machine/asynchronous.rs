//! Asynchronous copies as objects: started by one instruction, waited for by another, and carried
//! out at once, as late as is allowed, or at any moment in between.

use super::check::{ALWAYS, Touch};
use super::cta::Cta;
use super::registers::{LANES, lanes_of};
use super::step::truth;
use super::warp::Warp;
use crate::options::Asynchronous;
use crate::program::op::{CopyAsync, Space};
use crate::report::{Fault, Kind};

/// A copy of one lane from global to shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Copy {
    pub(crate) lane: usize,
    pub(crate) to: u64,
    pub(crate) from: u64,
    pub(crate) bytes: usize,
    /// Bytes that are read; the rest become zero.
    pub(crate) source_bytes: usize,
    /// The group of its lane that it belongs to, counted from 1.
    pub(crate) group: u32,
    /// The instruction that started it.
    pub(crate) pc: u32,
}

impl Copy {
    /// The reading half of it, or the writing one.
    fn touch(&self, reads: bool) -> Touch {
        let bytes = if reads { self.source_bytes } else { self.bytes };
        Touch {
            align: self.bytes,
            copy: Some(self.group),
            ..Touch::new(bytes, reads, !reads, self.pc)
        }
    }
}

/// The copies that a warp has under way.
#[derive(Clone, Debug, Default)]
pub(crate) struct Copies {
    /// Not carried out yet, oldest first.
    pub(crate) pending: Vec<Copy>,
    /// Groups that each lane has committed.
    committed: [u32; 32],
}

impl Copies {
    /// The group that a lane's next copy belongs to.
    pub(crate) fn open_group(&self, lane: usize) -> u32 {
        self.committed[lane] + 1
    }

    pub(crate) fn commit(&mut self, lane: usize) {
        self.committed[lane] += 1;
    }

    /// The last group that is complete when at most `left` groups may be under way; all copies,
    /// committed or not, for `None`.
    pub(crate) fn complete(&self, lane: usize, left: Option<u32>) -> u32 {
        match left {
            Some(left) => self.committed[lane].saturating_sub(left),
            None => self.committed[lane] + 1,
        }
    }

    /// Takes out the copies of `lane` up to a group.
    pub(crate) fn take(&mut self, lane: usize, group: u32) -> Vec<Copy> {
        let due = |copy: &Copy| copy.lane == lane && copy.group <= group;
        let taken = self.pending.iter().copied().filter(due).collect();
        self.pending.retain(|copy| !due(copy));
        taken
    }
}

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
                    self.need_predicate(warp, index, mask)?;
                }
                truth(warp, predicate)
            }
            None => 0,
        };
        let mut source_bytes = [copy.bytes as u32; LANES];
        if let Some(slot) = copy.source_bytes {
            self.need(warp, slot, mask)?;
            source_bytes = *warp.registers.narrow(slot);
        }
        warp.knowledge.start_copies(mask);
        let mut copies = Vec::with_capacity(LANES);
        for lane in lanes_of(mask) {
            let source_bytes = match ignored >> lane & 1 {
                0 => source_bytes[lane] as usize,
                _ => 0,
            };
            if source_bytes > copy.bytes {
                let message = format!("{source_bytes} bytes are read to write {}", copy.bytes);
                return Err(Fault::new(Kind::InvalidArgument, lane, message));
            }
            copies.push(Copy {
                lane,
                to: to[lane],
                from: from[lane],
                bytes: copy.bytes,
                source_bytes,
                group: warp.copies.open_group(lane),
                pc: self.pc,
            });
        }
        if !self.counts.is_empty() {
            self.count_copies(warp, &copies, true)?;
            self.count_copies(warp, &copies, false)?;
        }
        match self.grid.options.asynchronous {
            Asynchronous::Eager => copies
                .into_iter()
                .try_for_each(|copy| self.carry_out(warp, copy)),
            Asynchronous::Lazy | Asynchronous::Random { .. } => {
                warp.copies.pending.extend(copies);
                Ok(())
            }
        }
    }

    /// Counts the reads or the writes of copies that are started together, as one access of the
    /// warp for each size that there is.
    fn count_copies(
        &mut self,
        warp: &Warp,
        copies: &[Copy],
        reads: bool,
    ) -> Result<(), Box<Fault>> {
        let mut rest: Vec<&Copy> = copies.iter().collect();
        while let Some(first) = rest.first() {
            let touch = first.touch(reads);
            let (same, others): (Vec<&Copy>, Vec<&Copy>) = rest
                .iter()
                .partition(|copy| copy.touch(reads).bytes == touch.bytes);
            rest = others;
            let (mut lanes, mut addresses) = (0, [0; LANES]);
            for copy in same {
                lanes |= 1 << copy.lane;
                addresses[copy.lane] = if reads { copy.from } else { copy.to };
            }
            let space = if reads { Space::Global } else { Space::Shared };
            while lanes != 0 && touch.bytes > 0 {
                let spot = self.locate(warp, space, &addresses, lanes, touch.bytes)?;
                self.count_access(&spot, touch);
                lanes &= !spot.lanes;
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
        for lane in lanes_of(mask) {
            let group = warp.copies.complete(lane, left);
            for copy in warp.copies.take(lane, group) {
                self.carry_out(warp, copy)?;
            }
            if left.is_none() {
                warp.copies.commit(lane);
            }
            warp.knowledge.wait_for_copies(lane, group);
        }
        Ok(())
    }

    /// Carries out some pending copies or none, as chance will have it.
    pub(super) fn perhaps_copy(&mut self, warp: &mut Warp) -> Result<(), Box<Fault>> {
        if warp.copies.pending.is_empty() || self.copy_chance.below(8) != 0 {
            return Ok(());
        }
        let pending = warp.copies.pending.len() as u64;
        for left in (1..=pending)
            .rev()
            .take(1 + self.copy_chance.below(pending) as usize)
        {
            let at = self.copy_chance.below(left) as usize;
            let copy = warp.copies.pending.swap_remove(at);
            self.carry_out(warp, copy)?;
        }
        Ok(())
    }

    /// Copies from global to shared memory, as an agent of its own.
    pub(super) fn carry_out(&mut self, warp: &Warp, copy: Copy) -> Result<(), Box<Fault>> {
        let pc = std::mem::replace(&mut self.pc, copy.pc);
        let result = self.carry_out_now(warp, copy);
        self.pc = pc;
        result
    }

    fn carry_out_now(&mut self, warp: &Warp, copy: Copy) -> Result<(), Box<Fault>> {
        let lane = 1 << copy.lane;
        let mut bytes = [0u8; 16];
        if copy.source_bytes > 0 {
            let reading = copy.touch(true);
            let from = [copy.from; LANES];
            let spot = self.locate(warp, Space::Global, &from, lane, reading.bytes)?;
            self.check(warp, &spot, reading, ALWAYS)?;
            let at = spot.offsets[copy.lane] as usize;
            let data = self.data(spot.home);
            data.read(at, &mut bytes[..copy.source_bytes]);
        }
        let writing = copy.touch(false);
        let to = [copy.to; LANES];
        let spot = self.locate(warp, Space::Shared, &to, lane, writing.bytes)?;
        self.check(warp, &spot, writing, ALWAYS)?;
        let at = spot.offsets[copy.lane] as usize;
        self.shared.data.write(at, &bytes[..copy.bytes]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_complete_in_order() {
        let mut copies = Copies::default();
        for group in 1..=3 {
            let copy = Copy {
                lane: 4,
                to: 0,
                from: 0,
                bytes: 16,
                source_bytes: 16,
                group: copies.open_group(4),
                pc: 0,
            };
            assert_eq!(copy.group, group);
            copies.pending.push(copy);
            copies.commit(4);
        }
        assert_eq!(copies.complete(4, Some(1)), 2);
        assert_eq!(copies.take(4, 2).len(), 2);
        assert_eq!(copies.take(5, 9).len(), 0);
        assert_eq!(copies.complete(4, Some(5)), 0);
        assert_eq!(copies.take(4, copies.complete(4, None)).len(), 1);
    }
}
