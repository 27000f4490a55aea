//! How `wgmma` carries undefined bits: an element of D is undefined if its row of A, its column of B
//! or, if D is added, the element itself is.

use super::cta::Cta;
use super::products::{Product, Rows, Units};
use super::registers::{ALL, LANES, lanes_of};
use super::undefined::{Load, Origin, Undefined};
use super::warp::Warp;
use super::windows::MemoryId;
use crate::numerics::descriptor::{LINES, UNIT, UNITS};
use crate::numerics::fragment::{a_position, accumulator_position};

/// The origin of an undefined element of each line of a factor.
type Lines = Vec<Option<Origin>>;

impl Cta<'_> {
    /// The undefined bits of each register of D; `None` if there are none.
    pub(super) fn undefined_product(
        &self,
        warp: &Warp,
        product: &Product,
    ) -> Option<Vec<Undefined>> {
        let rows = match &product.a {
            Rows::Registers(slots) => undefined_rows(warp, slots),
            Rows::Shared(units) => self.undefined_lines(warp, units, product.pc),
        };
        let columns = self.undefined_lines(warp, &product.b, product.pc);
        let adds_undefined = product.accumulates && warp.registers.missing(&product.d, ALL) != 0;
        if rows.is_none() && columns.is_none() && !adds_undefined {
            return None;
        }
        let find = |lines: &Option<Lines>, at: usize| lines.as_ref().and_then(|it| it[at]);
        let of_register = |(register, slot): (usize, &u32)| {
            let mut undefined = match product.accumulates && adds_undefined {
                true => warp.registers.undefined(*slot, 32).with_bits(whole),
                false => Undefined::default(),
            };
            for lane in 0..LANES {
                let (row, column) = accumulator_position(lane, register % 4);
                let column = register / 4 * LINES + column;
                if let Some(origin) = find(&rows, row).or(find(&columns, column)) {
                    undefined.add(lane, whole(1), origin);
                }
            }
            undefined
        };
        Some(product.d.iter().enumerate().map(of_register).collect())
    }

    /// The lines of a factor in shared memory that have undefined bytes; `None` if there are none.
    fn undefined_lines(&self, warp: &Warp, units: &Units, pc: u32) -> Option<Lines> {
        let initialized = &self.shared.initialized;
        let is_missing = |at: u64| !initialized.all(at as usize, UNIT as usize);
        if !units.offsets.iter().any(|at| is_missing(*at)) {
            return None;
        }
        let mut lines = vec![None; units.offsets.len() / UNITS * LINES];
        for (index, at) in units.offsets.iter().enumerate() {
            for byte in (0..UNIT as usize).filter(|byte| !initialized.all(*at as usize + byte, 1)) {
                let line = match units.transposed {
                    false => index / 2,
                    true => index / UNITS * LINES + byte / 2,
                };
                lines[line].get_or_insert_with(|| self.origin(warp, at + byte as u64, pc));
            }
        }
        Some(lines)
    }

    /// The origin of an undefined byte of shared memory.
    fn origin(&self, warp: &Warp, offset: u64, pc: u32) -> Origin {
        let load = Load {
            memory: MemoryId::Shared,
            offset,
            stored: false,
            pc,
            warp: warp.index as u16,
            lane: 0,
        };
        self.stored_origin(MemoryId::Shared, offset).unwrap_or(Origin::Memory(load))
    }
}

/// All bits of an f32, if any is undefined.
fn whole(bits: u64) -> u64 {
    match bits {
        0 => 0,
        _ => u64::from(u32::MAX),
    }
}

/// The rows of A in registers that have undefined bits.
fn undefined_rows(warp: &Warp, slots: &[u32; 4]) -> Option<Lines> {
    let registers = &warp.registers;
    if registers.missing(slots, ALL) == 0 {
        return None;
    }
    let mut rows = vec![None; 2 * LINES];
    for (register, slot) in slots.iter().enumerate() {
        for lane in lanes_of(registers.missing(&[*slot], ALL)) {
            let (row, _) = a_position(lane, register, 2);
            let (_, origin) = registers.undefined_lane(*slot, lane);
            rows[row].get_or_insert(origin);
        }
    }
    Some(rows)
}
