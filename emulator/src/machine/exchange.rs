//! Data exchange between the lanes of a warp: shuffle, vote, match and redux.

use super::cta::Cta;
use super::fault::Fault;
use super::lanes::{each_bit, each_lane, widened};
use super::registers::{LANES, Registers, Slot, lanes_of};
use super::step::{Flow, truth};
use super::undefined::{Undefined, low_bits};
use super::warp::Warp;
use crate::program::op::{Shuffle, ShuffleMode, Vote, VoteKind};
use crate::report::FindingKind;
use crate::simd::vectorized;

impl Cta<'_> {
    /// Groups of lanes that execute an instruction together: lanes with the same member mask.
    /// `None` while members of some mask have not arrived.
    pub(super) fn member_groups(
        &self,
        warp: &Warp,
        members: Slot,
        mask: u32,
    ) -> Result<Option<Vec<u32>>, Box<Fault>> {
        self.require_defined(warp, members, mask)?;
        let named = warp.registers.narrow(members);
        let (mut groups, mut rest) = (Vec::with_capacity(1), mask);
        while rest != 0 {
            let first = rest.trailing_zeros() as usize & 31;
            // Exited lanes need not arrive.
            let all = named[first];
            let members = all & warp.live();
            let same = vectorized(
                #[inline(always)]
                move || each_bit(|lane| named[lane] == all),
            );
            let group = rest & same;
            let non_members = group & !members;
            if non_members != 0 {
                let lane = non_members.trailing_zeros() as usize;
                let message =
                    format!("the executing lane is not in its own member mask {all:#010x}");
                return Err(Fault::new(FindingKind::DivergentInstruction, lane, message));
            }
            if members != group {
                return Ok(None);
            }
            groups.push(group);
            rest &= !group;
        }
        Ok(Some(groups))
    }

    /// Requires all lanes of the warp, as an `.aligned` instruction does.
    pub(super) fn require_full_warp(
        &self,
        warp: &Warp,
        mask: u32,
    ) -> Result<Option<Flow>, Box<Fault>> {
        let exited = warp.lanes & warp.exited;
        if exited != 0 {
            let message = format!(
                "all lanes of the warp must execute this instruction, but lanes {exited:#010x} \
                 have exited"
            );
            return Err(Fault::of_all(FindingKind::DivergentInstruction, message));
        }
        Ok((mask != warp.lanes).then_some(Flow::WaitForLanes))
    }

    pub(super) fn shuffle(
        &mut self,
        warp: &mut Warp,
        shuffle: &Shuffle,
        mask: u32,
    ) -> Result<Flow, Box<Fault>> {
        let Some(groups) = self.member_groups(warp, shuffle.members, mask)? else {
            return Ok(Flow::WaitForLanes);
        };
        for group in groups {
            self.shuffle_group(warp, shuffle, group)?;
        }
        Ok(Flow::Next)
    }

    fn shuffle_group(
        &mut self,
        warp: &mut Warp,
        shuffle: &Shuffle,
        mask: u32,
    ) -> Result<(), Box<Fault>> {
        for slot in [shuffle.lane, shuffle.clamp] {
            self.require_defined(warp, slot, mask)?;
        }
        let undefined = match warp.registers.missing(&[shuffle.from], mask) {
            0 => None,
            _ => Some(shuffled_undefined(&warp.registers, shuffle)),
        };
        let (b, c) = (warp.registers.narrow(shuffle.lane), warp.registers.narrow(shuffle.clamp));
        let from = warp.registers.narrow(shuffle.from);
        let (value, valid, inactive) = vectorized(
            #[inline(always)]
            || {
                let (mut value, mut valid, mut inactive) = ([0; LANES], 0, 0);
                for lane in 0..LANES {
                    let (source, inside) = source_lane(shuffle.mode, lane as u32, b[lane], c[lane]);
                    value[lane] = from[source as usize & 31];
                    valid |= u32::from(inside) << lane;
                    inactive |= u32::from(inside && mask >> source & 1 == 0) << lane;
                }
                (value, valid, inactive & mask)
            },
        );
        if inactive != 0 && self.grid.options.sanitize {
            let lane = inactive.trailing_zeros() as usize & 31;
            let (source, _) = source_lane(shuffle.mode, lane as u32, b[lane], c[lane]);
            let message = format!("the lane reads from lane {source}, which does not take part");
            return Err(Fault::new(FindingKind::InactiveLane, lane, message));
        }
        warp.registers.set_narrow(shuffle.to, mask, &value);
        if let Some(undefined) = undefined {
            warp.registers.set_undefined(shuffle.to, mask, &undefined);
        }
        if let Some(predicate) = shuffle.valid {
            warp.registers.set_predicate(predicate, mask, valid);
        }
        Ok(())
    }

    pub(super) fn vote(
        &mut self,
        warp: &mut Warp,
        vote: &Vote,
        mask: u32,
    ) -> Result<Flow, Box<Fault>> {
        let Some(groups) = self.member_groups(warp, vote.members, mask)? else {
            return Ok(Flow::WaitForLanes);
        };
        if let Some(index) = vote.from.index {
            self.require_predicate_defined(warp, index, mask)?;
        }
        let truth = truth(warp, vote.from);
        for group in groups {
            let votes = truth & group;
            let outcome = match vote.kind {
                VoteKind::All => votes == group,
                VoteKind::Any => votes != 0,
                VoteKind::Uniform => votes == group || votes == 0,
                VoteKind::Ballot => {
                    warp.registers.set_narrow(vote.to, group, &[votes; LANES]);
                    continue;
                }
            };
            let value = if outcome { group } else { 0 };
            warp.registers.set_predicate(vote.to, group, value);
        }
        Ok(Flow::Next)
    }

    pub(super) fn match_values(
        &mut self,
        warp: &mut Warp,
        (to, all): (Slot, Option<Option<Slot>>),
        (from, wide): (Slot, bool),
        members: Slot,
        mask: u32,
    ) -> Result<Flow, Box<Fault>> {
        let Some(groups) = self.member_groups(warp, members, mask)? else {
            return Ok(Flow::WaitForLanes);
        };
        self.require_defined(warp, from, mask)?;
        let value: [u64; LANES] = match wide {
            true => *warp.registers.wide(from),
            false => widened(warp.registers.narrow(from)),
        };
        for group in groups {
            let equal = |lane: usize| {
                let others = lanes_of(group).filter(|other| value[*other] == value[lane]);
                others.fold(0u32, |lanes, other| lanes | 1 << other)
            };
            let matches = each_lane(equal);
            let Some(predicate) = all else {
                warp.registers.set_narrow(to, group, &matches);
                continue;
            };
            let first = group.trailing_zeros() as usize & 31;
            let agreed = if matches[first] == group { group } else { 0 };
            warp.registers.set_narrow(to, group, &[agreed; LANES]);
            if let Some(predicate) = predicate {
                warp.registers.set_predicate(predicate, group, agreed);
            }
        }
        Ok(Flow::Next)
    }

    pub(super) fn reduce(
        &mut self,
        warp: &mut Warp,
        [to, from, members]: [Slot; 3],
        combine: fn(u32, u32) -> u32,
        mask: u32,
    ) -> Result<Flow, Box<Fault>> {
        let Some(groups) = self.member_groups(warp, members, mask)? else {
            return Ok(Flow::WaitForLanes);
        };
        let value = *warp.registers.narrow(from);
        let missing = warp.registers.missing(&[from], mask);
        let sources = warp.registers.undefined(from, 32);
        for group in groups {
            let total = lanes_of(group).map(|lane| value[lane]).reduce(combine);
            let total = total.unwrap_or_default();
            warp.registers.set_narrow(to, group, &[total; LANES]);
            if missing & group != 0 {
                let origin = sources.origins[(missing & group).trailing_zeros() as usize & 31];
                let all = Undefined { bits: [low_bits(32); LANES], origins: [origin; LANES] };
                warp.registers.set_undefined(to, group, &all);
            }
        }
        Ok(Flow::Next)
    }
}

/// The undefined bits that each lane receives.
#[inline(never)]
fn shuffled_undefined(registers: &Registers, shuffle: &Shuffle) -> Undefined {
    let [b, c] = [shuffle.lane, shuffle.clamp].map(|slot| registers.narrow(slot));
    let mut undefined = Undefined::default();
    for lane in 0..LANES {
        let (source, _) = source_lane(shuffle.mode, lane as u32, b[lane], c[lane]);
        let (bits, origin) = registers.undefined_lane(shuffle.from, source as usize & 31);
        undefined.add(lane, bits, origin);
    }
    undefined
}

/// PTX ISA 9.7.9.6: the lane that a lane reads from, and whether that is within its segment.
fn source_lane(mode: ShuffleMode, lane: u32, b: u32, c: u32) -> (u32, bool) {
    let (b, clamp, segment) = (b & 31, c & 31, c >> 8 & 31);
    let last = (lane & segment) | (clamp & !segment);
    let first = lane & segment;
    let (source, inside) = match mode {
        ShuffleMode::Up => {
            let source = lane.wrapping_sub(b);
            (source, source as i32 >= last as i32)
        }
        ShuffleMode::Down => (lane + b, lane + b <= last),
        ShuffleMode::Butterfly => (lane ^ b, lane ^ b <= last),
        ShuffleMode::Index => {
            let source = first | (b & !segment);
            (source, source <= last)
        }
    };
    match inside {
        true => (source & 31, true),
        false => (lane, false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shuffles_stay_within_their_segment() {
        use ShuffleMode::*;
        assert_eq!(source_lane(Down, 3, 4, 31), (7, true));
        assert_eq!(source_lane(Down, 30, 4, 31), (30, false));
        assert_eq!(source_lane(Up, 3, 4, 0), (3, false));
        assert_eq!(source_lane(Up, 9, 4, 0), (5, true));
        assert_eq!(source_lane(Butterfly, 5, 16, 31), (21, true));
        // Segments of eight lanes: the upper bits of c select the lane bits that stay.
        let c = 0b11000 << 8 | 0b00111;
        assert_eq!(source_lane(Index, 13, 2, c), (10, true));
        assert_eq!(source_lane(Down, 13, 4, c), (13, false));
    }
}
