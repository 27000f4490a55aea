//! `selp` and `isspacep`.

use super::lanes::{each_bit, each_lane};
use super::registers::{LANES, Registers, Slot};
use super::undefined::Undefined;
use super::windows;

#[inline(always)]
pub(super) fn select(
    registers: &mut Registers,
    to: Slot,
    sources: [Slot; 2],
    predicate: Slot,
    wide: bool,
    mask: u32,
) {
    let truth = registers.predicate(predicate);
    let [a, b] = sources;
    let undefined = match registers.missing(&sources, mask) {
        0 => None,
        _ => Some(selected(registers, sources, truth)),
    };
    match wide {
        true => {
            let (x, y) = (registers.wide(a), registers.wide(b));
            let value = each_lane(|lane| if truth >> lane & 1 != 0 { x[lane] } else { y[lane] });
            registers.set_wide(to, mask, &value);
        }
        false => {
            let (x, y) = (registers.narrow(a), registers.narrow(b));
            let value = each_lane(|lane| if truth >> lane & 1 != 0 { x[lane] } else { y[lane] });
            registers.set_narrow(to, mask, &value);
        }
    }
    if let Some(undefined) = undefined {
        registers.set_undefined(to, mask, &undefined);
    }
}

/// The undefined bits of the selected register.
#[inline(never)]
fn selected(registers: &Registers, sources: [Slot; 2], truth: u32) -> Undefined {
    let [a, b] = sources.map(|slot| registers.undefined(slot, 64));
    let mut undefined = Undefined::default();
    for lane in 0..LANES {
        let from = if truth >> lane & 1 != 0 { &a } else { &b };
        undefined.add(lane, from.bits[lane], from.origins[lane]);
    }
    undefined
}

/// `isspacep`.
pub(super) fn is_space(registers: &mut Registers, to: Slot, from: Slot, space: u8, mask: u32) {
    let addresses = registers.wide(from);
    let value = each_bit(|lane| {
        let address = addresses[lane];
        let shared = windows::is_in(address, windows::SHARED);
        let local = windows::is_in(address, windows::LOCAL);
        match space {
            0 => !shared && !local,
            1 => shared,
            2 => local,
            _ => false,
        }
    });
    let undefined = registers.missing(&[from], mask);
    let origins = registers.undefined(from, 64).origins;
    registers.set_predicate(to, mask, value);
    registers.forget_predicate(to, undefined, |lane| origins[lane]);
}
