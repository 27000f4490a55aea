//! The happens-before order: vector clocks of warps.
//!
//! Each warp has a clock that advances when it releases its accesses to others: at a barrier, a
//! fence or a release. A warp's vector clock holds the latest clock that it has acquired from each
//! warp of its CTA, and of other CTAs that it synchronized with. Warp barriers order the lanes of
//! one warp.

use super::registers::{LANES, lanes_of};
use super::vector_clock::{VectorClock, copies_of, products_of};
use crate::memory::races::{HappensBefore, Mark};
use crate::program::op::Scope;

/// The clocks of one warp.
#[derive(Clone, Debug)]
pub(crate) struct WarpClock {
    pub(crate) warp: usize,
    pub(crate) cta: u32,
    /// The warp's own clock. Its earlier accesses have smaller values.
    pub(crate) now: u32,
    pub(crate) seen: VectorClock,
    /// The last epoch of copies that each lane has waited for.
    waited: [u32; LANES],
    /// `waited` at the last synchronization of the warp.
    synced: [u32; LANES],
    /// The last product that the warp has waited for.
    pub(super) waited_products: u32,
    /// Lanes that have started asynchronous copies.
    copying: u32,
    /// The clock at the last fence of CTA scope and of GPU scope. Relaxed writes release it.
    fenced: [Option<VectorClock>; 2],
    /// Clocks that relaxed reads found, released with CTA scope and with GPU scope. The next fence
    /// acquires them.
    unacquired: [Option<VectorClock>; 2],
    /// The last strong read: address, version, and scope of its acquire.
    last_read: Option<(u64, u64, Option<Scope>)>,
}

impl WarpClock {
    pub(crate) fn new(warp: usize, cta: u32) -> WarpClock {
        WarpClock {
            warp,
            cta,
            now: 1,
            seen: VectorClock::zero(),
            waited: [0; LANES],
            synced: [0; LANES],
            waited_products: 0,
            copying: 0,
            fenced: [None, None],
            unacquired: [None, None],
            last_read: None,
        }
    }

    /// Releases all accesses so far, and advances the clock.
    pub(crate) fn release(&mut self) -> VectorClock {
        let mut seen = self.seen.clone();
        let copies = usize::from(copies_of(self.warp));
        seen.own_cta.set(self.warp, self.now);
        seen.own_cta.set(copies, self.copies_seen_by_all());
        let products = usize::from(products_of(self.warp));
        seen.own_cta.set(products, self.waited_products);
        self.now += 1;
        self.synced = self.waited;
        seen
    }

    /// Synchronizes the lanes of the warp.
    pub(crate) fn sync_lanes(&mut self) {
        self.now += 1;
        self.synced = self.waited;
    }

    pub(crate) fn fence(&mut self, scope: Scope) {
        let scope_index = scope_index(scope);
        for unacquired in &mut self.unacquired[..=scope_index] {
            if let Some(unacquired) = unacquired.take() {
                self.seen.join(&unacquired);
            }
        }
        let seen = self.release();
        self.fenced[..=scope_index].fill(Some(seen));
    }

    /// Separates the accesses so far from later ones. Returns the clock of those so far.
    pub(crate) fn advance(&mut self) -> u32 {
        self.now += 1;
        self.now - 1
    }

    /// The last epoch of copies that each lane has waited for.
    pub(crate) fn waited_copies(&self) -> &[u32; LANES] {
        &self.waited
    }

    pub(crate) fn start_copies(&mut self, lanes: u32) {
        self.copying |= lanes;
    }

    pub(crate) fn wait_for_copies(&mut self, lane: usize, epoch: u32) {
        self.waited[lane] = self.waited[lane].max(epoch);
    }

    /// The epoch that every copying lane has waited for, itself or at an mbarrier.
    fn copies_seen_by_all(&self) -> u32 {
        let arrived = |lane| self.seen.own_cta.arrived_copies(self.warp, lane);
        let lanes = lanes_of(self.copying).map(|lane| self.waited[lane].max(arrived(lane)));
        lanes.min().unwrap_or(0)
    }
}

impl HappensBefore for WarpClock {
    #[inline(always)]
    fn happened_before(&self, mark: Mark, me: Mark) -> bool {
        if mark.cta() != self.cta {
            return self.seen.includes(mark, self.cta);
        }
        let agent = usize::from(mark.agent());
        let by_product = me.agent() == products_of(self.warp);
        if agent == self.warp {
            // An asynchronous copy is ordered after the earlier accesses of its own thread, and a
            // product after those of its warp.
            let own_copy = me.agent() != mark.agent() && mark.lane() == me.lane();
            return mark.clock() < self.now || own_copy || by_product;
        }
        if agent == usize::from(products_of(self.warp)) {
            return mark.clock() <= self.waited_products;
        }
        if agent == usize::from(copies_of(self.warp)) {
            let lane = mark.lane();
            let known = if lane == me.lane() || by_product { &self.waited } else { &self.synced };
            if mark.clock() <= known[usize::from(lane)] {
                return true;
            }
        }
        self.seen.includes(mark, self.cta)
    }
}

/// 0 for CTA scope, 1 for GPU scope.
fn scope_index(scope: Scope) -> usize {
    match scope {
        Scope::Cta => 0,
        Scope::Gpu => 1,
    }
}

/// The clocks released at one address.
#[derive(Clone, Debug, Default)]
pub(crate) struct SyncVar {
    /// Clocks released with CTA scope and with GPU scope, each with the CTA that released first.
    released: [Option<(u32, VectorClock)>; 2],
    /// Counts releases.
    version: u64,
}

impl SyncVar {
    /// Records a write. A release releases the current clock. Every write releases the clock of
    /// the last fence.
    pub(crate) fn write(&mut self, by: &mut WarpClock, release: Option<Scope>) {
        if let Some(scope) = release {
            let seen = by.release();
            for scope_index in 0..=scope_index(scope) {
                self.add(scope_index, by.cta, &seen);
            }
        }
        for scope_index in 0..2 {
            if let Some(seen) = &by.fenced[scope_index] {
                self.add(scope_index, by.cta, seen);
            }
        }
    }

    fn add(&mut self, scope_index: usize, cta: u32, seen: &VectorClock) {
        self.version += 1;
        match &mut self.released[scope_index] {
            Some((first, clock)) => clock.join(&seen.relative_to(cta, *first)),
            None => self.released[scope_index] = Some((cta, seen.clone())),
        }
    }

    /// Records a read. An acquire acquires the released clock now; any other read does so at the
    /// next fence.
    pub(crate) fn read(&self, by: &mut WarpClock, address: u64, acquire: Option<Scope>) {
        // A spinning thread repeats the same read.
        let this = Some((address, self.version, acquire));
        if by.last_read == this {
            return;
        }
        by.last_read = this;
        for (index, clock) in self.released.iter().enumerate() {
            let Some((cta, clock)) = clock else {
                continue;
            };
            if index == 0 && *cta != by.cta {
                continue;
            }
            let seen = clock.relative_to(*cta, by.cta);
            let acquired = acquire.is_some_and(|scope| scope_index(scope) >= index);
            match (acquired, &mut by.unacquired[index]) {
                (true, _) => by.seen.join(&seen),
                (false, Some(unacquired)) => unacquired.join(&seen),
                (false, unacquired) => *unacquired = Some(seen),
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
    fn released_and_joined_accesses_are_ordered() {
        let (mut a, mut b) = (WarpClock::new(0, 0), WarpClock::new(1, 0));
        let (write, me) = (mark(0, 0, 0, a.now), mark(0, 1, 0, b.now));
        assert!(!b.happened_before(write, me));
        b.seen.join(&a.release());
        assert!(b.happened_before(write, me));
        assert!(!b.happened_before(mark(0, 0, 0, a.now), me));
    }

    #[test]
    fn a_warp_barrier_orders_lanes() {
        let mut warp = WarpClock::new(2, 0);
        let write = mark(0, 2, 0, warp.now);
        assert!(!warp.happened_before(write, mark(0, 2, 1, warp.now)));
        warp.sync_lanes();
        assert!(warp.happened_before(write, mark(0, 2, 1, warp.now)));
    }

    /// The writer accesses data, fence, flag; the reader flag, fence, data.
    #[test]
    fn a_flag_between_ctas_needs_both_fences() {
        for (fence_before, fence_after) in [(true, true), (true, false), (false, true)] {
            let (mut a, mut b) = (WarpClock::new(0, 3), WarpClock::new(0, 7));
            let mut flag = SyncVar::default();
            let data = mark(3, 0, 0, a.now);
            if fence_before {
                a.fence(Scope::Gpu);
            }
            flag.write(&mut a, None);
            flag.read(&mut b, 0, None);
            if fence_after {
                b.fence(Scope::Gpu);
            }
            let ordered = b.happened_before(data, mark(7, 0, 0, b.now));
            assert_eq!(ordered, fence_before && fence_after);
        }
    }

    /// A CTA-scope fence orders accesses within the CTA only.
    #[test]
    fn a_fence_orders_within_its_scope() {
        for (reader, reached) in [(3, true), (7, false)] {
            let (mut a, mut b) = (WarpClock::new(0, 3), WarpClock::new(1, reader));
            let mut flag = SyncVar::default();
            let data = mark(3, 0, 0, a.now);
            a.fence(Scope::Cta);
            flag.write(&mut a, None);
            flag.read(&mut b, 0, Some(Scope::Gpu));
            assert_eq!(b.happened_before(data, mark(reader, 1, 0, b.now)), reached);
        }
    }

    #[test]
    fn a_wait_orders_copies_for_the_lane_then_the_warp_then_others() {
        let (mut a, mut b) = (WarpClock::new(0, 0), WarpClock::new(1, 0));
        let copy = mark(0, copies_of(0), 5, 1);
        a.start_copies(1 << 5);
        assert!(!a.happened_before(copy, mark(0, 0, 5, a.now)));
        a.wait_for_copies(5, 1);
        assert!(a.happened_before(copy, mark(0, 0, 5, a.now)));
        assert!(!a.happened_before(copy, mark(0, 0, 6, a.now)));
        let clock = a.release();
        assert!(a.happened_before(copy, mark(0, 0, 6, a.now)));
        assert!(!b.happened_before(copy, mark(0, 1, 0, b.now)));
        b.seen.join(&clock);
        assert!(b.happened_before(copy, mark(0, 1, 0, b.now)));
    }
}
