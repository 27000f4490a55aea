//! Vector clocks: the latest clock that has been acquired from each agent.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::registers::LANES;
use crate::memory::races::Mark;

/// The most warps of a CTA.
const WARPS: usize = 32;

/// Agents of a CTA: the warps, and the asynchronous copies and products of each warp.
const AGENTS: usize = 3 * WARPS;

/// The agent of a warp's asynchronous copies.
pub(crate) fn copies_of(warp: usize) -> u8 {
    (WARPS + warp) as u8
}

/// The agent of a warp's asynchronous products.
pub(crate) fn products_of(warp: usize) -> u8 {
    (2 * WARPS + warp) as u8
}

/// The clocks of one CTA's agents.
#[derive(Clone, Debug)]
pub(crate) struct Clocks {
    by_agent: [u32; AGENTS],
    /// Epochs of asynchronous copies that arrived at mbarriers, by warp and lane. In an `Arc`,
    /// because few kernels have them.
    arrived: Option<Arc<BTreeMap<usize, [u32; LANES]>>>,
}

impl Clocks {
    pub(super) fn zero() -> Clocks {
        Clocks { by_agent: [0; AGENTS], arrived: None }
    }

    pub(super) fn set(&mut self, agent: usize, clock: u32) {
        self.by_agent[agent] = clock;
    }

    /// Whether these clocks include the access of `mark`, an access of this CTA.
    #[inline(always)]
    pub(super) fn include(&self, mark: Mark) -> bool {
        let agent = mark.agent();
        mark.clock() <= self.by_agent[usize::from(agent)]
            || (self.arrived.is_some() && self.include_arrived(mark))
    }

    fn include_arrived(&self, mark: Mark) -> bool {
        let warp = usize::from(mark.agent()).checked_sub(WARPS);
        warp.is_some_and(|warp| mark.clock() <= self.arrived_copies(warp, usize::from(mark.lane())))
    }

    /// The last epoch of a lane's copies that arrived at an mbarrier.
    pub(super) fn arrived_copies(&self, warp: usize, lane: usize) -> u32 {
        let arrived = self.arrived.as_ref().and_then(|it| it.get(&warp));
        arrived.map_or(0, |lanes| lanes[lane])
    }

    /// Adds the copies of a lane up to an epoch.
    pub(super) fn add_arrived_copies(&mut self, warp: usize, lane: usize, epoch: u32) {
        let arrived = Arc::make_mut(self.arrived.get_or_insert_default());
        let lanes = arrived.entry(warp).or_insert([0; LANES]);
        lanes[lane] = lanes[lane].max(epoch);
    }

    fn join(&mut self, other: &Clocks) {
        join(&mut self.by_agent, &other.by_agent);
        let Some(theirs) = &other.arrived else {
            return;
        };
        match &mut self.arrived {
            None => self.arrived = Some(theirs.clone()),
            Some(mine) if Arc::ptr_eq(mine, theirs) => {}
            Some(mine) => {
                let mine = Arc::make_mut(mine);
                for (warp, lanes) in theirs.iter() {
                    join(mine.entry(*warp).or_insert([0; LANES]), lanes);
                }
            }
        }
    }
}

/// A vector clock.
#[derive(Clone, Debug)]
pub(crate) struct VectorClock {
    pub(super) own_cta: Clocks,
    /// The clocks of other CTAs, by CTA index modulo 2^20. In an `Arc`, because they rarely change.
    others: Arc<BTreeMap<u32, Clocks>>,
}

impl VectorClock {
    pub(crate) fn zero() -> VectorClock {
        VectorClock { own_cta: Clocks::zero(), others: Arc::default() }
    }

    /// Whether this clock of CTA `cta` includes the access of `mark`.
    #[inline(always)]
    pub(super) fn includes(&self, mark: Mark, cta: u32) -> bool {
        if mark.cta() == cta {
            return self.own_cta.include(mark);
        }
        let others = &self.others;
        !others.is_empty() && others.get(&mark.cta()).is_some_and(|clocks| clocks.include(mark))
    }

    /// Whether it includes what a warp of the same CTA did until `clock`.
    pub(super) fn includes_warp(&self, warp: usize, clock: u32) -> bool {
        clock <= self.own_cta.by_agent[warp]
    }

    /// Joins the clock of an agent of the same CTA.
    pub(crate) fn join(&mut self, other: &VectorClock) {
        self.own_cta.join(&other.own_cta);
        if !Arc::ptr_eq(&self.others, &other.others) && !other.others.is_empty() {
            let others = Arc::make_mut(&mut self.others);
            for (cta, clocks) in other.others.iter() {
                others.entry(*cta).or_insert_with(Clocks::zero).join(clocks);
            }
        }
    }

    /// Converts a clock of CTA `writer` to the view of CTA `reader`.
    pub(super) fn relative_to(&self, writer: u32, reader: u32) -> VectorClock {
        if writer == reader {
            return self.clone();
        }
        let mut others = BTreeMap::clone(&self.others);
        let own_cta = others.remove(&reader).unwrap_or_else(Clocks::zero);
        others.insert(writer, self.own_cta.clone());
        VectorClock { own_cta, others: Arc::new(others) }
    }
}

fn join(clocks: &mut [u32], other: &[u32]) {
    for (mine, theirs) in clocks.iter_mut().zip(other) {
        *mine = (*mine).max(*theirs);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(cta: u32, lane: u8, epoch: u32) -> Mark {
        Mark::new(1, cta, copies_of(3), lane, epoch, false)
    }

    /// Copies that arrived are included lane by lane, through joins and in the view of another CTA.
    #[test]
    fn arrived_copies_are_included_by_lane() {
        let mut one = VectorClock::zero();
        one.own_cta.add_arrived_copies(3, 5, 2);
        let mut other = VectorClock::zero();
        other.own_cta.add_arrived_copies(3, 6, 1);
        one.join(&other);
        let elsewhere = one.relative_to(0, 7);
        for (clock, reader) in [(&one, 0), (&elsewhere, 7)] {
            for (lane, last) in [(4, 0), (5, 2), (6, 1)] {
                for epoch in 1..4 {
                    let included = clock.includes(copy(0, lane, epoch), reader);
                    assert_eq!(included, epoch <= last, "lane {lane}, epoch {epoch}");
                }
            }
            assert!(!clock.includes(copy(1, 5, 1), reader));
        }
    }
}
