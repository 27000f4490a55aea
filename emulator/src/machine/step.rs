//! The execution of instructions.

use super::cta::Cta;
use super::fault::Fault;
use super::frames::call;
use super::registers::{ALL, LANES, Slot, lanes_of};
use super::select::{is_space, select};
use super::shadow;
use super::warp::{State, Subwarp, Warp};
use crate::options::AsyncCopies;
use crate::program::op::{Instruction, Op, PredicateSource};
use crate::report::FindingKind;

/// The next action of a subwarp after an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// Continues with the next instruction.
    Next,
    /// Jumps to another instruction.
    Jump(u32),
    /// Waits for other lanes of its warp.
    WaitForLanes,
    /// Waits for other warps.
    Blocked,
    /// Lets other warps run first, then continues.
    Yield,
    /// Subwarps were created or ended.
    Changed,
}

/// The lanes in which a predicate is true.
#[inline(always)]
pub(super) fn truth(warp: &Warp, source: PredicateSource) -> u32 {
    let value = source.index.map_or(ALL, |index| warp.registers.predicate(index));
    if source.negated { !value } else { value }
}

impl Cta<'_> {
    /// Runs a warp for at most `instructions` instructions. Returns whether it executed any.
    pub(super) fn run(
        &mut self,
        warp: &mut Warp,
        mut instructions: u32,
    ) -> Result<bool, Box<Fault>> {
        let mut ran = false;
        self.wake(warp);
        let kernel = self.grid.kernel;
        let random_order = (kernel.copies || kernel.products)
            && matches!(self.grid.options.async_copies, AsyncCopies::Random { .. });
        while let Some(subwarp) = warp.select() {
            let reconvergence_pc = warp.reconvergence_pc(subwarp);
            loop {
                if instructions == 0 {
                    warp.subwarps[subwarp].state = State::Yielded;
                    return Ok(true);
                }
                instructions -= 1;
                ran = true;
                let must_reselect = self.execute(warp, subwarp)?;
                if random_order {
                    self.maybe_perform_copies(warp)?;
                    self.maybe_perform_products(warp);
                }
                if must_reselect || warp.subwarps[subwarp].pc >= reconvergence_pc {
                    break;
                }
            }
        }
        if warp.all_wait_for_lanes() {
            return Err(self.divergence(warp));
        }
        Ok(ran)
    }

    fn divergence(&self, warp: &Warp) -> Box<Fault> {
        let waiters = self.waiters(std::slice::from_ref(warp));
        let message =
            format!("lanes of the warp wait for each other at different instructions:{waiters}");
        let code = &self.grid.kernel.code;
        let at_barrier = |it: &Subwarp| matches!(code[it.pc as usize].op, Op::Barrier(_));
        let kind = match warp.subwarps.iter().any(at_barrier) {
            true => FindingKind::DivergentBarrier,
            false => FindingKind::DivergentInstruction,
        };
        Fault::of_all(kind, message)
    }

    /// Executes one instruction. Returns whether a subwarp must be selected again.
    #[inline(always)]
    fn execute(&mut self, warp: &mut Warp, subwarp: usize) -> Result<bool, Box<Fault>> {
        let kernel = self.grid.kernel;
        let pc = warp.subwarps[subwarp].pc;
        let instruction = &kernel.code[pc as usize];
        self.pc = pc;
        self.instructions += 1;
        let all = warp.subwarps[subwarp].mask;
        let mask = match instruction.guard {
            None => all,
            Some((predicate, when)) => all & self.guard(warp, predicate, when, all)?,
        };
        if !self.counts.is_empty() {
            self.count(instruction, pc, mask);
        }
        if mask == 0 {
            warp.subwarps[subwarp].pc = pc + 1;
            return Ok(false);
        }
        if !kernel.touches.is_empty() {
            self.touch_registers(warp, pc)?;
        }
        if let Op::Compute { compute, operands, shadow, .. } = &instruction.op {
            let sources = &operands.sources[..operands.count as usize];
            match warp.registers.missing(sources, mask) != 0 && self.grid.options.sanitize {
                true => shadow::compute(&mut warp.registers, compute, operands, shadow, mask),
                false => (compute.run)(&mut warp.registers, operands, mask),
            }
            warp.subwarps[subwarp].pc = pc + 1;
            return Ok(false);
        }
        let flow = self.step(warp, subwarp, instruction, mask)?;
        Ok(match flow {
            Flow::Next => {
                warp.subwarps[subwarp].pc = pc + 1;
                false
            }
            Flow::Jump(target) => {
                warp.subwarps[subwarp].pc = target;
                false
            }
            Flow::Changed => true,
            Flow::WaitForLanes => {
                if mask != all {
                    warp.split(subwarp, all & !mask, pc + 1);
                }
                warp.subwarps[subwarp].state = State::WaitingForLanes;
                true
            }
            Flow::Blocked => {
                if mask != all {
                    warp.split(subwarp, all & !mask, pc + 1);
                    let last = warp.subwarps.len() - 1;
                    warp.subwarps[last].state = State::Ready;
                }
                true
            }
            Flow::Yield => {
                warp.subwarps[subwarp].pc = pc + 1;
                warp.subwarps[subwarp].state = State::Yielded;
                true
            }
        })
    }

    #[inline(always)]
    fn guard(
        &self,
        warp: &Warp,
        predicate: Slot,
        when: bool,
        mask: u32,
    ) -> Result<u32, Box<Fault>> {
        self.require_predicate_defined(warp, predicate, mask)?;
        let value = warp.registers.predicate(predicate);
        Ok(if when { value } else { !value })
    }

    fn count(&mut self, instruction: &Instruction, pc: u32, mask: u32) {
        let counts = &mut self.counts[pc as usize];
        counts.executed += 1;
        counts.lanes += u64::from(mask.count_ones());
        let flops = match &instruction.op {
            Op::Compute { flops, .. } => u64::from(*flops) * u64::from(mask.count_ones()),
            Op::Multiply(multiply) => {
                multiply.kind.map_or(2 * 8 * 8 * 4, |kind| kind.operations() as u64)
            }
            Op::MultiplyFragments(multiply) => multiply.product.operations(),
            Op::WarpgroupMultiply(multiply) => 2 * 16 * 16 * multiply.columns() as u64,
            _ => 0,
        };
        counts.flops += flops;
    }

    /// Executes everything except lane-wise arithmetic.
    fn step(
        &mut self,
        warp: &mut Warp,
        subwarp: usize,
        instruction: &Instruction,
        mask: u32,
    ) -> Result<Flow, Box<Fault>> {
        match &instruction.op {
            Op::Compute { .. } | Op::Nothing => {}
            Op::Carry(carry) => self.carry(warp, carry, mask),
            Op::Move { to, from, wide } => warp.registers.copy(*to, *from, *wide, mask),
            Op::Split { to, from, bits } => self.split_value(warp, to, *from, *bits, mask),
            Op::Join { to, from, bits } => self.join_value(warp, *to, from, *bits, mask),
            Op::SetPredicate(set) => self.set_predicate(warp, set, mask),
            Op::Set(set) => self.set(warp, set, mask),
            Op::Select { to, sources, predicate, wide } => {
                self.require_predicate_defined(warp, *predicate, mask)?;
                select(&mut warp.registers, *to, *sources, *predicate, *wide, mask);
            }
            Op::IsSpace { to, from, space } => {
                is_space(&mut warp.registers, *to, *from, *space, mask)
            }
            Op::Predicates { to, from, table } => self.predicates(warp, *to, *from, *table, mask),
            Op::Access(access) => self.access(warp, access, mask)?,
            Op::Atomic(atomic) => self.atomic(warp, atomic, mask)?,
            Op::Shuffle(shuffle) => return self.shuffle(warp, shuffle, mask),
            Op::Vote(vote) => return self.vote(warp, vote, mask),
            Op::Match { to, all, from, wide, members } => {
                return self.match_values(warp, (*to, *all), (*from, *wide), *members, mask);
            }
            Op::Reduce { to, from, members, combine } => {
                return self.reduce(warp, [*to, *from, *members], *combine, mask);
            }
            Op::ActiveMask(to) => warp.registers.set_narrow(*to, mask, &[mask; LANES]),
            Op::Branch(target) => return Ok(branch(warp, subwarp, *target, mask)),
            Op::BranchIndexed { index, targets } => {
                return self.branch_indexed(warp, subwarp, *index, targets, mask);
            }
            Op::Call(target) => return Ok(call(warp, subwarp, *target, mask)),
            Op::Pass(passed) => {
                for passed in passed {
                    self.pass(warp, *passed, mask)?;
                }
            }
            Op::CallIndirect { target, functions } => {
                return self.call_indirect(warp, subwarp, *target, functions, mask);
            }
            Op::Enter(frame) => self.enter_frame(warp, *frame, mask)?,
            Op::Return(frame) => return self.return_from_call(warp, subwarp, *frame, mask),
            Op::Exit => return self.exit(warp, subwarp, mask),
            Op::Trap => {
                let lane = mask.trailing_zeros() as usize;
                return Err(Fault::new(
                    FindingKind::Trap,
                    lane,
                    "the kernel executed a trap instruction",
                ));
            }
            Op::Barrier(barrier) => return self.barrier(warp, subwarp, barrier, mask),
            Op::System(call) => self.system_call(warp, *call, mask)?,
            Op::Mbarrier(barrier) => return self.mbarrier(warp, barrier, mask),
            Op::WarpBarrier { members } => {
                if self.member_groups(warp, *members, mask)?.is_none() {
                    return Ok(Flow::WaitForLanes);
                }
                warp.clock.sync_lanes();
            }
            Op::Fence(scope) => warp.clock.fence(*scope),
            Op::CopyAsync(copy) => self.start_copies(warp, copy, mask)?,
            Op::ArriveForCopies(arrive) => self.request_copy_arrival(warp, arrive, mask)?,
            Op::CommitCopies => lanes_of(mask).for_each(|lane| warp.copies.commit(lane)),
            Op::WaitCopies(left) => self.wait_for_copies(warp, *left, mask)?,
            Op::LoadMatrix(load) => return self.load_matrix(warp, load, mask),
            Op::TransposeMatrix { to, from } => {
                return self.transpose_matrix(warp, *to, *from, mask);
            }
            Op::Multiply(multiply) => return self.multiply(warp, multiply, mask),
            Op::MoveFragment(moved) => return self.move_fragment(warp, moved, mask),
            Op::MultiplyFragments(multiply) => {
                return self.multiply_fragments(warp, multiply, mask);
            }
            Op::WarpgroupMultiply(multiply) => {
                return self.start_product(warp, multiply, mask);
            }
            Op::WarpgroupFence => return self.warpgroup_fence(warp, mask),
            Op::CommitProducts => return self.commit_products(warp, mask),
            Op::WaitProducts(left) => return self.wait_for_products(warp, *left, mask),
            Op::ProxyFence => self.proxy_fence(warp, mask),
            Op::Clock { to, wide } => {
                let now = self.instructions;
                match wide {
                    true => warp.registers.set_wide(*to, mask, &[now; LANES]),
                    false => warp.registers.set_narrow(*to, mask, &[now as u32; LANES]),
                }
            }
            Op::Sleep => return Ok(Flow::Yield),
        }
        Ok(Flow::Next)
    }

    fn branch_indexed(
        &self,
        warp: &mut Warp,
        subwarp: usize,
        index: Slot,
        targets: &[u32],
        mask: u32,
    ) -> Result<Flow, Box<Fault>> {
        self.require_defined(warp, index, mask)?;
        let index = *warp.registers.narrow(index);
        if let Some(lane) = lanes_of(mask).find(|lane| index[*lane] as usize >= targets.len()) {
            let message = format!(
                "branch index {} is out of range: brx.idx has {} targets",
                index[lane],
                targets.len()
            );
            return Err(Fault::new(FindingKind::InvalidArgument, lane, message));
        }
        for (number, target) in targets.iter().enumerate() {
            let going = lanes_of(mask)
                .filter(|lane| index[*lane] as usize == number)
                .fold(0, |lanes, lane| lanes | 1 << lane);
            if going != 0 {
                warp.split(subwarp, going, *target);
            }
        }
        warp.subwarps[subwarp].pc += 1;
        warp.subwarps.retain(|subwarp| subwarp.mask != 0);
        Ok(Flow::Changed)
    }

    pub(super) fn exit(
        &mut self,
        warp: &mut Warp,
        subwarp: usize,
        mask: u32,
    ) -> Result<Flow, Box<Fault>> {
        self.progress();
        // Copies that the lanes did not wait for still happen.
        let ending = std::array::from_fn(|lane| if mask >> lane & 1 != 0 { u32::MAX } else { 0 });
        let due = warp.copies.take(&ending);
        self.perform_copies(warp, &due)?;
        self.arrive_for_copies(warp, |arrival| mask >> arrival.lane & 1 == 1)?;
        let all = warp.subwarps[subwarp].mask;
        warp.subwarps[subwarp].pc += u32::from(mask != all);
        warp.exit(subwarp, mask);
        if self.grid.kernel.products && warp.is_done() {
            self.end_products(warp)?;
        }
        Ok(Flow::Changed)
    }
}

fn branch(warp: &mut Warp, subwarp: usize, target: u32, mask: u32) -> Flow {
    if mask == warp.subwarps[subwarp].mask {
        return Flow::Jump(target);
    }
    warp.split(subwarp, mask, target);
    warp.subwarps[subwarp].pc += 1;
    Flow::Changed
}
