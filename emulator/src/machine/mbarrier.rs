//! Barriers in shared memory (PTX ISA, "mbarrier"): arrivals, transfers and phases.
//!
//! A barrier lives in a table of its CTA. Its eight bytes of shared memory take part in the checks, so
//! that an initialization that is not ordered before a use is a race.

use std::collections::BTreeMap;

use super::addresses::ResolvedAddresses;
use super::barrier_state::{Arrival, BarrierState, FailedTest};
use super::check::{ALWAYS, AccessInfo};
use super::cta::Cta;
use super::fault::Fault;
use super::registers::{LANES, Slot, lanes_of};
use super::step::Flow;
use super::warp::Warp;
use super::windows::MemoryId;
use crate::options::AsyncCopies;
use crate::program::op::{Address, Mbarrier, MbarrierAction, Phase, Space};
use crate::report::FindingKind;

/// The largest count of arrivals, and of bytes in flight.
pub(super) const MAX_COUNT: u32 = (1 << 20) - 1;

impl Cta<'_> {
    pub(super) fn mbarrier(
        &mut self,
        warp: &mut Warp,
        barrier: &Mbarrier,
        mask: u32,
    ) -> Result<Flow, Box<Fault>> {
        let resolved = self.mbarrier_addresses(warp, &barrier.address, barrier.space, mask)?;
        let is_lifetime =
            matches!(barrier.action, MbarrierAction::Init { .. } | MbarrierAction::Invalidate);
        let is_test = matches!(barrier.action, MbarrierAction::Test { .. });
        if !matches!(barrier.action, MbarrierAction::Init { .. }) {
            self.require_initialized(warp, &resolved)?;
        }
        let info = AccessInfo {
            strong: !is_lifetime,
            ..AccessInfo::new(8, !is_lifetime, !is_test, self.pc)
        };
        self.count_access(&resolved, info);
        self.check(warp, &resolved, info, ALWAYS)?;
        if !is_test {
            self.progress();
        }
        match barrier.action {
            MbarrierAction::Init { count } => self.init(warp, count, &resolved)?,
            MbarrierAction::Invalidate => self.invalidate(&resolved)?,
            MbarrierAction::Transfer { bytes, expected } => {
                self.transfer(warp, (bytes, expected), &resolved)?;
            }
            MbarrierAction::Arrive { .. } => self.arrive(warp, &barrier.action, &resolved)?,
            MbarrierAction::Test { to, phase, suspends, acquires } => {
                let complete = self.test(warp, phase, acquires, &resolved)?;
                warp.registers.set_predicate(to, mask, complete);
                if suspends && complete != mask {
                    return Ok(Flow::Yield);
                }
            }
        }
        Ok(Flow::Next)
    }

    pub(super) fn mbarrier_addresses(
        &mut self,
        warp: &Warp,
        address: &Address,
        space: Space,
        mask: u32,
    ) -> Result<ResolvedAddresses, Box<Fault>> {
        let addresses = self.addresses(warp, address, mask)?;
        let resolved = self.resolve(warp, space, &addresses, mask, 8)?;
        if resolved.memory != MemoryId::Shared || resolved.lanes != mask {
            let message = "an mbarrier must be in shared memory";
            return Err(Fault::of_all(FindingKind::OutOfBounds, message));
        }
        Ok(resolved)
    }

    /// Fails unless each lane's barrier is initialized, in the happens-before order.
    pub(super) fn require_initialized(
        &self,
        warp: &Warp,
        resolved: &ResolvedAddresses,
    ) -> Result<(), Box<Fault>> {
        for lane in lanes_of(resolved.lanes) {
            let Some(state) = self.mbarriers.get(&resolved.offsets[lane]) else {
                let problem = "is used without mbarrier.init, or after mbarrier.inval";
                return Err(wrong(lane, resolved.offsets[lane], problem));
            };
            let (by, clock) = state.initialized;
            let is_ordered = by == warp.index || warp.clock.seen.includes_warp(by, clock);
            if !is_ordered && self.grid.options.sanitize {
                let problem = format!(
                    "is used unordered with its initialization by warp {by}; add a barrier between \
                     them"
                );
                return Err(Box::new(Fault {
                    kind: FindingKind::SharedRace,
                    ..*wrong(lane, resolved.offsets[lane], &problem)
                }));
            }
        }
        Ok(())
    }

    fn init(
        &mut self,
        warp: &Warp,
        count: Slot,
        resolved: &ResolvedAddresses,
    ) -> Result<(), Box<Fault>> {
        let counts = self.counts(warp, Some(count), resolved, "count")?;
        for lane in lanes_of(resolved.lanes) {
            let state = BarrierState::new(counts[lane], (warp.index, warp.clock.now));
            if let Some(old) = self.mbarriers.insert(resolved.offsets[lane], state) {
                let problem = format!(
                    "is initialized again without mbarrier.inval; it is in {}",
                    old.describe()
                );
                return Err(wrong(lane, resolved.offsets[lane], &problem));
            }
        }
        Ok(())
    }

    fn invalidate(&mut self, resolved: &ResolvedAddresses) -> Result<(), Box<Fault>> {
        for lane in lanes_of(resolved.lanes) {
            let at = resolved.offsets[lane];
            if self.mbarriers.remove(&at).is_none() {
                let problem = "is invalidated by several lanes";
                return Err(wrong(lane, resolved.offsets[lane], problem));
            }
            self.shared.initialized.unset(at as usize, 8);
        }
        Ok(())
    }

    fn transfer(
        &mut self,
        warp: &Warp,
        (bytes, expected): (Slot, bool),
        resolved: &ResolvedAddresses,
    ) -> Result<(), Box<Fault>> {
        self.require_defined(warp, bytes, resolved.lanes)?;
        let bytes = *warp.registers.narrow(bytes);
        for lane in lanes_of(resolved.lanes) {
            let change = match expected {
                true => i64::from(bytes[lane]),
                false => -i64::from(bytes[lane]),
            };
            let state = self.mbarrier_at(lane, resolved.offsets[lane])?;
            state.transfers += change;
            let transfers = state.transfers;
            if transfers.unsigned_abs() > u64::from(MAX_COUNT) {
                let problem =
                    format!("has {transfers} bytes in flight; the maximum is {MAX_COUNT}");
                return Err(wrong(lane, resolved.offsets[lane], &problem));
            }
            state.complete_if_due();
        }
        Ok(())
    }

    fn arrive(
        &mut self,
        warp: &mut Warp,
        action: &MbarrierAction,
        resolved: &ResolvedAddresses,
    ) -> Result<(), Box<Fault>> {
        let MbarrierAction::Arrive { to, count, bytes, drops, completes, releases } = *action
        else {
            return Ok(());
        };
        let counts = self.counts(warp, count, resolved, "count")?;
        self.check_arrivals(&counts, completes, resolved)?;
        let bytes = match bytes {
            None => [0; LANES],
            Some(slot) => {
                self.require_defined(warp, slot, resolved.lanes)?;
                *warp.registers.narrow(slot)
            }
        };
        let published = releases.then(|| warp.clock.release());
        let mut tokens = [0; LANES];
        for lane in lanes_of(resolved.lanes) {
            let state = self.mbarrier_at(lane, resolved.offsets[lane])?;
            tokens[lane] = state.token();
            if let Some(published) = &published {
                state.arriving.join(published);
            }
            state.arrive(Arrival { count: counts[lane], bytes: bytes[lane], drops });
        }
        if let Some(to) = to {
            warp.registers.set_wide(to, resolved.lanes, &tokens);
        }
        Ok(())
    }

    /// Fails if the lanes arrive more often than the phase expects.
    fn check_arrivals(
        &mut self,
        counts: &[u32; LANES],
        completes: bool,
        resolved: &ResolvedAddresses,
    ) -> Result<(), Box<Fault>> {
        let mut totals: BTreeMap<u64, u64> = BTreeMap::new();
        for lane in lanes_of(resolved.lanes) {
            let total = totals.entry(resolved.offsets[lane]).or_default();
            *total += u64::from(counts[lane]);
            let total = *total;
            let state = self.mbarrier_at(lane, resolved.offsets[lane])?;
            let pending = u64::from(state.pending);
            if total > pending {
                let problem = format!(
                    "gets {total} arrivals from one instruction, but in {}",
                    state.describe()
                );
                return Err(wrong(lane, resolved.offsets[lane], &problem));
            }
            if total == pending && !completes {
                let problem = format!(
                    "completes its phase by an arrival with .noComplete; it is in {}",
                    state.describe()
                );
                return Err(wrong(lane, resolved.offsets[lane], &problem));
            }
        }
        Ok(())
    }

    /// The lanes whose phase is complete.
    fn test(
        &mut self,
        warp: &mut Warp,
        phase: Phase,
        acquires: bool,
        resolved: &ResolvedAddresses,
    ) -> Result<u32, Box<Fault>> {
        let slot = match phase {
            Phase::State(slot) | Phase::Parity(slot) => slot,
        };
        self.require_defined(warp, slot, resolved.lanes)?;
        let mut complete = 0;
        for lane in lanes_of(resolved.lanes) {
            let state = self.mbarrier_at(lane, resolved.offsets[lane])?;
            let is_complete = match phase {
                Phase::State(slot) => {
                    let tested = warp.registers.wide(slot)[lane] >> 20;
                    if tested != state.phase && tested + 1 != state.phase {
                        let problem = format!(
                            "is tested for phase {tested}, but it is in {}; only the current and \
                             the preceding phase can be tested",
                            state.describe()
                        );
                        return Err(wrong(lane, resolved.offsets[lane], &problem));
                    }
                    tested < state.phase
                }
                Phase::Parity(slot) => {
                    let parity = warp.registers.narrow(slot)[lane];
                    if parity > 1 {
                        let problem = format!("is tested for the parity {parity}; it is 0 or 1");
                        return Err(wrong(lane, resolved.offsets[lane], &problem));
                    }
                    state.phase % 2 != u64::from(parity)
                }
            };
            if is_complete && acquires {
                warp.clock.seen.join(&state.released);
            }
            complete |= u32::from(is_complete) << lane;
        }
        let failed = resolved.lanes & !complete;
        if self.grid.kernel.copies && self.grid.options.async_copies != AsyncCopies::Eager {
            self.awaited.extend(lanes_of(failed).map(|lane| resolved.offsets[lane]));
        }
        warp.failed_test = (failed != 0).then(|| FailedTest {
            lanes: failed,
            at: resolved.offsets[failed.trailing_zeros() as usize & 31],
        });
        Ok(complete)
    }

    /// A count per lane: a register, or one.
    fn counts(
        &self,
        warp: &Warp,
        slot: Option<Slot>,
        resolved: &ResolvedAddresses,
        what: &str,
    ) -> Result<[u32; LANES], Box<Fault>> {
        let Some(slot) = slot else {
            return Ok([1; LANES]);
        };
        self.require_defined(warp, slot, resolved.lanes)?;
        let counts = *warp.registers.narrow(slot);
        let is_wrong = |lane: &usize| !(1..=MAX_COUNT).contains(&counts[*lane]);
        match lanes_of(resolved.lanes).find(is_wrong) {
            None => Ok(counts),
            Some(lane) => {
                let count = counts[lane];
                let problem = format!("has a {what} of {count}; it must be 1 to {MAX_COUNT}");
                Err(wrong(lane, resolved.offsets[lane], &problem))
            }
        }
    }

    pub(super) fn mbarrier_at(
        &mut self,
        lane: usize,
        at: u64,
    ) -> Result<&mut BarrierState, Box<Fault>> {
        let found = self.mbarriers.get_mut(&at);
        found.ok_or_else(|| wrong(lane, at, "is used without mbarrier.init"))
    }

    /// What the lanes of a subwarp that test a barrier in a loop wait for.
    pub(super) fn awaited_mbarrier(&self, warp: &Warp, lanes: u32) -> Option<String> {
        let failed = warp.failed_test.filter(|it| it.lanes & lanes != 0)?;
        let state = self.mbarriers.get(&failed.at)?;
        let FailedTest { at, .. } = failed;
        Some(format!("waits for the mbarrier at byte {at} of shared memory, {}", state.describe()))
    }
}

pub(super) fn wrong(lane: usize, at: u64, problem: &str) -> Box<Fault> {
    let message = format!("the mbarrier at byte {at} of shared memory {problem}");
    Fault::new(FindingKind::InvalidArgument, lane, message)
}
