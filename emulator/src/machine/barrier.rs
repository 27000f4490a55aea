//! The barriers of a CTA (PTX ISA 9.7.13.1), and those of a warp.

use super::cta::Cta;
use super::order::Seen;
use super::registers::lanes_of;
use super::step::Flow;
use super::warp::{State, Warp};
use crate::program::op::{Barrier, BarrierAction, PredicateSource, VoteKind};
use crate::report::{Fault, FindingKind};

/// One of the sixteen barriers of a CTA.
#[derive(Clone, Debug)]
pub(crate) struct CtaBarrier {
    /// Threads that have come since it was last passed.
    arrived: u32,
    /// Threads that it waits for, where somebody said; else all that are left.
    expected: Option<u32>,
    /// How often it was passed.
    passes: u64,
    /// What those who came have seen.
    coming: Seen,
    /// What those who pass have seen.
    passed: Seen,
    /// Of the predicates of those who came: all, any, how many.
    votes: Votes,
    /// The same of the last two passes.
    results: [Votes; 2],
}

#[derive(Clone, Copy, Debug)]
struct Votes {
    all: bool,
    any: bool,
    count: u32,
}

const NO_VOTES: Votes = Votes {
    all: true,
    any: false,
    count: 0,
};

impl Default for CtaBarrier {
    fn default() -> CtaBarrier {
        CtaBarrier {
            arrived: 0,
            expected: None,
            passes: 0,
            coming: Seen::nothing(),
            passed: Seen::nothing(),
            votes: NO_VOTES,
            results: [NO_VOTES; 2],
        }
    }
}

impl CtaBarrier {
    pub(crate) fn describe(&self, id: usize) -> String {
        match self.expected {
            Some(expected) => format!("barrier {id}: {} of {expected} threads came", self.arrived),
            None => format!(
                "barrier {id}: {} threads came, not all that are left",
                self.arrived
            ),
        }
    }

    /// Whether anybody ever came.
    pub(super) fn is_used(&self) -> bool {
        self.arrived > 0 || self.passes > 0
    }

    fn pass(&mut self) {
        self.results[(self.passes % 2) as usize] = self.votes;
        self.votes = NO_VOTES;
        self.passed.join(&self.coming);
        self.passes += 1;
        self.arrived = 0;
        self.expected = None;
    }
}

impl Cta<'_> {
    pub(super) fn barrier(
        &mut self,
        warp: &mut Warp,
        fragment: usize,
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
                return Ok(Flow::Meet);
            }
            let gone = warp.exited & warp.lanes;
            let message =
                format!("lanes {gone:#010x} of the warp have ended and never come to barrier {id}");
            return Err(Fault::of_all(FindingKind::DivergentBarrier, message));
        }

        if let BarrierAction::Reduce { from, .. } | BarrierAction::Count { from, .. } =
            barrier.action
            && let Some(predicate) = from.index
        {
            self.need_predicate(warp, predicate, mask)?;
        }
        let whole = mask == warp.live();
        let comes = if whole { 32 } else { mask.count_ones() };
        let published = warp.knowledge.publish();
        let state = &mut self.barriers[id as usize];
        if let (Some(expected), Some(threads)) = (state.expected, threads)
            && expected != threads
        {
            let message =
                format!("barrier {id} for {threads} threads, which others use for {expected}");
            return Err(Fault::of_all(FindingKind::DivergentBarrier, message));
        }
        state.expected = state.expected.or(threads);
        state.coming.join(&published);
        state.arrived += match threads {
            Some(_) => comes,
            None => mask.count_ones(),
        };
        if let BarrierAction::Reduce { from, .. } | BarrierAction::Count { from, .. } =
            barrier.action
        {
            vote(&mut state.votes, warp, from, mask);
        }
        let passes = state.passes;
        self.progress();
        if matches!(barrier.action, BarrierAction::Arrive) {
            return Ok(Flow::Next);
        }
        warp.fragments[fragment].state = State::AtBarrier {
            id: id as usize,
            passes,
        };
        Ok(Flow::Blocked)
    }

    fn check_barrier(&self, id: u32, threads: Option<u32>) -> Result<(), Box<Fault>> {
        if id > 15 {
            let message = format!("barrier {id}: there are 0 to 15");
            return Err(Fault::of_all(FindingKind::InvalidArgument, message));
        }
        match threads {
            Some(threads) if threads == 0 || threads % 32 != 0 => {
                let message =
                    format!("a barrier for {threads} threads: a multiple of 32 is needed");
                Err(Fault::of_all(FindingKind::InvalidArgument, message))
            }
            _ => Ok(()),
        }
    }

    /// Passes every barrier for which all have come.
    pub(super) fn pass_barriers(&mut self, warps: &[Warp]) {
        if self.barriers.iter().all(|barrier| barrier.arrived == 0) {
            return;
        }
        let live: u32 = warps.iter().map(|warp| warp.live().count_ones()).sum();
        for barrier in &mut self.barriers {
            let due = barrier.expected.unwrap_or(live);
            if barrier.arrived > 0 && barrier.arrived >= due {
                barrier.pass();
            }
        }
    }

    /// Lets fragments go on whose barrier was passed.
    pub(super) fn wake(&self, warp: &mut Warp) {
        for at in 0..warp.fragments.len() {
            let State::AtBarrier { id, passes } = warp.fragments[at].state else {
                continue;
            };
            let barrier = &self.barriers[id];
            if barrier.passes == passes {
                continue;
            }
            warp.knowledge.seen.join(&barrier.passed);
            let (pc, mask) = (warp.fragments[at].pc, warp.fragments[at].mask);
            let votes = barrier.results[(passes % 2) as usize];
            self.give_result(warp, pc, mask, votes);
            warp.fragments[at].state = State::Ready;
            warp.fragments[at].pc = pc + 1;
        }
    }

    fn give_result(&self, warp: &mut Warp, pc: u32, mask: u32, votes: Votes) {
        let crate::program::op::Op::Barrier(barrier) = &self.grid.kernel.code[pc as usize].op
        else {
            return;
        };
        match barrier.action {
            BarrierAction::Reduce { kind, to, .. } => {
                let truth = if kind == VoteKind::All {
                    votes.all
                } else {
                    votes.any
                };
                warp.registers
                    .set_predicate(to, mask, if truth { mask } else { 0 });
            }
            BarrierAction::Count { to, .. } => {
                warp.registers.set_narrow(to, mask, &[votes.count; 32]);
            }
            BarrierAction::Sync | BarrierAction::Arrive => {}
        }
    }

    /// A value that all lanes of a mask must agree on.
    pub(super) fn uniform(
        &self,
        warp: &Warp,
        slot: u32,
        mask: u32,
        what: &str,
    ) -> Result<u32, Box<Fault>> {
        self.need(warp, slot, mask)?;
        let values = warp.registers.narrow(slot);
        let first = values[mask.trailing_zeros() as usize & 31];
        match lanes_of(mask).find(|lane| values[*lane] != first) {
            None => Ok(first),
            Some(lane) => {
                let other = values[lane];
                let message = format!("{what} is {first} in some lanes and {other} in others");
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
