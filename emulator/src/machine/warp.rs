//! One warp: its registers, its subwarps and its pending copies.
//!
//! Lanes at the same instruction form a subwarp. The subwarp with the lowest position runs first,
//! so that subwarps reconverge where the code joins (thread frontiers, Diamos et al. 2011).

use super::barrier_state::FailedTest;
use super::copies::Copies;
use super::frames::Saved;
use super::happens_before::WarpClock;
use super::products::Products;
use super::registers::Registers;

/// Lanes at the same instruction.
#[derive(Clone, Debug)]
pub(crate) struct Subwarp {
    pub(crate) pc: u32,
    pub(crate) mask: u32,
    /// Return positions of its calls.
    pub(crate) calls: Vec<u32>,
    pub(crate) state: State,
}

/// The scheduling state of a subwarp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Ready,
    /// It used up its time slice or slept, and lets others run first.
    Yielded,
    /// Waits at its instruction for other lanes of the warp.
    WaitingForLanes,
    /// Waits for a phase of a barrier to complete.
    AtBarrier {
        id: usize,
        phase: u64,
    },
}

/// A warp.
#[derive(Debug)]
pub(crate) struct Warp {
    /// Its index in the CTA.
    pub(crate) index: usize,
    pub(crate) registers: Registers,
    pub(crate) subwarps: Vec<Subwarp>,
    /// The lanes that exist: fewer than 32 in the last warp of some CTAs.
    pub(crate) lanes: u32,
    /// The lanes that have exited.
    pub(crate) exited: u32,
    pub(crate) clock: WarpClock,
    pub(crate) copies: Copies,
    pub(crate) products: Products,
    /// The last test of an mbarrier, if it failed.
    pub(crate) failed_test: Option<FailedTest>,
    /// The frames that recursive functions saved.
    pub(crate) saved: Saved,
}

impl Warp {
    pub(crate) fn new(index: usize, cta: u32, lanes: u32) -> Warp {
        let start = Subwarp { pc: 0, mask: lanes, calls: Vec::new(), state: State::Ready };
        Warp {
            index,
            registers: Registers::default(),
            subwarps: vec![start],
            lanes,
            exited: 0,
            clock: WarpClock::new(index, cta),
            copies: Copies::default(),
            products: Products::default(),
            failed_test: None,
            saved: Saved::default(),
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.subwarps.is_empty()
    }

    /// The lanes that have not exited.
    pub(crate) fn live(&self) -> u32 {
        self.lanes & !self.exited
    }

    /// Merges subwarps at the same position that do not wait at a barrier.
    fn merge(&mut self) {
        let subwarps = &mut self.subwarps;
        subwarps.sort_by(|a, b| (a.pc, &a.calls).cmp(&(b.pc, &b.calls)));
        let movable = |state| !matches!(state, State::AtBarrier { .. });
        let mut at = 1;
        while at < subwarps.len() {
            let (a, b) = (&subwarps[at - 1], &subwarps[at]);
            let same = a.pc == b.pc && a.calls == b.calls;
            if same && movable(a.state) && movable(b.state) {
                let merged = subwarps.remove(at);
                subwarps[at - 1].mask |= merged.mask;
                subwarps[at - 1].state = State::Ready;
            } else {
                at += 1;
            }
        }
    }

    /// Selects the subwarp to run next: the one with the lowest position that has not yielded.
    pub(crate) fn select(&mut self) -> Option<usize> {
        if let [only] = self.subwarps.as_mut_slice() {
            if only.state == State::Yielded {
                only.state = State::Ready;
            }
            return (only.state == State::Ready).then_some(0);
        }
        self.merge();
        let ready = |subwarp: &Subwarp| subwarp.state == State::Ready;
        if let Some(first) = self.subwarps.iter().position(ready) {
            return Some(first);
        }
        for subwarp in &mut self.subwarps {
            if subwarp.state == State::Yielded {
                subwarp.state = State::Ready;
            }
        }
        self.subwarps.iter().position(ready)
    }

    /// The position up to which the subwarp may run before another must be selected.
    pub(crate) fn reconvergence_pc(&self, running: usize) -> u32 {
        let others = self.subwarps.iter().enumerate();
        let others = others.filter(|(index, _)| *index != running);
        others.map(|(_, subwarp)| subwarp.pc).min().unwrap_or(u32::MAX)
    }

    /// Moves lanes of a subwarp to a new subwarp at `pc`.
    pub(crate) fn split(&mut self, subwarp: usize, lanes: u32, pc: u32) -> usize {
        let mut new = self.subwarps[subwarp].clone();
        self.subwarps[subwarp].mask &= !lanes;
        new.mask = lanes;
        new.pc = pc;
        self.subwarps.push(new);
        self.subwarps.len() - 1
    }

    /// Ends lanes of a subwarp.
    pub(crate) fn exit(&mut self, subwarp: usize, lanes: u32) {
        self.exited |= lanes;
        self.subwarps[subwarp].mask &= !lanes;
        self.subwarps.retain(|subwarp| subwarp.mask != 0);
        // Subwarps that waited for exited lanes check again.
        for subwarp in &mut self.subwarps {
            if subwarp.state == State::WaitingForLanes {
                subwarp.state = State::Ready;
            }
        }
    }

    /// Whether all subwarps wait for each other.
    pub(crate) fn all_wait_for_lanes(&self) -> bool {
        let meets = |subwarp: &Subwarp| subwarp.state == State::WaitingForLanes;
        !self.subwarps.is_empty() && self.subwarps.iter().all(meets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_subwarp_with_the_lowest_pc_runs_and_they_reconverge() {
        let mut warp = Warp::new(0, 0, u32::MAX);
        warp.subwarps[0].pc = 5;
        let other = warp.split(0, 0xff, 9);
        assert_eq!(warp.reconvergence_pc(0), 9);
        assert_eq!(warp.subwarps[other].mask, 0xff);
        assert_eq!(warp.select(), Some(0));
        warp.subwarps[0].pc = 9;
        assert_eq!(warp.select(), Some(0));
        assert_eq!(warp.subwarps.len(), 1);
        assert_eq!(warp.subwarps[0].mask, u32::MAX);
    }

    #[test]
    fn a_spinning_subwarp_lets_others_run() {
        let mut warp = Warp::new(0, 0, u32::MAX);
        warp.split(0, 1, 7);
        warp.subwarps[0].state = State::Yielded;
        assert_eq!(warp.select().map(|at| warp.subwarps[at].pc), Some(7));
        warp.subwarps[1].state = State::Yielded;
        assert_eq!(warp.select().map(|at| warp.subwarps[at].pc), Some(0));
    }

    #[test]
    fn lanes_at_a_barrier_do_not_merge_with_later_ones() {
        let mut warp = Warp::new(0, 0, u32::MAX);
        warp.split(0, 1, 0);
        warp.subwarps[0].state = State::AtBarrier { id: 0, phase: 0 };
        assert_eq!(warp.select(), Some(1));
        assert_eq!(warp.subwarps.len(), 2);
    }
}
