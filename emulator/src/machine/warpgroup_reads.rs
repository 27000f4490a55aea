//! Checks of the shared memory that asynchronous products read.

use super::check::race_message;
use super::cta::Cta;
use super::fault::Fault;
use super::products::{Product, Rows, Units};
use super::registers::LANES;
use super::vector_clock::products_of;
use super::warp::Warp;
use super::windows::MemoryId;
use crate::memory::races::{LaneRanges, Mark, PriorAccess};
use crate::numerics::descriptor::UNIT;
use crate::report::FindingKind;

impl Cta<'_> {
    /// Checks and records the reads of a product when it is started. Until the wait, they may happen
    /// at any time, so any write to the same bytes races with them.
    pub(super) fn check_reads(&self, warp: &Warp, product: &Product) -> Result<(), Box<Fault>> {
        if let Rows::Shared(units) = &product.a {
            self.check_factor(warp, "A", units, product.number)?;
        }
        self.check_factor(warp, "B", &product.b, product.number)
    }

    fn check_factor(
        &self,
        warp: &Warp,
        name: &str,
        units: &Units,
        number: u32,
    ) -> Result<(), Box<Fault>> {
        let agent = products_of(warp.index);
        let mark = Mark::new(self.shared_stamp, warp.clock.cta, agent, 0, number, false);
        let accessor = self.accessor(warp, MemoryId::Shared);
        for chunk in units.offsets.chunks(LANES) {
            let mut offsets = [0; LANES];
            offsets[..chunk.len()].copy_from_slice(chunk);
            let ranges = LaneRanges {
                lanes: u32::MAX >> (LANES - chunk.len()),
                offsets: &offsets,
                bytes: UNIT as usize,
            };
            if let Some((index, earlier)) = self.shared_races.read(&accessor, mark, ranges) {
                let place = self.unit(warp, offsets[index as usize & 31]);
                let message = race_message(false, UNIT as usize, &place, earlier);
                let message = format!("factor {name}: {message}");
                return Err(unordered(message, earlier));
            }
        }
        self.check_proxy(warp, name, units)
    }

    /// Checks that the product sees all writes to the bytes that it reads.
    fn check_proxy(&self, warp: &Warp, name: &str, units: &Units) -> Result<(), Box<Fault>> {
        let mut visible = Visible::default();
        for unit in &units.offsets {
            for offset in (*unit..unit + UNIT).step_by(4) {
                let writes = self.shared_races.last_writes(offset as usize, self.shared_stamp);
                let Some(write) = self.hidden_write(warp, writes, &mut visible) else {
                    continue;
                };
                let place = self.unit(warp, offset);
                let message = format!(
                    "factor {name}: the product reads {place} through the asynchronous proxy, but \
                     the thread that wrote it did not execute `fence.proxy.async` between the \
                     write (for cp.async: the wait for it) and the barrier; add it"
                );
                return Err(unordered(message, write));
            }
        }
        Ok(())
    }

    /// The last write of a granule, if products cannot see it.
    fn hidden_write(
        &self,
        warp: &Warp,
        writes: [Option<PriorAccess>; 2],
        visible: &mut Visible,
    ) -> Option<PriorAccess> {
        let mut is_hidden = |write: &PriorAccess| {
            let mark = write.mark;
            if !visible.includes(mark) {
                *visible = Visible {
                    agent: mark.agent(),
                    clock: mark.clock(),
                    lanes: self.lanes_visible_to_products(warp, mark),
                };
            }
            !visible.includes(mark)
        };
        match writes {
            [Some(one), Some(other)] => {
                let (first, last) = match one.mark.clock() < other.mark.clock() {
                    true => (one, other),
                    false => (other, one),
                };
                // The order of writes by different warps is unknown here. If one is visible, it may
                // be the last.
                let same_agent = first.mark.agent() == last.mark.agent();
                let hidden = is_hidden(&last) && (same_agent || is_hidden(&first));
                hidden.then_some(last)
            }
            [one, other] => one.or(other).filter(|write| is_hidden(write)),
        }
    }

    fn unit(&self, warp: &Warp, offset: u64) -> String {
        self.place(MemoryId::Shared, warp.index, 0, offset)
    }
}

/// Writes of a warp that products can see. Adjacent granules usually have the same writer.
#[derive(Clone, Copy, Debug, Default)]
struct Visible {
    agent: u8,
    clock: u32,
    lanes: u32,
}

impl Visible {
    fn includes(&self, write: Mark) -> bool {
        let same = self.agent == write.agent() && self.clock == write.clock();
        same && self.lanes >> write.lane() & 1 != 0
    }
}

fn unordered(message: String, earlier: PriorAccess) -> Box<Fault> {
    Box::new(Fault { earlier: Some(earlier), ..*Fault::of_all(FindingKind::SharedRace, message) })
}
