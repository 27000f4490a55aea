//! Matrix instructions on registers: `ldmatrix`, `movmatrix`, `mma`.

use super::check::{ALWAYS, AccessInfo};
use super::cta::Cta;
use super::fault::Fault;
use super::matrix_shadow;
use super::registers::{LANES, Slot};
use super::step::Flow;
use super::undefined::Undefined;
use super::warp::Warp;
use super::windows::MemoryId;
use crate::numerics::fragment::MmaKind;
use crate::numerics::{matrix_move, tensor_core};
use crate::program::op::{LoadMatrix, Multiply, Space};
use crate::report::FindingKind;

impl Cta<'_> {
    pub(super) fn load_matrix(
        &mut self,
        warp: &mut Warp,
        load: &LoadMatrix,
        mask: u32,
    ) -> Result<Flow, Box<Fault>> {
        if let Some(flow) = self.require_full_warp(warp, mask)? {
            return Ok(flow);
        }
        let lanes = (u64::MAX >> (64 - 8 * load.to.len())) as u32;
        let addresses = self.addresses(warp, &load.address, lanes)?;
        let space = if load.generic { Space::Generic } else { Space::Shared };
        let info = AccessInfo::new(16, true, false, self.pc);
        let resolved = self.resolve(warp, space, &addresses, lanes, info.bytes)?;
        if resolved.memory != MemoryId::Shared || resolved.lanes != lanes {
            let message = "ldmatrix requires an address in shared memory";
            return Err(Fault::of_all(FindingKind::OutOfBounds, message));
        }
        self.count_access(&resolved, info);
        self.check(warp, &resolved, info, ALWAYS)?;
        let undefined = self.undefined_bytes(warp, &resolved, info.bytes, self.pc);
        for (index, to) in load.to.iter().enumerate() {
            let rows: [[u32; 4]; 8] = std::array::from_fn(|row| {
                let at = resolved.offsets[matrix_move::address_lane(index, row)] as usize;
                std::array::from_fn(|word| self.shared.data.load_u32(at + 4 * word))
            });
            let value = match load.transposed {
                true => matrix_move::distribute(&matrix_move::transpose(&rows)),
                false => matrix_move::distribute(&rows),
            };
            warp.registers.set_narrow(*to, mask, &value);
            if let Some(undefined) = &undefined {
                let undefined = matrix_shadow::of_loaded(undefined, index, load.transposed);
                warp.registers.set_undefined(*to, mask, &undefined);
            }
        }
        Ok(Flow::Next)
    }

    pub(super) fn transpose_matrix(
        &mut self,
        warp: &mut Warp,
        to: Slot,
        from: Slot,
        mask: u32,
    ) -> Result<Flow, Box<Fault>> {
        if let Some(flow) = self.require_full_warp(warp, mask)? {
            return Ok(flow);
        }
        let undefined = match warp.registers.missing(&[from], mask) {
            0 => Undefined::default(),
            _ => matrix_shadow::of_transposed(&warp.registers.undefined(from, 32)),
        };
        let value = matrix_move::transpose_plane(warp.registers.narrow(from));
        warp.registers.set_narrow(to, mask, &value);
        warp.registers.set_undefined(to, mask, &undefined);
        Ok(Flow::Next)
    }

    pub(super) fn multiply(
        &mut self,
        warp: &mut Warp,
        multiply: &Multiply,
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
                matrix_shadow::of_product(&warp.registers, &matrix_shadow::of_multiply(multiply))
            }
        };
        match multiply.kind {
            Some(kind) => multiply_kind(warp, kind, multiply, mask),
            None => multiply_f64(warp, multiply, mask),
        }
        for (slot, undefined) in multiply.d.iter().zip(&undefined) {
            warp.registers.set_undefined(*slot, mask, undefined);
        }
        Ok(Flow::Next)
    }
}

fn multiply_kind(warp: &mut Warp, kind: MmaKind, multiply: &Multiply, mask: u32) {
    let planes = |slots: &[Slot]| -> Vec<[u32; LANES]> {
        slots.iter().map(|slot| *warp.registers.narrow(*slot)).collect()
    };
    let (a, b, c) = (planes(&multiply.a), planes(&multiply.b), planes(&multiply.c));
    let mut d = vec![[0; LANES]; multiply.d.len()];
    tensor_core::multiply(kind, &a, &b, &c, &mut d);
    for (slot, value) in multiply.d.iter().zip(&d) {
        warp.registers.set_narrow(*slot, mask, value);
    }
}

fn multiply_f64(warp: &mut Warp, multiply: &Multiply, mask: u32) {
    let numbers = |slot: Slot| warp.registers.wide(slot).map(f64::from_bits);
    let (a, b) = (numbers(multiply.a[0]), numbers(multiply.b[0]));
    let c = [numbers(multiply.c[0]), numbers(multiply.c[1])];
    let (mut low, mut high) = ([0.0; LANES], [0.0; LANES]);
    tensor_core::multiply_f64(&a, &b, [&c[0], &c[1]], [&mut low, &mut high]);
    for (slot, value) in multiply.d.iter().zip([low, high]) {
        warp.registers.set_wide(*slot, mask, &value.map(f64::to_bits));
    }
}
