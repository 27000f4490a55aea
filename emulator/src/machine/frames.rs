//! Function calls: argument passing, indirect calls and recursion.
//!
//! A function's registers exist once per lane. A recursive function saves them when it is entered
//! and restores them when it returns, per lane. Its local variables are on a stack above the lane's
//! other local memory.

use super::addresses::ResolvedAddresses;
use super::cta::Cta;
use super::fault::Fault;
use super::lanes::{each_bit, each_lane, narrowed};
use super::registers::{LANES, SavedLane, Slot, lanes_of};
use super::step::Flow;
use super::undefined::UndefinedBytes;
use super::warp::{Subwarp, Warp};
use super::windows::MemoryId;
use crate::program::kernel::Frame;
use crate::program::op::Passed;
use crate::report::FindingKind;

/// Maximum depth of recursive calls.
const MAX_DEPTH: usize = 1024;

/// The saved frames of each lane, the latest call last.
pub(crate) type Saved = [Vec<SavedFrame>; LANES];

/// The state that a lane saved when it entered a recursive function.
#[derive(Clone, Debug)]
pub(crate) struct SavedFrame {
    registers: SavedLane,
    memory: Vec<u8>,
    written: Vec<bool>,
    /// The new top of the stack.
    stack: u32,
}

/// Calls a function. A recursive one saves its registers in [`Cta::enter_frame`].
pub(super) fn call(warp: &mut Warp, subwarp: usize, target: u32, mask: u32) -> Flow {
    let pc = warp.subwarps[subwarp].pc;
    let calling = match mask == warp.subwarps[subwarp].mask {
        true => subwarp,
        false => {
            warp.subwarps[subwarp].pc += 1;
            warp.split(subwarp, mask, target)
        }
    };
    warp.subwarps[calling].calls.push(pc + 1);
    warp.subwarps[calling].pc = target;
    Flow::Changed
}

impl Cta<'_> {
    /// Copies an argument or a result.
    pub(super) fn pass(
        &mut self,
        warp: &mut Warp,
        passed: Passed,
        mask: u32,
    ) -> Result<(), Box<Fault>> {
        match passed {
            Passed::Register { to, from, wide } => warp.registers.copy(to, from, wide, mask),
            Passed::Predicate { to, from } => warp.registers.copy_predicate(to, from, mask),
            Passed::Memory { to, from, bytes } => {
                for lane in lanes_of(mask) {
                    let thread = (warp.index * LANES + lane) * self.local_stride;
                    let mut copied = vec![0; bytes as usize];
                    self.local.data.read(thread + from as usize, &mut copied);
                    self.local.data.write(thread + to as usize, &copied);
                    self.copy_local_shadow(thread + to as usize, thread + from as usize, bytes);
                }
            }
            Passed::Store { to, from, bytes } => {
                for lane in lanes_of(mask) {
                    let at = (warp.index * LANES + lane) * self.local_stride + to as usize;
                    let value = match bytes {
                        8 => warp.registers.wide(from)[lane],
                        _ => u64::from(warp.registers.narrow(from)[lane]),
                    };
                    let value = &value.to_le_bytes()[..bytes as usize];
                    self.local.data.write(at, value);
                    self.local.initialized.set(at, bytes as usize);
                }
                if warp.registers.missing(&[from], mask) != 0 {
                    let mut undefined = UndefinedBytes::default();
                    let register = warp.registers.undefined(from, 8 * bytes);
                    undefined.add(&register, 0, bytes as usize);
                    let resolved = self.own_local(warp, to, mask);
                    self.store_undefined(warp, &resolved, &undefined, self.pc)?;
                }
            }
            Passed::Load { to, from, bytes } => {
                let value: [u64; LANES] = each_lane(|lane| {
                    let at = (warp.index * LANES + lane) * self.local_stride + from as usize;
                    let mut value = [0; 8];
                    self.local.data.read(at, &mut value[..bytes as usize]);
                    u64::from_le_bytes(value)
                });
                match bytes {
                    8 => warp.registers.set_wide(to, mask, &value),
                    _ => {
                        let value = narrowed(&value);
                        warp.registers.set_narrow(to, mask, &value);
                    }
                }
                let (resolved, bytes) = (self.own_local(warp, from, mask), bytes as usize);
                if let Some(undefined) = self.undefined_bytes(warp, &resolved, bytes, self.pc) {
                    let register = undefined.element(0, bytes, false);
                    warp.registers.set_undefined(to, mask, &register);
                }
            }
        }
        Ok(())
    }

    /// The place of a byte of local memory in each thread.
    fn own_local(&self, warp: &Warp, at: u32, mask: u32) -> ResolvedAddresses {
        let memory = MemoryId::Local;
        ResolvedAddresses {
            memory,
            lanes: mask,
            offsets: each_lane(|lane| self.thread_start(memory, warp.index, lane) + u64::from(at)),
        }
    }

    /// Copies which bytes of local memory are undefined.
    fn copy_local_shadow(&mut self, to: usize, from: usize, bytes: u32) {
        let local = &mut self.local;
        for byte in 0..bytes as usize {
            let defined = local.initialized.all(from + byte, 1);
            match defined {
                true => local.initialized.set(to + byte, 1),
                false => {
                    local.initialized.unset(to + byte, 1);
                    let [to, from] = [to, from].map(|at| (at + byte) as u64 / 4);
                    match local.origins.get(&from).copied() {
                        Some(origin) => drop(local.origins.insert(to, origin)),
                        None => drop(local.origins.remove(&to)),
                    }
                }
            }
        }
    }

    /// Enters a recursive function: saves what it overwrites.
    pub(super) fn enter_frame(
        &mut self,
        warp: &mut Warp,
        frame: u32,
        mask: u32,
    ) -> Result<(), Box<Fault>> {
        let kernel = self.grid.kernel;
        let frame = &kernel.frames[frame as usize];
        for lane in lanes_of(mask) {
            let depth = warp.saved[lane].len();
            let last = warp.saved[lane].last();
            let stack = last.map_or(kernel.static_local, |saved| saved.stack);
            let grown = stack + frame.local_bytes;
            if depth == MAX_DEPTH || grown > kernel.local_bytes {
                return Err(too_deep(frame, lane, depth, kernel.local_bytes - stack));
            }
            let saved = self.saved_frame(warp, frame, lane, grown);
            warp.saved[lane].push(saved);
            for (slot, offset, wide) in &frame.addresses {
                let address = u64::from(stack + offset);
                warp.registers.set_lane(*slot, *wide, lane, address);
            }
        }
        Ok(())
    }

    fn saved_frame(&self, warp: &Warp, frame: &Frame, lane: usize, stack: u32) -> SavedFrame {
        let (at, count) = self.memory_of(warp, frame, lane);
        let mut memory = vec![0; count];
        self.local.data.read(at, &mut memory);
        let written = (at..at + count).map(|at| self.local.initialized.all(at, 1));
        SavedFrame {
            registers: warp.registers.save(&frame.registers, frame.predicates.clone(), lane),
            memory,
            written: written.collect(),
            stack,
        }
    }

    /// Restores what the returning lanes saved.
    fn leave_frame(&mut self, warp: &mut Warp, frame: u32, mask: u32) {
        let frame = &self.grid.kernel.frames[frame as usize];
        for lane in lanes_of(mask) {
            let Some(saved) = warp.saved[lane].pop() else {
                continue;
            };
            let (at, _) = self.memory_of(warp, frame, lane);
            self.local.data.write(at, &saved.memory);
            for (offset, written) in saved.written.iter().enumerate() {
                match *written {
                    true => self.local.initialized.set(at + offset, 1),
                    false => self.local.initialized.unset(at + offset, 1),
                }
            }
            let predicates = frame.predicates.clone();
            warp.registers.restore(&frame.registers, predicates, lane, &saved.registers);
        }
    }

    /// Start and length of a lane's copy of a frame's memory.
    fn memory_of(&self, warp: &Warp, frame: &Frame, lane: usize) -> (usize, usize) {
        let thread = (warp.index * LANES + lane) * self.local_stride;
        (thread + frame.memory.start as usize, frame.memory.len())
    }

    /// An indirect call: each lane calls the function that its pointer refers to.
    pub(super) fn call_indirect(
        &mut self,
        warp: &mut Warp,
        subwarp: usize,
        target: Slot,
        functions: &[(u64, u32)],
        mask: u32,
    ) -> Result<Flow, Box<Fault>> {
        self.require_defined(warp, target, mask)?;
        let addresses = *warp.registers.wide(target);
        let is_known = |address| functions.iter().any(|(known, _)| *known == address);
        if let Some(lane) = lanes_of(mask).find(|lane| !is_known(addresses[*lane])) {
            let address = addresses[lane];
            let message = format!(
                "indirect call of {address:#x}, which is not the address of any of the {} \
                 functions that match the call's prototype",
                functions.len()
            );
            return Err(Fault::new(FindingKind::InvalidArgument, lane, message));
        }
        let back = warp.subwarps[subwarp].pc + 1;
        for (address, begin) in functions {
            let going = each_bit(|lane| addresses[lane] == *address) & mask;
            if going != 0 {
                let called = warp.split(subwarp, going, *begin);
                warp.subwarps[called].calls.push(back);
            }
        }
        warp.subwarps[subwarp].pc = back;
        warp.subwarps.retain(|subwarp| subwarp.mask != 0);
        Ok(Flow::Changed)
    }

    /// Returns from a function, or exits from an entry.
    pub(super) fn return_from_call(
        &mut self,
        warp: &mut Warp,
        subwarp: usize,
        frame: Option<u32>,
        mask: u32,
    ) -> Result<Flow, Box<Fault>> {
        let Subwarp { mask: all, calls, .. } = &warp.subwarps[subwarp];
        let all = *all;
        let Some(back) = calls.last().copied() else {
            // Returning from an entry ends the lanes.
            return self.exit(warp, subwarp, mask);
        };
        if let Some(frame) = frame {
            self.leave_frame(warp, frame, mask);
        }
        let returning = match mask == all {
            true => subwarp,
            false => {
                warp.subwarps[subwarp].pc += 1;
                warp.split(subwarp, mask, back)
            }
        };
        warp.subwarps[returning].calls.pop();
        warp.subwarps[returning].pc = back;
        Ok(Flow::Changed)
    }
}

fn too_deep(frame: &Frame, lane: usize, depth: usize, left: u32) -> Box<Fault> {
    let Frame { function, local_bytes, .. } = frame;
    let message = match depth == MAX_DEPTH {
        true => {
            format!("the call of `{function}` exceeds the maximum recursion depth of {depth}")
        }
        false => format!(
            "stack overflow: the call of `{function}` at depth {depth} needs {local_bytes} bytes \
             of local memory, but only {left} are left"
        ),
    };
    Fault::new(FindingKind::OutOfBounds, lane, message)
}
