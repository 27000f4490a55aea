//! The memory that samples are read into, within the budget.
//!
//! Each new page costs a page fault, often more than the read itself; reused pages do not. Methods
//! are therefore compared with the same kind of memory, which the report states.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use meshgrad::ckpt::exec::{Sink, Slices};
use meshgrad::ckpt::plan::{LoadPlan, Target};

use crate::ckpt::interrupt::Interrupt;

/// All targets, contiguous in memory that outlives the load.
pub(super) struct ResidentTargets<'a> {
    slices: Slices<'a>,
    interrupt: &'a Interrupt,
}

impl<'a> ResidentTargets<'a> {
    /// Splits `memory`, which must be large enough, into the targets of a plan.
    pub(super) fn new(
        plan: &LoadPlan,
        memory: &'a mut [u8],
        interrupt: &'a Interrupt,
    ) -> ResidentTargets<'a> {
        let mut rest = memory;
        let mut slices = Vec::with_capacity(plan.targets().len());
        for target in plan.targets() {
            let (slice, tail) = rest.split_at_mut(target.bytes as usize);
            slices.push(slice);
            rest = tail;
        }
        ResidentTargets { slices: Slices::new(slices), interrupt }
    }
}

impl<'a> Sink for ResidentTargets<'a> {
    type Buffer = &'a mut [u8];
    type Error = anyhow::Error;

    fn buffer(&self, target: &Target) -> anyhow::Result<&'a mut [u8]> {
        self.interrupt.check()?;
        Ok(self.slices.buffer(target)?)
    }

    fn complete(&self, _: &Target, _: &'a mut [u8]) -> anyhow::Result<()> {
        Ok(())
    }
}

/// Buffers for streamed targets. Targets of equal size reuse a buffer.
pub(super) struct Pool<'a> {
    /// Maximum bytes of all buffers, used and free.
    most: u64,
    /// Whether returned buffers are kept.
    keeps: bool,
    interrupt: &'a Interrupt,
    free_lists: Mutex<FreeLists>,
}

#[derive(Default)]
struct FreeLists {
    /// Free buffers by size.
    free: BTreeMap<u64, Vec<Vec<u8>>>,
    /// Bytes of all buffers, used and free.
    bytes: u64,
}

impl Pool<'_> {
    /// A pool that reuses buffers. It holds at most `most` bytes if no more are in use at a time.
    pub(super) fn recycled(most: u64, interrupt: &Interrupt) -> Pool<'_> {
        Pool { most, keeps: true, interrupt, free_lists: Mutex::default() }
    }

    /// The same, but every target gets new memory from the allocator.
    pub(super) fn new_each_time(most: u64, interrupt: &Interrupt) -> Pool<'_> {
        let keeps = false;
        let pool = Pool::recycled(most, interrupt);
        Pool { keeps, ..pool }
    }
}

impl FreeLists {
    /// Takes a free buffer of this size. If there is none, frees buffers until a new one fits and
    /// returns `None`.
    fn take(&mut self, bytes: u64, most: u64) -> Option<Vec<u8>> {
        let found = self.free.get_mut(&bytes).and_then(Vec::pop);
        if found.is_none() {
            while self.bytes + bytes > most {
                let Some(mut largest) = self.free.last_entry() else {
                    break;
                };
                match largest.get_mut().pop() {
                    Some(buffer) => self.bytes -= buffer.len() as u64,
                    None => drop(largest.remove()),
                }
            }
            self.bytes += bytes;
        }
        found
    }
}

impl Sink for Pool<'_> {
    type Buffer = Vec<u8>;
    type Error = anyhow::Error;

    fn buffer(&self, target: &Target) -> anyhow::Result<Vec<u8>> {
        self.interrupt.check()?;
        let mut free_lists = self.free_lists.lock().unwrap_or_else(PoisonError::into_inner);
        let found = free_lists.take(target.bytes, self.most);
        drop(free_lists);
        Ok(found.unwrap_or_else(|| vec![0; target.bytes as usize]))
    }

    fn complete(&self, target: &Target, buffer: Vec<u8>) -> anyhow::Result<()> {
        let mut free_lists = self.free_lists.lock().unwrap_or_else(PoisonError::into_inner);
        match self.keeps {
            true => free_lists.free.entry(target.bytes).or_default().push(buffer),
            false => free_lists.bytes -= target.bytes,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For any sequence of sizes, all buffers stay within the bound as long as the used ones do,
    /// and returned buffers are reused.
    #[test]
    fn a_pool_stays_within_its_bound() {
        let mut free_lists = FreeLists::default();
        let mut used: Vec<u64> = Vec::new();
        let mut recycled = 0;
        for turn in 0..2000u64 {
            let bytes = [100, 250, 400][(turn * turn % 7 % 3) as usize];
            while used.iter().sum::<u64>() + bytes > 1000 {
                let back = used.remove((turn % used.len() as u64) as usize);
                let buffers = free_lists.free.entry(back).or_default();
                buffers.push(vec![0; back as usize]);
            }
            recycled += u64::from(free_lists.take(bytes, 1000).is_some());
            used.push(bytes);

            let free: u64 = free_lists.free.iter().map(|(b, all)| b * all.len() as u64).sum();
            assert_eq!(free_lists.bytes, free + used.iter().sum::<u64>());
            assert!(free_lists.bytes <= 1000);
        }
        assert!(recycled > 500, "{recycled}");
    }
}
