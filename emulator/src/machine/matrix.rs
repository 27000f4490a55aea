//! What a warp does with matrices, and its asynchronous copies.

use super::access::{Home, Touch};
use super::asynchronous::Copy;
use super::cta::Cta;
use super::registers::{LANES, Slot, lanes_of};
use super::step::{Flow, truth};
use super::warp::Warp;
use crate::numerics::{matrix_move, tensor_core};
use crate::options::Asynchronous;
use crate::program::op::{CopyAsync, LoadMatrix, Multiply, Space};
use crate::report::{Fault, Kind};

impl Cta<'_> {
    pub(super) fn load_matrix(
        &mut self,
        warp: &mut Warp,
        load: &LoadMatrix,
        mask: u32,
    ) -> Result<Flow, Box<Fault>> {
        if let Some(flow) = self.gather_warp(warp, mask)? {
            return Ok(flow);
        }
        let lanes = (u64::MAX >> (64 - 8 * load.to.len())) as u32;
        let addresses = self.addresses(warp, &load.address, lanes)?;
        let space = if load.generic {
            Space::Generic
        } else {
            Space::Shared
        };
        let touch = Touch::new(16, true, false, self.pc);
        let (home, same) = self.home(space, &addresses, lanes, touch.bytes)?;
        if home != Home::Shared || same != lanes {
            let message = "a matrix is loaded from elsewhere than shared memory";
            return Err(Fault::of_all(Kind::OutOfBounds, message));
        }
        let offsets = self.offsets(home, &addresses, warp.index);
        self.check(warp, home, &offsets, lanes, touch, &|_, _, _| true)?;
        for (index, to) in load.to.iter().enumerate() {
            let rows: [[u32; 4]; 8] = std::array::from_fn(|row| {
                let at = offsets[matrix_move::address_lane(index, row)] as usize;
                std::array::from_fn(|word| self.shared.data.load_u32(at + 4 * word))
            });
            let value = match load.transposed {
                true => matrix_move::distribute(&matrix_move::transpose(&rows)),
                false => matrix_move::distribute(&rows),
            };
            warp.registers.set_narrow(*to, mask, &value);
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
        if let Some(flow) = self.gather_warp(warp, mask)? {
            return Ok(flow);
        }
        self.need(warp, from, mask)?;
        let value = matrix_move::transpose_plane(warp.registers.narrow(from));
        warp.registers.set_narrow(to, mask, &value);
        Ok(Flow::Next)
    }

    pub(super) fn multiply(
        &mut self,
        warp: &mut Warp,
        multiply: &Multiply,
        mask: u32,
    ) -> Result<Flow, Box<Fault>> {
        if let Some(flow) = self.gather_warp(warp, mask)? {
            return Ok(flow);
        }
        for slot in [&multiply.a, &multiply.b, &multiply.c]
            .into_iter()
            .flatten()
        {
            self.need(warp, *slot, mask)?;
        }
        let Some(kind) = multiply.kind else {
            multiply_f64(warp, multiply, mask);
            return Ok(Flow::Next);
        };
        let planes = |slots: &[Slot]| -> Vec<[u32; LANES]> {
            slots
                .iter()
                .map(|slot| *warp.registers.narrow(*slot))
                .collect()
        };
        let (a, b, c) = (
            planes(&multiply.a),
            planes(&multiply.b),
            planes(&multiply.c),
        );
        let mut d = vec![[0; LANES]; multiply.d.len()];
        tensor_core::multiply(kind, &a, &b, &c, &mut d);
        for (slot, value) in multiply.d.iter().zip(&d) {
            warp.registers.set_narrow(*slot, mask, value);
        }
        Ok(Flow::Next)
    }

    // -- asynchronous copies --

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
        for lane in lanes_of(mask) {
            let source_bytes = match ignored >> lane & 1 {
                0 => source_bytes[lane] as usize,
                _ => 0,
            };
            if source_bytes > copy.bytes {
                let message = format!("{source_bytes} bytes are read to write {}", copy.bytes);
                return Err(Fault::new(Kind::InvalidArgument, lane, message));
            }
            let copy = Copy {
                lane,
                to: to[lane],
                from: from[lane],
                bytes: copy.bytes,
                source_bytes,
                group: warp.copies.open_group(lane),
                pc: self.pc,
            };
            match self.grid.options.asynchronous {
                Asynchronous::Eager => self.carry_out(warp, copy)?,
                Asynchronous::Lazy | Asynchronous::Random => warp.copies.pending.push(copy),
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

    /// Carries out a pending copy or none, as chance will have it.
    pub(super) fn perhaps_copy(&mut self, warp: &mut Warp) -> Result<(), Box<Fault>> {
        if self.grid.options.asynchronous != Asynchronous::Random {
            return Ok(());
        }
        while !warp.copies.pending.is_empty() && self.random.below(4) != 0 {
            let at = self.random.below(warp.copies.pending.len() as u64) as usize;
            let copy = warp.copies.pending.swap_remove(at);
            self.carry_out(warp, copy)?;
        }
        Ok(())
    }

    /// Copies from global to shared memory, as an agent of its own.
    pub(super) fn carry_out(&mut self, warp: &mut Warp, copy: Copy) -> Result<(), Box<Fault>> {
        let lane = 1 << copy.lane;
        let pc = std::mem::replace(&mut self.pc, copy.pc);
        let result = self.carry_out_for(warp, copy, lane);
        self.pc = pc;
        result
    }

    fn carry_out_for(&mut self, warp: &mut Warp, copy: Copy, lane: u32) -> Result<(), Box<Fault>> {
        let mut bytes = [0u8; 16];
        let touch = |reads, count| Touch {
            align: copy.bytes,
            copy: Some(copy.group),
            ..Touch::new(count, reads, !reads, copy.pc)
        };
        if copy.source_bytes > 0 {
            let from = [copy.from; LANES];
            let (home, _) = self.home(Space::Global, &from, lane, copy.source_bytes)?;
            let offsets = self.offsets(home, &from, warp.index);
            let reading = touch(true, copy.source_bytes);
            self.check(warp, home, &offsets, lane, reading, &|_, _, _| true)?;
            let at = offsets[copy.lane] as usize;
            self.data(home).read(at, &mut bytes[..copy.source_bytes]);
        }
        let to = [copy.to; LANES];
        let offsets = self.offsets(Home::Shared, &to, warp.index);
        let writing = touch(false, copy.bytes);
        self.check(warp, Home::Shared, &offsets, lane, writing, &|_, _, _| true)?;
        let at = offsets[copy.lane] as usize;
        self.shared.data.write(at, &bytes[..copy.bytes]);
        Ok(())
    }
}

fn multiply_f64(warp: &mut Warp, multiply: &Multiply, mask: u32) {
    let numbers = |slot: Slot| warp.registers.wide(slot).map(f64::from_bits);
    let (a, b) = (numbers(multiply.a[0]), numbers(multiply.b[0]));
    let c = [numbers(multiply.c[0]), numbers(multiply.c[1])];
    let (mut low, mut high) = ([0.0; LANES], [0.0; LANES]);
    tensor_core::multiply_f64(&a, &b, [&c[0], &c[1]], [&mut low, &mut high]);
    for (slot, value) in multiply.d.iter().zip([low, high]) {
        warp.registers
            .set_wide(*slot, mask, &value.map(f64::to_bits));
    }
}
