//! Arrivals at mbarriers that follow asynchronous copies (`cp.async.mbarrier.arrive`).
//!
//! The thread requests an arrival. It happens when the thread's earlier copies are complete, and
//! publishes these copies only: the thread's own stores need another arrival.

use super::addresses::ResolvedAddresses;
use super::barrier_state::Arrival;
use super::check::{ALWAYS, AccessInfo};
use super::copies::CopyArrival;
use super::cta::Cta;
use super::fault::Fault;
use super::mbarrier::{MAX_COUNT, wrong};
use super::registers::{LANES, lanes_of};
use super::warp::Warp;
use crate::options::AsyncCopies;
use crate::program::op::ArriveForCopies;

impl Cta<'_> {
    pub(super) fn request_copy_arrival(
        &mut self,
        warp: &mut Warp,
        arrive: &ArriveForCopies,
        mask: u32,
    ) -> Result<(), Box<Fault>> {
        let resolved = self.mbarrier_addresses(warp, &arrive.address, arrive.space, mask)?;
        self.require_initialized(warp, &resolved)?;
        if arrive.increments {
            self.expect_arrivals(&resolved)?;
        }
        let mut epochs = [0; LANES];
        warp.clock.start_copies(mask);
        for lane in lanes_of(mask) {
            epochs[lane] = warp.copies.end_epoch(lane);
            warp.copies.arrivals.push(CopyArrival {
                lane,
                at: resolved.offsets[lane],
                epoch: epochs[lane],
                pc: self.pc,
            });
        }
        self.check_copy_arrivals(warp, &resolved, &epochs)?;
        match self.grid.options.async_copies {
            AsyncCopies::Eager => self.arrive_for_copies(warp, |_| true),
            AsyncCopies::Lazy | AsyncCopies::Random { .. } => Ok(()),
        }
    }

    /// Adds one arrival per lane to what the current phase expects.
    fn expect_arrivals(&mut self, resolved: &ResolvedAddresses) -> Result<(), Box<Fault>> {
        for lane in lanes_of(resolved.lanes) {
            let state = self.mbarrier_at(lane, resolved.offsets[lane])?;
            if state.pending == MAX_COUNT {
                let problem = format!("expects more than {MAX_COUNT} arrivals");
                return Err(wrong(lane, resolved.offsets[lane], &problem));
            }
            state.pending += 1;
        }
        Ok(())
    }

    /// Checks and counts the accesses to the mbarriers when the arrivals are requested. They may
    /// happen at any time from then on.
    fn check_copy_arrivals(
        &mut self,
        warp: &Warp,
        resolved: &ResolvedAddresses,
        epochs: &[u32; LANES],
    ) -> Result<(), Box<Fault>> {
        let mut rest = resolved.lanes;
        while rest != 0 {
            let epoch = epochs[rest.trailing_zeros() as usize & 31];
            let same = lanes_of(rest).filter(|lane| epochs[*lane] == epoch);
            let alike = ResolvedAddresses {
                lanes: same.fold(0, |lanes, lane| lanes | 1 << lane),
                ..*resolved
            };
            let info = AccessInfo {
                strong: true,
                copy: Some(epoch),
                ..AccessInfo::new(8, true, true, self.pc)
            };
            self.count_access(&alike, info);
            self.check(warp, &alike, info, ALWAYS)?;
            rest &= !alike.lanes;
        }
        Ok(())
    }

    /// Lets the arrivals happen that `due` selects, if the copies before them are complete.
    pub(super) fn arrive_for_copies(
        &mut self,
        warp: &mut Warp,
        due: impl FnMut(&CopyArrival) -> bool,
    ) -> Result<(), Box<Fault>> {
        for arrival in warp.copies.take_arrivals(due) {
            let CopyArrival { lane, at, epoch, pc } = arrival;
            self.pc = pc;
            let state = self.mbarrier_at(lane, at)?;
            if state.pending == 0 {
                let problem = format!("gets the arrival of a copy, but in {}", state.describe());
                return Err(wrong(lane, at, &problem));
            }
            let clocks = &mut state.arriving.own_cta;
            clocks.add_arrived_copies(warp.index, lane, epoch);
            state.arrive(Arrival::of_one());
            self.progress();
        }
        Ok(())
    }

    /// Lets a random selection of arrivals happen, possibly none.
    pub(super) fn maybe_arrive_for_copies(&mut self, warp: &mut Warp) -> Result<(), Box<Fault>> {
        if warp.copies.arrivals.is_empty() {
            return Ok(());
        }
        let draws = self.copy_random.below(1 << 32);
        self.arrive_for_copies(warp, |arrival| draws >> arrival.lane & 1 == 1)
    }

    /// Completes the copies and arrivals at mbarriers that were tested and found incomplete. The
    /// error has the index of their warp.
    pub(super) fn complete_awaited_copies(
        &mut self,
        warps: &mut [Warp],
    ) -> Result<(), (usize, Box<Fault>)> {
        for at in std::mem::take(&mut self.awaited) {
            for warp in warps.iter_mut() {
                self.complete_copies_before(warp, at).map_err(|fault| (warp.index, fault))?;
            }
        }
        Ok(())
    }

    fn complete_copies_before(&mut self, warp: &mut Warp, at: u64) -> Result<(), Box<Fault>> {
        let mut epochs = [0; LANES];
        for arrival in warp.copies.arrivals.iter().filter(|it| it.at == at) {
            epochs[arrival.lane] = arrival.epoch;
        }
        let due = warp.copies.take(&epochs);
        self.perform_copies(warp, &due)?;
        self.arrive_for_copies(warp, |arrival| arrival.at == at)
    }
}
