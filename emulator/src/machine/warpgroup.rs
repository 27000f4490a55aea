//! Asynchronous products of a warpgroup (`wgmma`). One instruction starts a product and another
//! waits for its group. Each warp computes its 16 rows: immediately, as late as allowed, or at a
//! random time in between, in the order in which it started them.

use super::cta::Cta;
use super::fault::Fault;
use super::products::{Product, Rows, Shared, Units, WARPS};
use super::registers::{ALL, LANES, Slot};
use super::step::{Flow, truth};
use super::warp::Warp;
use crate::numerics::descriptor::{Block, Descriptor, UNITS, WrongDescriptor, block_of_units};
use crate::numerics::warpgroup::{self, RowsOfA};
use crate::options::AsyncCopies;
use crate::program::op::{FactorA, SharedFactor, WarpgroupMultiply};
use crate::report::FindingKind;

/// Rows of A that a warp has.
const ROWS: usize = 16;

impl Cta<'_> {
    pub(super) fn start_product(
        &mut self,
        warp: &mut Warp,
        multiply: &WarpgroupMultiply,
        mask: u32,
    ) -> Result<Flow, Box<Fault>> {
        if let Some(flow) = self.require_full_warp(warp, mask)? {
            return Ok(flow);
        }
        self.require_whole_warpgroup(warp)?;
        let shared = self.shared_operands(warp, multiply)?;
        self.agree_on_product(warp, shared)?;
        let [bits_of_a, bits_of_b] = shared.descriptors;
        let a = match multiply.a {
            FactorA::Registers(slots) => Rows::Registers(slots),
            FactorA::Shared(factor) => {
                let lines = (warp.index % WARPS * ROWS, ROWS / 8);
                Rows::Shared(self.units("A", bits_of_a, factor, lines)?)
            }
        };
        let lines = (0, multiply.columns() / 8);
        let b = self.units("B", bits_of_b, multiply.b, lines)?;
        warp.products.started += 1;
        let product = Product {
            number: warp.products.started,
            pc: self.pc,
            element: multiply.element,
            negates: multiply.negates,
            accumulates: shared.accumulates,
            a,
            b,
            d: multiply.d.clone(),
        };
        if self.grid.options.sanitize {
            self.use_registers(warp, &product)?;
            self.check_reads(warp, &product)?;
        }
        warp.products.pending.push_back(product);
        if self.grid.options.async_copies == AsyncCopies::Eager {
            self.perform_products(warp, u32::MAX);
        }
        Ok(Flow::Next)
    }

    fn require_whole_warpgroup(&self, warp: &Warp) -> Result<(), Box<Fault>> {
        let group = warp.index / WARPS;
        let needed = (group + 1) * WARPS * LANES;
        let threads = self.grid.threads() as usize;
        if threads >= needed {
            return Ok(());
        }
        let message = format!(
            "a warpgroup has four warps, but warpgroup {group} of this CTA is incomplete: the CTA \
             has {threads} threads; launch a multiple of 128"
        );
        Err(Fault::of_all(FindingKind::DivergentInstruction, message))
    }

    /// The operands that all warps of the warpgroup share.
    fn shared_operands(
        &self,
        warp: &Warp,
        multiply: &WarpgroupMultiply,
    ) -> Result<Shared, Box<Fault>> {
        let a = match multiply.a {
            FactorA::Registers(_) => 0,
            FactorA::Shared(factor) => self.descriptor(warp, "A", factor.descriptor)?,
        };
        Ok(Shared {
            pc: self.pc,
            descriptors: [a, self.descriptor(warp, "B", multiply.b.descriptor)?],
            accumulates: self.accumulates(warp, multiply)?,
        })
    }

    /// The units of a factor that a warp reads: from the first line, in blocks of 8 lines.
    fn units(
        &self,
        name: &str,
        bits: u64,
        factor: SharedFactor,
        (first, blocks): (usize, usize),
    ) -> Result<Units, Box<Fault>> {
        let descriptor = Descriptor::parse(bits).map_err(|wrong| {
            let (kind, message) = match wrong {
                WrongDescriptor::Invalid(message) => (FindingKind::InvalidArgument, message),
                WrongDescriptor::Misaligned(message) => (FindingKind::Misaligned, message),
            };
            Fault::of_all(kind, format!("factor {name}: {message}"))
        })?;
        let base = u64::from(self.grid.options.shared_base);
        let mut offsets = descriptor.units(factor.transposed, first, blocks);
        for offset in &mut offsets {
            *offset = offset.wrapping_sub(base);
        }
        let size = self.shared.bytes as u64;
        let is_outside = |at: &u64| at.checked_add(16).is_none_or(|end| end > size);
        if let Some(outside) = offsets.iter().find(|at| is_outside(at)) {
            let place = *outside as i64;
            let message = format!(
                "factor {name}: the descriptor {bits:#018x} leads to a read of 16 bytes at byte \
                 {place} of shared memory, which has a size of {size} bytes"
            );
            return Err(Fault::of_all(FindingKind::OutOfBounds, message));
        }
        Ok(Units { offsets, transposed: factor.transposed })
    }

    /// The bits of a descriptor, which must be the same in all lanes.
    fn descriptor(&self, warp: &Warp, name: &str, slot: Slot) -> Result<u64, Box<Fault>> {
        self.require_defined(warp, slot, ALL)?;
        let values = warp.registers.wide(slot);
        let first = values[0];
        match values.iter().position(|value| *value != first) {
            None => Ok(first),
            Some(lane) => {
                let other = values[lane];
                let message = format!(
                    "factor {name}: the descriptor must be the same in all lanes; it is \
                     {first:#018x} in lane 0 and {other:#018x} in lane {lane}"
                );
                Err(Fault::new(FindingKind::InvalidArgument, lane, message))
            }
        }
    }

    /// Whether D is added, which must be the same in all lanes.
    fn accumulates(&self, warp: &Warp, multiply: &WarpgroupMultiply) -> Result<bool, Box<Fault>> {
        if let Some(predicate) = multiply.accumulates.index {
            self.require_predicate_defined(warp, predicate, ALL)?;
        }
        match truth(warp, multiply.accumulates) {
            0 => Ok(false),
            ALL => Ok(true),
            lanes => {
                let message = format!(
                    "the predicate that adds D must be the same in all lanes; it is true in lanes \
                     {lanes:#010x}"
                );
                Err(Fault::of_all(FindingKind::InvalidArgument, message))
            }
        }
    }

    pub(super) fn warpgroup_fence(
        &mut self,
        warp: &mut Warp,
        mask: u32,
    ) -> Result<Flow, Box<Fault>> {
        if let Some(flow) = self.require_full_warp(warp, mask)? {
            return Ok(flow);
        }
        warp.products.registers.fence();
        Ok(Flow::Next)
    }

    pub(super) fn commit_products(
        &mut self,
        warp: &mut Warp,
        mask: u32,
    ) -> Result<Flow, Box<Fault>> {
        if let Some(flow) = self.require_full_warp(warp, mask)? {
            return Ok(flow);
        }
        warp.products.commit();
        Ok(Flow::Next)
    }

    pub(super) fn wait_for_products(
        &mut self,
        warp: &mut Warp,
        left: u32,
        mask: u32,
    ) -> Result<Flow, Box<Fault>> {
        if let Some(flow) = self.require_full_warp(warp, mask)? {
            return Ok(flow);
        }
        let done = warp.products.wait(left);
        self.perform_products(warp, done);
        warp.clock.waited_products = done;
        Ok(Flow::Next)
    }

    /// Performs some of the pending products, possibly none.
    pub(super) fn maybe_perform_products(&mut self, warp: &mut Warp) {
        let pending = warp.products.pending.len() as u64;
        if pending == 0 || self.copy_random.below(8) != 0 {
            return;
        }
        let last = self.copy_random.below(pending) as usize;
        let number = warp.products.pending[last].number;
        self.perform_products(warp, number);
    }

    /// Performs the pending products up to a number.
    fn perform_products(&mut self, warp: &mut Warp, last: u32) {
        for product in warp.products.take(last) {
            self.perform_product(warp, &product);
        }
    }

    fn perform_product(&mut self, warp: &mut Warp, product: &Product) {
        let undefined = match self.grid.options.sanitize {
            true => self.undefined_product(warp, product),
            false => None,
        };
        let a = match &product.a {
            Rows::Registers(slots) => {
                RowsOfA::Registers(slots.map(|slot| *warp.registers.narrow(slot)))
            }
            Rows::Shared(units) => {
                let blocks = self.blocks(units);
                RowsOfA::Shared([blocks[0], blocks[1]])
            }
        };
        let b = self.blocks(&product.b);
        let d = product.d.iter().map(|slot| *warp.registers.narrow(*slot));
        let mut d: Vec<_> = d.collect();
        let Product { element, negates, accumulates, .. } = *product;
        warpgroup::multiply(element, negates, accumulates, &a, &b, &mut d);
        for (slot, value) in product.d.iter().zip(&d) {
            warp.registers.set_narrow(*slot, ALL, value);
        }
        for (slot, undefined) in product.d.iter().zip(undefined.iter().flatten()) {
            warp.registers.set_undefined(*slot, ALL, undefined);
        }
    }

    /// The elements of a factor.
    fn blocks(&self, units: &Units) -> Vec<Block> {
        let (blocks, _) = units.offsets.as_chunks::<UNITS>();
        let load = |offset: u64| {
            let at = offset as usize;
            let halves = [at, at + 8].map(|at| self.shared.data.load_u64(at));
            bytemuck::cast::<[u64; 2], [u16; 8]>(halves)
        };
        let block = |offsets: &[u64; UNITS]| block_of_units(&offsets.map(load), units.transposed);
        blocks.iter().map(block).collect()
    }
}
