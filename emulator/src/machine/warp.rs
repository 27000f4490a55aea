//! One warp: its registers, where each of its lanes stands, and what it has under way.
//!
//! Lanes that stand at the same instruction form a fragment. Of several fragments the one furthest
//! behind runs, so that they meet again where the code joins (thread frontiers, Diamos et al.
//! 2011).

use super::asynchronous::Copies;
use super::frames::Saved;
use super::order::Knowledge;
use super::registers::Registers;

/// Lanes that stand at one place.
#[derive(Clone, Debug)]
pub(crate) struct Fragment {
    pub(crate) pc: u32,
    pub(crate) mask: u32,
    /// Where its calls return to.
    pub(crate) calls: Vec<u32>,
    pub(crate) state: State,
}

/// Whether a fragment can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Ready,
    /// It ran for long, and lets others run first.
    Yielded,
    /// It waits at its instruction for other lanes of the warp.
    Meeting,
    /// It waits for a barrier to be passed so often.
    AtBarrier {
        id: usize,
        passes: u64,
    },
}

/// A warp.
#[derive(Debug)]
pub(crate) struct Warp {
    /// Its index in the CTA.
    pub(crate) index: usize,
    pub(crate) registers: Registers,
    pub(crate) fragments: Vec<Fragment>,
    /// Lanes that there are: fewer than 32 in the last warp of some CTAs.
    pub(crate) lanes: u32,
    /// Lanes that have ended.
    pub(crate) exited: u32,
    pub(crate) knowledge: Knowledge,
    pub(crate) copies: Copies,
    /// What functions saved that may be called while they run.
    pub(crate) saved: Saved,
}

impl Warp {
    pub(crate) fn new(index: usize, cta: u32, lanes: u32) -> Warp {
        let start = Fragment {
            pc: 0,
            mask: lanes,
            calls: Vec::new(),
            state: State::Ready,
        };
        Warp {
            index,
            registers: Registers::default(),
            fragments: vec![start],
            lanes,
            exited: 0,
            knowledge: Knowledge::new(index, cta),
            copies: Copies::default(),
            saved: Saved::default(),
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.fragments.is_empty()
    }

    /// Lanes that have not ended.
    pub(crate) fn live(&self) -> u32 {
        self.lanes & !self.exited
    }

    /// Joins fragments that stand at the same place and need not wait for others.
    fn merge(&mut self) {
        let fragments = &mut self.fragments;
        fragments.sort_by(|a, b| (a.pc, &a.calls).cmp(&(b.pc, &b.calls)));
        let movable = |state| !matches!(state, State::AtBarrier { .. });
        let mut at = 1;
        while at < fragments.len() {
            let (a, b) = (&fragments[at - 1], &fragments[at]);
            let same = a.pc == b.pc && a.calls == b.calls;
            if same && movable(a.state) && movable(b.state) {
                let merged = fragments.remove(at);
                fragments[at - 1].mask |= merged.mask;
                fragments[at - 1].state = State::Ready;
            } else {
                at += 1;
            }
        }
    }

    /// The fragment to run next: the one furthest behind, unless it has just run for long.
    pub(crate) fn select(&mut self) -> Option<usize> {
        if let [only] = self.fragments.as_mut_slice() {
            if only.state == State::Yielded {
                only.state = State::Ready;
            }
            return (only.state == State::Ready).then_some(0);
        }
        self.merge();
        let ready = |fragment: &Fragment| fragment.state == State::Ready;
        if let Some(first) = self.fragments.iter().position(ready) {
            return Some(first);
        }
        for fragment in &mut self.fragments {
            if fragment.state == State::Yielded {
                fragment.state = State::Ready;
            }
        }
        self.fragments.iter().position(ready)
    }

    /// The first position beyond which the fragment must not run before others are asked.
    pub(crate) fn horizon(&self, running: usize) -> u32 {
        let others = self.fragments.iter().enumerate();
        let others = others.filter(|(index, _)| *index != running);
        others
            .map(|(_, fragment)| fragment.pc)
            .min()
            .unwrap_or(u32::MAX)
    }

    /// Takes lanes out of a fragment into one of their own at `pc`.
    pub(crate) fn split(&mut self, fragment: usize, lanes: u32, pc: u32) -> usize {
        let mut new = self.fragments[fragment].clone();
        self.fragments[fragment].mask &= !lanes;
        new.mask = lanes;
        new.pc = pc;
        self.fragments.push(new);
        self.fragments.len() - 1
    }

    /// Ends lanes of a fragment.
    pub(crate) fn exit(&mut self, fragment: usize, lanes: u32) {
        self.exited |= lanes;
        self.fragments[fragment].mask &= !lanes;
        self.fragments.retain(|fragment| fragment.mask != 0);
        // Those who waited for the lanes that are gone look again.
        for fragment in &mut self.fragments {
            if fragment.state == State::Meeting {
                fragment.state = State::Ready;
            }
        }
    }

    /// Where some lane stands that has not come to where others wait.
    pub(crate) fn all_wait_for_each_other(&self) -> bool {
        let meets = |fragment: &Fragment| fragment.state == State::Meeting;
        !self.fragments.is_empty() && self.fragments.iter().all(meets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fragment_furthest_behind_runs_and_they_meet_again() {
        let mut warp = Warp::new(0, 0, u32::MAX);
        warp.fragments[0].pc = 5;
        let other = warp.split(0, 0xff, 9);
        assert_eq!(warp.horizon(0), 9);
        assert_eq!(warp.fragments[other].mask, 0xff);
        assert_eq!(warp.select(), Some(0));
        warp.fragments[0].pc = 9;
        assert_eq!(warp.select(), Some(0));
        assert_eq!(warp.fragments.len(), 1);
        assert_eq!(warp.fragments[0].mask, u32::MAX);
    }

    #[test]
    fn a_fragment_that_spins_lets_others_run() {
        let mut warp = Warp::new(0, 0, u32::MAX);
        warp.split(0, 1, 7);
        warp.fragments[0].state = State::Yielded;
        assert_eq!(warp.select().map(|at| warp.fragments[at].pc), Some(7));
        warp.fragments[1].state = State::Yielded;
        assert_eq!(warp.select().map(|at| warp.fragments[at].pc), Some(0));
    }

    #[test]
    fn lanes_at_a_barrier_do_not_join_those_that_come_later() {
        let mut warp = Warp::new(0, 0, u32::MAX);
        warp.split(0, 1, 0);
        warp.fragments[0].state = State::AtBarrier { id: 0, passes: 0 };
        assert_eq!(warp.select(), Some(1));
        assert_eq!(warp.fragments.len(), 2);
    }
}
