//! What happened before what: vector clocks of warps.
//!
//! Each warp counts a clock that moves on whenever it lets others see what it did: at a barrier, a
//! fence or a release. What a warp has seen of others is a clock for each warp of its CTA, and for
//! each CTA that it heard of. Lanes of one warp are ordered by the barriers of the warp.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::registers::LANES;
use crate::memory::races::{Mark, Order};
use crate::program::op::Scope;

/// Agents of a CTA: 32 warps, and the asynchronous copies of each.
pub(crate) const AGENTS: usize = 64;

/// The agent of a warp's asynchronous copies.
pub(crate) fn copies_of(warp: usize) -> u8 {
    (32 + warp) as u8
}

/// Clocks seen, by agent.
pub(crate) type Clocks = [u32; AGENTS];

/// What somebody has seen of everybody.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) own_cta: Clocks,
    /// Of other CTAs, by their index modulo 2^20. Shared, as it seldom changes.
    pub(crate) others: Arc<BTreeMap<u32, Clocks>>,
}

impl Seen {
    pub(crate) fn nothing() -> Seen {
        Seen {
            own_cta: [0; AGENTS],
            others: Arc::default(),
        }
    }

    /// Adds what somebody of the same CTA has seen.
    pub(crate) fn join(&mut self, other: &Seen) {
        join(&mut self.own_cta, &other.own_cta);
        if !Arc::ptr_eq(&self.others, &other.others) && !other.others.is_empty() {
            let others = Arc::make_mut(&mut self.others);
            for (cta, clocks) in other.others.iter() {
                join(others.entry(*cta).or_insert([0; AGENTS]), clocks);
            }
        }
    }

    /// What this means to somebody of CTA `reader`, when it was seen by somebody of CTA `writer`.
    fn in_eyes_of(&self, writer: u32, reader: u32) -> Seen {
        if writer == reader {
            return self.clone();
        }
        let mut others = BTreeMap::clone(&self.others);
        let own_cta = others.remove(&reader).unwrap_or([0; AGENTS]);
        others.insert(writer, self.own_cta);
        Seen {
            own_cta,
            others: Arc::new(others),
        }
    }
}

fn join(clocks: &mut Clocks, other: &Clocks) {
    for (mine, theirs) in clocks.iter_mut().zip(other) {
        *mine = (*mine).max(*theirs);
    }
}

/// What one warp knows.
#[derive(Clone, Debug)]
pub(crate) struct Knowledge {
    pub(crate) warp: usize,
    pub(crate) cta: u32,
    /// The warp's clock now. Its earlier accesses have smaller ones.
    pub(crate) clock: u32,
    pub(crate) seen: Seen,
    /// Groups of asynchronous copies that each lane has waited for.
    waited: [u32; LANES],
    /// The same when the warp last met.
    met: [u32; LANES],
    /// Lanes that ever copied asynchronously.
    copying: u32,
    /// What was known at the last fence: what a relaxed write publishes. Of fences for the CTA
    /// alone, and of those for all.
    fenced: [Option<Seen>; 2],
    /// What relaxed reads found: known after the next fence. From the same CTA, and from others.
    heard: [Option<Seen>; 2],
    /// The last strong read: where, of which version, and how far it acquired.
    last_read: Option<(u64, u64, Option<Scope>)>,
}

impl Knowledge {
    pub(crate) fn new(warp: usize, cta: u32) -> Knowledge {
        Knowledge {
            warp,
            cta,
            clock: 1,
            seen: Seen::nothing(),
            waited: [0; LANES],
            met: [0; LANES],
            copying: 0,
            fenced: [None, None],
            heard: [None, None],
            last_read: None,
        }
    }

    /// Lets others see what was done so far; the clock moves on.
    pub(crate) fn publish(&mut self) -> Seen {
        let mut seen = self.seen.clone();
        seen.own_cta[self.warp] = self.clock;
        seen.own_cta[copies_of(self.warp) as usize] = self.copies_seen_by_all();
        self.clock += 1;
        self.met = self.waited;
        seen
    }

    /// The lanes of the warp meet.
    pub(crate) fn meet(&mut self) {
        self.clock += 1;
        self.met = self.waited;
    }

    pub(crate) fn fence(&mut self, scope: Scope) {
        let reach = reach(scope);
        for heard in &mut self.heard[..=reach] {
            if let Some(heard) = heard.take() {
                self.seen.join(&heard);
            }
        }
        let seen = self.publish();
        self.fenced[..=reach].fill(Some(seen));
    }

    pub(crate) fn start_copies(&mut self, lanes: u32) {
        self.copying |= lanes;
    }

    pub(crate) fn wait_for_copies(&mut self, lane: usize, groups: u32) {
        self.waited[lane] = self.waited[lane].max(groups);
    }

    /// The groups that every copying lane has waited for.
    fn copies_seen_by_all(&self) -> u32 {
        let lanes = super::registers::lanes_of(self.copying);
        lanes.map(|lane| self.waited[lane]).min().unwrap_or(0)
    }
}

impl Order for Knowledge {
    #[inline(always)]
    fn is_after(&self, mark: Mark, me: Mark) -> bool {
        let agent = mark.agent() as usize;
        if mark.cta() != self.cta {
            let others = &self.seen.others;
            return !others.is_empty()
                && others
                    .get(&mark.cta())
                    .is_some_and(|clocks| mark.clock() <= clocks[agent]);
        }
        if agent == self.warp {
            // An asynchronous copy comes after what its own thread did before.
            let own_copy = me.agent() != mark.agent() && mark.lane() == me.lane();
            return mark.clock() < self.clock || own_copy;
        }
        if agent == copies_of(self.warp) as usize {
            let lane = mark.lane();
            let known = if lane == me.lane() {
                &self.waited
            } else {
                &self.met
            };
            return mark.clock() <= known[lane as usize];
        }
        mark.clock() <= self.seen.own_cta[agent]
    }
}

/// 0 for the CTA alone, 1 for all.
fn reach(scope: Scope) -> usize {
    match scope {
        Scope::Cta => 0,
        Scope::Gpu => 1,
    }
}

/// What was published at one place in memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Committed {
    /// For the writer's CTA alone, and for all.
    what: [Option<(u32, Seen)>; 2],
    /// How often something was.
    version: u64,
}

impl Committed {
    /// A write that others may find: at once when it releases, else as of the last fence.
    pub(crate) fn write(&mut self, by: &mut Knowledge, release: Option<Scope>) {
        if let Some(scope) = release {
            let seen = by.publish();
            for reach in 0..=reach(scope) {
                self.add(reach, by.cta, &seen);
            }
        }
        for reach in 0..2 {
            if let Some(seen) = &by.fenced[reach] {
                self.add(reach, by.cta, seen);
            }
        }
    }

    fn add(&mut self, reach: usize, cta: u32, seen: &Seen) {
        self.version += 1;
        match &mut self.what[reach] {
            Some((first, published)) => published.join(&seen.in_eyes_of(cta, *first)),
            None => self.what[reach] = Some((cta, seen.clone())),
        }
    }

    /// A read of `place` that may find something: known at once when it acquires, else after a
    /// fence.
    pub(crate) fn read(&self, by: &mut Knowledge, place: u64, acquire: Option<Scope>) {
        // Whoever waits for a flag reads the same again and again.
        let this = Some((place, self.version, acquire));
        if by.last_read == this {
            return;
        }
        by.last_read = this;
        for (far, published) in self.what.iter().enumerate() {
            let Some((cta, published)) = published else {
                continue;
            };
            if far == 0 && *cta != by.cta {
                continue;
            }
            let seen = published.in_eyes_of(*cta, by.cta);
            let acquired = acquire.is_some_and(|scope| reach(scope) >= far);
            match (acquired, &mut by.heard[far]) {
                (true, _) => by.seen.join(&seen),
                (false, Some(heard)) => heard.join(&seen),
                (false, heard) => *heard = Some(seen),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(cta: u32, agent: u8, lane: u8, clock: u32) -> Mark {
        Mark::new(1, cta, agent, lane, clock, false)
    }

    #[test]
    fn what_is_published_and_joined_is_ordered() {
        let (mut a, mut b) = (Knowledge::new(0, 0), Knowledge::new(1, 0));
        let (write, me) = (mark(0, 0, 0, a.clock), mark(0, 1, 0, b.clock));
        assert!(!b.is_after(write, me));
        b.seen.join(&a.publish());
        assert!(b.is_after(write, me));
        assert!(!b.is_after(mark(0, 0, 0, a.clock), me));
    }

    #[test]
    fn lanes_of_a_warp_meet() {
        let mut warp = Knowledge::new(2, 0);
        let write = mark(0, 2, 0, warp.clock);
        assert!(!warp.is_after(write, mark(0, 2, 1, warp.clock)));
        warp.meet();
        assert!(warp.is_after(write, mark(0, 2, 1, warp.clock)));
    }

    /// The flag protocol between CTAs: data, fence, flag; flag, fence, data. Without either fence
    /// nothing is ordered.
    #[test]
    fn a_flag_between_ctas_needs_both_fences() {
        for (fence_before, fence_after) in [(true, true), (true, false), (false, true)] {
            let (mut a, mut b) = (Knowledge::new(0, 3), Knowledge::new(0, 7));
            let mut flag = Committed::default();
            let data = mark(3, 0, 0, a.clock);
            if fence_before {
                a.fence(Scope::Gpu);
            }
            flag.write(&mut a, None);
            flag.read(&mut b, 0, None);
            if fence_after {
                b.fence(Scope::Gpu);
            }
            let ordered = b.is_after(data, mark(7, 0, 0, b.clock));
            assert_eq!(ordered, fence_before && fence_after);
        }
    }

    /// A fence of the CTA orders within it, and nothing beyond.
    #[test]
    fn a_fence_reaches_as_far_as_its_scope() {
        for (reader, reached) in [(3, true), (7, false)] {
            let (mut a, mut b) = (Knowledge::new(0, 3), Knowledge::new(1, reader));
            let mut flag = Committed::default();
            let data = mark(3, 0, 0, a.clock);
            a.fence(Scope::Cta);
            flag.write(&mut a, None);
            flag.read(&mut b, 0, Some(Scope::Gpu));
            assert_eq!(b.is_after(data, mark(reader, 1, 0, b.clock)), reached);
        }
    }

    #[test]
    fn copies_are_seen_by_their_lane_then_by_the_warp_then_by_others() {
        let (mut a, mut b) = (Knowledge::new(0, 0), Knowledge::new(1, 0));
        let copy = mark(0, copies_of(0), 5, 1);
        a.start_copies(1 << 5);
        assert!(!a.is_after(copy, mark(0, 0, 5, a.clock)));
        a.wait_for_copies(5, 1);
        assert!(a.is_after(copy, mark(0, 0, 5, a.clock)));
        assert!(!a.is_after(copy, mark(0, 0, 6, a.clock)));
        let published = a.publish();
        assert!(a.is_after(copy, mark(0, 0, 6, a.clock)));
        assert!(!b.is_after(copy, mark(0, 1, 0, b.clock)));
        b.seen.join(&published);
        assert!(b.is_after(copy, mark(0, 1, 0, b.clock)));
    }
}
