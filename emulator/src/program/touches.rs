//! Which registers an instruction reads and writes, for those that asynchronous products have.

use std::collections::BTreeSet;

use super::op::*;
use crate::machine::registers::Slot;

/// An access to a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Touch {
    pub(crate) slot: Slot,
    pub(crate) writes: bool,
}

/// For each instruction, the registers of asynchronous products that it accesses, except as the
/// operands of a product.
pub(super) fn of_products(code: &[Instruction]) -> Vec<Box<[Touch]>> {
    let of_products: BTreeSet<Slot> = code.iter().flat_map(|it| registers(&it.op)).collect();
    let touches = |instruction: &Instruction| {
        let mut touches = Vec::new();
        visit(&instruction.op, &mut |slot, writes| {
            if of_products.contains(&slot) {
                touches.push(Touch { slot, writes });
            }
        });
        touches.into_boxed_slice()
    };
    code.iter().map(touches).collect()
}

/// The registers that a product reads or writes when it happens.
fn registers(op: &Op) -> Vec<Slot> {
    let Op::WarpgroupMultiply(multiply) = op else {
        return Vec::new();
    };
    let a: &[Slot] = match &multiply.a {
        FactorA::Registers(slots) => slots,
        FactorA::Shared(_) => &[],
    };
    [&multiply.d, a].concat()
}

const READ: bool = false;
const WRITE: bool = true;

/// Calls `f` with each register that an operation accesses when it executes, and whether it writes
/// it. Predicates are not registers.
fn visit(op: &Op, f: &mut impl FnMut(Slot, bool)) {
    let mut each = |slots: &[Slot], writes| slots.iter().for_each(|slot| f(*slot, writes));
    match op {
        Op::Compute { operands, .. } => {
            each(&operands.sources[..operands.count as usize], READ);
            each(&[operands.destination], WRITE);
        }
        Op::Carry(Carry { to, sources, .. }) => {
            each(sources, READ);
            each(&[*to], WRITE);
        }
        Op::Move { to, from, .. }
        | Op::IsSpace { to, from, .. }
        | Op::TransposeMatrix { to, from } => {
            each(&[*from], READ);
            each(&[*to], WRITE);
        }
        Op::Split { to, from, .. } => {
            each(&[*from], READ);
            to.iter().flatten().for_each(|to| each(&[*to], WRITE));
        }
        Op::Join { to, from, .. } => {
            each(from, READ);
            each(&[*to], WRITE);
        }
        Op::SetPredicate(set) => each(&set.sources, READ),
        Op::Set(Set { sources, to, .. }) | Op::Select { to, sources, .. } => {
            each(sources, READ);
            each(&[*to], WRITE);
        }
        Op::Access(access) => {
            each(&[access.address.base], READ);
            let slots = access.registers.iter().filter_map(|it| it.slot);
            slots.for_each(|slot| each(&[slot], !access.store));
        }
        Op::Atomic(atomic) => {
            each(&[atomic.address.base, atomic.from], READ);
            atomic.swap.iter().for_each(|slot| each(&[*slot], READ));
            atomic.to.iter().for_each(|slot| each(&[*slot], WRITE));
        }
        Op::Shuffle(it) => {
            each(&[it.from, it.lane, it.clamp, it.members], READ);
            each(&[it.to], WRITE);
        }
        Op::Vote(vote) => {
            each(&[vote.members], READ);
            if vote.kind == VoteKind::Ballot {
                each(&[vote.to], WRITE);
            }
        }
        Op::Match { to, from, members, .. } | Op::Reduce { to, from, members, .. } => {
            each(&[*from, *members], READ);
            each(&[*to], WRITE);
        }
        Op::ActiveMask(to) | Op::Clock { to, .. } => each(&[*to], WRITE),
        Op::BranchIndexed { index, .. } => each(&[*index], READ),
        Op::CallIndirect { target, .. } => each(&[*target], READ),
        Op::Pass(passed) => passed.iter().for_each(|passed| match passed {
            Passed::Register { to, from, .. } => {
                each(&[*from], READ);
                each(&[*to], WRITE);
            }
            Passed::Store { from, .. } => each(&[*from], READ),
            Passed::Load { to, .. } => each(&[*to], WRITE),
            Passed::Predicate { .. } | Passed::Memory { .. } => {}
        }),
        Op::Barrier(barrier) => {
            each(&[barrier.id], READ);
            barrier.threads.iter().for_each(|slot| each(&[*slot], READ));
            if let BarrierAction::Count { to, .. } = barrier.action {
                each(&[to], WRITE);
            }
        }
        Op::Mbarrier(barrier) => {
            each(&[barrier.address.base], READ);
            visit_mbarrier(&barrier.action, &mut each);
        }
        Op::WarpBarrier { members } => each(&[*members], READ),
        Op::CopyAsync(copy) => {
            each(&[copy.to.base, copy.from.base], READ);
            copy.source_bytes.iter().for_each(|slot| each(&[*slot], READ));
        }
        Op::ArriveForCopies(arrive) => each(&[arrive.address.base], READ),
        Op::LoadMatrix(load) => {
            each(&[load.address.base], READ);
            each(&load.to, WRITE);
        }
        Op::Multiply(Multiply { d, a, b, c, .. })
        | Op::MultiplyFragments(MultiplyFragments { d, a, b, c, .. }) => {
            [a, b, c].into_iter().for_each(|slots| each(slots, READ));
            each(d, WRITE);
        }
        Op::MoveFragment(moved) => {
            each(&[moved.address.base, moved.stride], READ);
            each(&moved.registers, !moved.store);
        }
        Op::WarpgroupMultiply(_)
        | Op::Predicates { .. }
        | Op::Branch(_)
        | Op::Call(_)
        | Op::Enter(_)
        | Op::Return(_)
        | Op::Exit
        | Op::Trap
        | Op::System(_)
        | Op::Fence(_)
        | Op::ProxyFence
        | Op::CommitCopies
        | Op::WaitCopies(_)
        | Op::WarpgroupFence
        | Op::CommitProducts
        | Op::WaitProducts(_)
        | Op::Sleep
        | Op::Nothing => {}
    }
}

fn visit_mbarrier(action: &MbarrierAction, each: &mut impl FnMut(&[Slot], bool)) {
    match action {
        MbarrierAction::Init { count } => each(&[*count], READ),
        MbarrierAction::Invalidate => {}
        MbarrierAction::Transfer { bytes, .. } => each(&[*bytes], READ),
        MbarrierAction::Arrive { to, count, bytes, .. } => {
            let sources = [count, bytes].into_iter().flatten();
            sources.for_each(|slot| each(&[*slot], READ));
            to.iter().for_each(|slot| each(&[*slot], WRITE));
        }
        MbarrierAction::Test { phase, .. } => {
            let (Phase::State(slot) | Phase::Parity(slot)) = phase;
            each(&[*slot], READ);
        }
    }
}
