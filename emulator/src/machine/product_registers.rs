//! Races between asynchronous products and other instructions for registers.
//!
//! A product accesses its registers at any time until the wait for its group. Until then, other
//! instructions must not access D, and must not write A. `wgmma.fence` orders a product after the
//! earlier accesses of other instructions. Products with the same D are ordered.

use super::cta::Cta;
use super::fault::Fault;
use super::products::{Product, Rows, Use};
use super::registers::Slot;
use super::warp::Warp;
use crate::report::FindingKind;

impl Cta<'_> {
    /// Checks and records that an instruction accesses registers of products.
    #[inline(always)]
    pub(super) fn touch_registers(&self, warp: &mut Warp, pc: u32) -> Result<(), Box<Fault>> {
        let is_empty = self.grid.kernel.touches[pc as usize].is_empty();
        match is_empty || !self.grid.options.sanitize {
            true => Ok(()),
            false => self.touch_registers_of_products(warp, pc),
        }
    }

    #[inline(never)]
    fn touch_registers_of_products(&self, warp: &mut Warp, pc: u32) -> Result<(), Box<Fault>> {
        let products = &mut warp.products;
        for touch in &self.grid.kernel.touches[pc as usize] {
            let last = products.registers.last_use(touch.slot);
            if let Some(last) = last.filter(|it| it.product > products.waited)
                && (touch.writes || last.accumulator.is_some())
            {
                let verb = if touch.writes { "writes" } else { "reads" };
                return Err(self.in_flight(warp, verb, last));
            }
            let touched = &mut products.registers.touched;
            if !touched.iter().any(|(slot, _)| *slot == touch.slot) {
                touched.push((touch.slot, pc));
            }
        }
        Ok(())
    }

    /// The fault of an instruction that accesses a register of a product before its wait.
    fn in_flight(&self, warp: &Warp, verb: &str, product: Use) -> Box<Fault> {
        let role = match product.accumulator {
            Some(_) => "D",
            None => "A",
        };
        let way_out = match warp.products.is_committed(product.product) {
            true => "`wgmma.wait_group` does not cover its group yet; wait for it first",
            false => {
                "it is not committed, so no wait covers it; add `wgmma.commit_group` and \
                 `wgmma.wait_group`"
            }
        };
        let line = self.line(product.pc);
        let message = format!(
            "the instruction {verb} a register of {role} of the asynchronous product at ptx line \
             {line}, which may not be complete: {way_out}"
        );
        Fault::of_all(FindingKind::RegisterRace, message)
    }

    /// Checks that a new product may use its registers, and records that it does.
    pub(super) fn use_registers(
        &self,
        warp: &mut Warp,
        product: &Product,
    ) -> Result<(), Box<Fault>> {
        let registers = &warp.products.registers;
        if !registers.fenced {
            let message = "the first `wgmma.mma_async` of a warp needs a `wgmma.fence` before it";
            return Err(Fault::of_all(FindingKind::RegisterRace, message));
        }
        let a: &[Slot] = match &product.a {
            Rows::Registers(slots) => slots,
            Rows::Shared(_) => &[],
        };
        let count = product.d.len() as u32;
        let of_d = product.d.iter().zip(0..);
        let of_d = of_d.map(|(slot, at)| (*slot, Some((at, count))));
        let uses = of_d.chain(a.iter().map(|slot| (*slot, None)));
        for (slot, accumulator) in uses.clone() {
            self.check_use(warp, slot, accumulator)?;
        }
        for (slot, accumulator) in uses {
            let new = Use { product: product.number, pc: product.pc, accumulator };
            warp.products.registers.set_use(slot, new);
        }
        Ok(())
    }

    fn check_use(
        &self,
        warp: &Warp,
        slot: Slot,
        accumulator: Option<(u32, u32)>,
    ) -> Result<(), Box<Fault>> {
        let registers = &warp.products.registers;
        if let Some((_, pc)) = registers.touched.iter().find(|(touched, _)| *touched == slot) {
            let role = if accumulator.is_some() { "D" } else { "A" };
            let line = self.line(*pc);
            let message = format!(
                "the instruction at ptx line {line} accesses a register of {role} without a \
                 `wgmma.fence` between it and the product; add one"
            );
            return Err(Fault::of_all(FindingKind::RegisterRace, message));
        }
        let in_flight = registers.last_use(slot);
        match in_flight.filter(|it| it.product > warp.products.waited) {
            // Products that accumulate in the same registers are ordered.
            Some(last) if last.accumulator != accumulator => {
                Err(self.in_flight(warp, "uses", last))
            }
            _ => Ok(()),
        }
    }

    fn line(&self, pc: u32) -> u32 {
        self.grid.kernel.code[pc as usize].line
    }
}
