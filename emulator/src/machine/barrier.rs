//! CTA barriers (PTX ISA 9.7.13.1).

use super::cta::Cta;
use super::fault::Fault;
use super::registers::lanes_of;
use super::step::Flow;
use super::vector_clock::VectorClock;
use super::warp::{State, Warp};
use crate::program::op::{Barrier, BarrierAction, PredicateSource, VoteKind};
use crate::report::FindingKind;

/// One of the sixteen barriers of a CTA.
#[derive(Clone, Debug)]
pub(crate) struct CtaBarrier {
    /// Threads that arrived in the current phase.
    arrived: u32,
    /// The thread count of this phase. `None` means all live threads.
    expected: Option<u32>,
    /// Completed phases.
    phase: u64,
    /// Joined clocks of the threads that arrived in this phase.
    arriving: VectorClock,
    /// Joined clocks of all completed phases; waiting threads acquire it.
    released: VectorClock,
    /// Votes of the threads that arrived in this phase.
    votes: Votes,
    /// Votes of the last two completed phases.
    results: [Votes; 2],
}

#[derive(Clone, Copy, Debug)]
struct Votes {
    all: bool,
    any: bool,
    count: u32,
}

const NO_VOTES: Votes = Votes { all: true, any: false, count: 0 };

impl Default for CtaBarrier {
    fn default() -> CtaBarrier {
        CtaBarrier {
            arrived: 0,
            expected: None,
            phase: 0,
            arriving: VectorClock::zero(),
            released: VectorClock::zero(),
            votes: NO_VOTES,
            results: [NO_VOTES; 2],
        }
    }
}

impl CtaBarrier {
    pub(crate) fn describe(&self, id: usize) -> String {
        match self.expected {
            Some(expected) => {
                format!("barrier {id}: {} of {expected} threads arrived", self.arrived)
            }
            None => format!(
                "barrier {id}: {} threads arrived, other live threads did not",
                self.arrived
            ),
        }
    }

    /// Whether any thread ever arrived.
    pub(super) fn is_used(&self) -> bool {
        self.arrived > 0 || self.phase > 0
    }

    fn complete_phase(&mut self) {
        self.results[(self.phase % 2) as usize] = self.votes;
        self.votes = NO_VOTES;
        self.released.join(&self.arriving);
        self.phase += 1;
        self.arrived = 0;
        self.expected = None;
    }
}

impl Cta<'_> {
    pub(super) fn barrier(
        &mut self,
        warp: &mut Warp,
        subwarp: usize,
        barrier: &Barrier,
        mask: u32,
    ) -> Result<Flow, Box<Fault>> {
        let id = self.uniform(warp, barrier.id, mask, "the barrier")?;
        let threads = match barrier.threads {
            Some(slot) => Some(self.uniform(warp, slot, mask, "the number of threads")?),
            None => None,
        };
        self.check_barrier(id, threads)?;
        if barrier.aligned && mask != warp.lanes {
            if mask != warp.live() && warp.exited & warp.lanes == 0 {
                return Ok(Flow::WaitForLanes);
            }
            let exited = warp.exited & warp.lanes;
            let message = format!(
                "lanes {exited:#010x} of the warp have exited and never arrive at barrier {id}"
            );
            return Err(Fault::of_all(FindingKind::DivergentBarrier, message));
        }

        if let BarrierAction::Reduce { from, .. } | BarrierAction::Count { from, .. } =
            barrier.action
            && let Some(predicate) = from.index
        {
            self.require_predicate_defined(warp, predicate, mask)?;
        }
        let whole = mask == warp.live();
        let arrivals = if whole { 32 } else { mask.count_ones() };
        let published = warp.clock.release();
        let state = &mut self.barriers[id as usize];
        if let (Some(expected), Some(threads)) = (state.expected, threads)
            && expected != threads
        {
            let message =
                format!("barrier {id} has {threads} threads here, but {expected} in other warps");
            return Err(Fault::of_all(FindingKind::DivergentBarrier, message));
        }
        state.expected = state.expected.or(threads);
        state.arriving.join(&published);
        state.arrived += match threads {
            Some(_) => arrivals,
            None => mask.count_ones(),
        };
        if let BarrierAction::Reduce { from, .. } | BarrierAction::Count { from, .. } =
            barrier.action
        {
            vote(&mut state.votes, warp, from, mask);
        }
        let phase = state.phase;
        self.progress();
        if matches!(barrier.action, BarrierAction::Arrive) {
            return Ok(Flow::Next);
        }
        warp.subwarps[subwarp].state = State::AtBarrier { id: id as usize, phase };
        Ok(Flow::Blocked)
    }

    fn check_barrier(&self, id: u32, threads: Option<u32>) -> Result<(), Box<Fault>> {
        if id > 15 {
            let message = format!("barrier {id} does not exist; barriers are 0 to 15");
            return Err(Fault::of_all(FindingKind::InvalidArgument, message));
        }
        match threads {
            Some(threads) if threads == 0 || threads % 32 != 0 => {
                let message = format!(
                    "the thread count of a barrier must be a positive multiple of 32; got {threads}"
                );
                Err(Fault::of_all(FindingKind::InvalidArgument, message))
            }
            _ => Ok(()),
        }
    }

    /// Completes every barrier at which all expected threads have arrived.
    pub(super) fn complete_barriers(&mut self, warps: &[Warp]) {
        if self.barriers.iter().all(|barrier| barrier.arrived == 0) {
            return;
        }
        let live: u32 = warps.iter().map(|warp| warp.live().count_ones()).sum();
        for barrier in &mut self.barriers {
            let due = barrier.expected.unwrap_or(live);
            if barrier.arrived > 0 && barrier.arrived >= due {
                barrier.complete_phase();
            }
        }
    }

    /// Resumes the subwarps whose barrier completed.
    pub(super) fn wake(&self, warp: &mut Warp) {
        for at in 0..warp.subwarps.len() {
            let State::AtBarrier { id, phase } = warp.subwarps[at].state else {
                continue;
            };
            let barrier = &self.barriers[id];
            if barrier.phase == phase {
                continue;
            }
            warp.clock.seen.join(&barrier.released);
            let (pc, mask) = (warp.subwarps[at].pc, warp.subwarps[at].mask);
            let votes = barrier.results[(phase % 2) as usize];
            self.write_result(warp, pc, mask, votes);
            warp.subwarps[at].state = State::Ready;
            warp.subwarps[at].pc = pc + 1;
        }
    }

    fn write_result(&self, warp: &mut Warp, pc: u32, mask: u32, votes: Votes) {
        let crate::program::op::Op::Barrier(barrier) = &self.grid.kernel.code[pc as usize].op
        else {
            return;
        };
        match barrier.action {
            BarrierAction::Reduce { kind, to, .. } => {
                let truth = if kind == VoteKind::All { votes.all } else { votes.any };
                warp.registers.set_predicate(to, mask, if truth { mask } else { 0 });
            }
            BarrierAction::Count { to, .. } => {
                warp.registers.set_narrow(to, mask, &[votes.count; 32]);
            }
            BarrierAction::Sync | BarrierAction::Arrive => {}
        }
    }

    /// The value of a register that must be the same in all lanes of a mask.
    pub(super) fn uniform(
        &self,
        warp: &Warp,
        slot: u32,
        mask: u32,
        what: &str,
    ) -> Result<u32, Box<Fault>> {
        self.require_defined(warp, slot, mask)?;
        let values = warp.registers.narrow(slot);
        let first = values[mask.trailing_zeros() as usize & 31];
        match lanes_of(mask).find(|lane| values[*lane] != first) {
            None => Ok(first),
            Some(lane) => {
                let other = values[lane];
                let message = format!(
                    "{what} must be uniform: it is {first} in some lanes and {other} in others"
                );
                Err(Fault::new(FindingKind::InvalidArgument, lane, message))
            }
        }
    }
}

fn vote(votes: &mut Votes, warp: &Warp, from: PredicateSource, mask: u32) {
    let truth = super::step::truth(warp, from) & mask;
    votes.all &= truth == mask;
    votes.any |= truth != 0;
    votes.count += truth.count_ones();
}
