//! Matrix instructions on opaque fragments: `wmma`.

use super::addresses::Addresses;
use super::check::{ALWAYS, AccessInfo};
use super::cta::Cta;
use super::fault::Fault;
use super::matrix_shadow;
use super::registers::{LANES, Slot, lanes_of};
use super::step::Flow;
use super::undefined::{Undefined, UndefinedBytes};
use super::warp::Warp;
use crate::program::op::{MoveFragment, MultiplyFragments};

impl Cta<'_> {
    /// `wmma.load` and `wmma.store`: each lane accesses the elements that its registers hold.
    pub(super) fn move_fragment(
        &mut self,
        warp: &mut Warp,
        moved: &MoveFragment,
        mask: u32,
    ) -> Result<Flow, Box<Fault>> {
        if let Some(flow) = self.require_full_warp(warp, mask)? {
            return Ok(flow);
        }
        let base = self.addresses(warp, &moved.address, mask)?;
        self.require_defined(warp, moved.stride, mask)?;
        let stride = *warp.registers.narrow(moved.stride);
        let fragment = moved.fragment;
        let bytes = fragment.element.bytes();
        for (register, slot) in moved.registers.iter().enumerate() {
            let mut words = match moved.store {
                true => *warp.registers.narrow(*slot),
                false => [0; LANES],
            };
            // Of the register: stored, or collected from the loaded elements.
            let mut undefined = match moved.store && warp.registers.missing(&[*slot], mask) != 0 {
                true => warp.registers.undefined(*slot, 32),
                false => Undefined::default(),
            };
            for part in 0..fragment.element.per_register() {
                let addresses: Addresses = std::array::from_fn(|lane| {
                    let (row, column) = fragment.position(lane, register, part);
                    let stride = stride[lane] as usize;
                    let index = match moved.row_major {
                        true => row * stride + column,
                        false => column * stride + row,
                    };
                    base[lane].wrapping_add((index * bytes) as u64)
                });
                let shift = 8 * bytes * part;
                match moved.store {
                    true => {
                        let elements = words.map(|word| word >> shift);
                        let undefined = undefined.with_bits(|bits| bits >> shift);
                        let elements = (&elements, &undefined);
                        self.store_elements(warp, moved, &addresses, elements, mask)?;
                    }
                    false => {
                        let (elements, missing) =
                            self.load_elements(warp, moved, &addresses, mask)?;
                        for lane in lanes_of(missing.lanes()) {
                            let bits = missing.bits[lane] << shift;
                            undefined.add(lane, bits, missing.origins[lane]);
                        }
                        for (word, element) in words.iter_mut().zip(elements) {
                            *word |= element << shift;
                        }
                    }
                }
            }
            if !moved.store {
                warp.registers.set_narrow(*slot, mask, &words);
                warp.registers.set_undefined(*slot, mask, &undefined);
            }
        }
        Ok(Flow::Next)
    }

    fn load_elements(
        &mut self,
        warp: &Warp,
        moved: &MoveFragment,
        addresses: &Addresses,
        mask: u32,
    ) -> Result<([u32; LANES], Undefined), Box<Fault>> {
        let bytes = moved.fragment.element.bytes();
        let info = AccessInfo::new(bytes, true, false, self.pc);
        let (mut elements, mut undefined) = ([0; LANES], UndefinedBytes::default());
        let mut rest = mask;
        while rest != 0 {
            let resolved = self.resolve(warp, moved.space, addresses, rest, bytes)?;
            self.count_access(&resolved, info);
            self.check(warp, &resolved, info, ALWAYS)?;
            let data = self.data(resolved.memory);
            for lane in lanes_of(resolved.lanes) {
                let mut element = [0; 4];
                data.read(resolved.offsets[lane] as usize, &mut element[..bytes]);
                elements[lane] = u32::from_le_bytes(element);
            }
            if let Some(read) = self.undefined_bytes(warp, &resolved, bytes, self.pc) {
                undefined.merge(&read);
            }
            rest &= !resolved.lanes;
        }
        Ok((elements, undefined.element(0, bytes, false)))
    }

    fn store_elements(
        &mut self,
        warp: &Warp,
        moved: &MoveFragment,
        addresses: &Addresses,
        (elements, undefined): (&[u32; LANES], &Undefined),
        mask: u32,
    ) -> Result<(), Box<Fault>> {
        let bytes = moved.fragment.element.bytes();
        let info = AccessInfo::new(bytes, false, true, self.pc);
        self.progress();
        let mut rest = mask;
        while rest != 0 {
            let resolved = self.resolve(warp, moved.space, addresses, rest, bytes)?;
            self.count_access(&resolved, info);
            let _locked = self.check(warp, &resolved, info, &|data, lane, _| {
                let mut now = [0; 4];
                data.read(resolved.offsets[lane] as usize, &mut now[..bytes]);
                now[..bytes] != elements[lane].to_le_bytes()[..bytes]
            })?;
            let data = self.data(resolved.memory);
            for lane in lanes_of(resolved.lanes) {
                let element = elements[lane].to_le_bytes();
                data.write(resolved.offsets[lane] as usize, &element[..bytes]);
            }
            let mut missing = UndefinedBytes::default();
            missing.add(undefined, 0, bytes);
            self.store_undefined(warp, &resolved, &missing, self.pc)?;
            rest &= !resolved.lanes;
        }
        Ok(())
    }

    /// `wmma.mma`.
    pub(super) fn multiply_fragments(
        &mut self,
        warp: &mut Warp,
        multiply: &MultiplyFragments,
        mask: u32,
    ) -> Result<Flow, Box<Fault>> {
        if let Some(flow) = self.require_full_warp(warp, mask)? {
            return Ok(flow);
        }
        let sources = [&multiply.a, &multiply.b, &multiply.c];
        let missing = sources.map(|slots| warp.registers.missing(slots, mask));
        let undefined = match missing == [0; 3] {
            true => Vec::new(),
            false => {
                matrix_shadow::of_product(&warp.registers, &matrix_shadow::of_fragments(multiply))
            }
        };
        let planes = |slots: &Vec<Slot>| -> Vec<[u32; LANES]> {
            let planes = slots.iter().map(|slot| *warp.registers.narrow(*slot));
            planes.collect()
        };
        let [a, b, c] = sources.map(planes);
        let d = multiply.product.multiply(&a, &b, &c);
        for (slot, value) in multiply.d.iter().zip(&d) {
            warp.registers.set_narrow(*slot, mask, value);
        }
        for (slot, undefined) in multiply.d.iter().zip(&undefined) {
            warp.registers.set_undefined(*slot, mask, undefined);
        }
        Ok(Flow::Next)
    }
}
