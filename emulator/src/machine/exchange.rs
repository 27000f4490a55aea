//! What lanes of a warp tell each other: shuffles, votes, matches, reductions.

use super::cta::Cta;
use super::registers::{LANES, Slot, lanes_of};
use super::step::{Flow, truth};
use super::warp::Warp;
use crate::program::op::{Shuffle, ShuffleMode, Vote, VoteKind};
use crate::report::{Fault, Kind};

impl Cta<'_> {
    /// Waits for the lanes that an instruction names. `None` when all are there.
    pub(super) fn gather_lanes(
        &self,
        warp: &Warp,
        members: Slot,
        mask: u32,
    ) -> Result<Option<Flow>, Box<Fault>> {
        let members = self.uniform(warp, members, mask, "the mask of lanes")? & warp.lanes;
        let strangers = mask & !members;
        if strangers != 0 {
            let lane = strangers.trailing_zeros() as usize;
            let message = format!("the lane is not in the mask {members:#010x} that it gives");
            return Err(Fault::new(Kind::DivergentInstruction, lane, message));
        }
        // Lanes that have ended need not come.
        let members = members & !warp.exited;
        Ok((mask != members).then_some(Flow::Meet))
    }

    /// Waits for the whole warp, as an aligned instruction does.
    pub(super) fn gather_warp(&self, warp: &Warp, mask: u32) -> Result<Option<Flow>, Box<Fault>> {
        let gone = warp.lanes & warp.exited;
        if gone != 0 {
            let message =
                format!("all of the warp must execute this, but lanes {gone:#010x} have ended");
            return Err(Fault::of_all(Kind::DivergentInstruction, message));
        }
        Ok((mask != warp.lanes).then_some(Flow::Meet))
    }

    pub(super) fn shuffle(
        &mut self,
        warp: &mut Warp,
        shuffle: &Shuffle,
        mask: u32,
    ) -> Result<Flow, Box<Fault>> {
        if let Some(flow) = self.gather_lanes(warp, shuffle.members, mask)? {
            return Ok(flow);
        }
        for slot in [shuffle.from, shuffle.lane, shuffle.clamp] {
            self.need(warp, slot, mask)?;
        }
        let (b, c) = (
            warp.registers.narrow(shuffle.lane),
            warp.registers.narrow(shuffle.clamp),
        );
        let from = *warp.registers.narrow(shuffle.from);
        let mut value = [0; LANES];
        let mut valid = 0;
        for lane in 0..LANES {
            let (source, inside) = source_lane(shuffle.mode, lane as u32, b[lane], c[lane]);
            value[lane] = from[source as usize];
            valid |= u32::from(inside) << lane;
            let asks_in_vain = mask >> lane & 1 != 0 && inside && mask >> source & 1 == 0;
            if asks_in_vain && self.grid.options.sanitize {
                let message = format!("the value of lane {source}, which takes no part");
                return Err(Fault::new(Kind::InactiveLane, lane, message));
            }
        }
        warp.registers.set_narrow(shuffle.to, mask, &value);
        if let Some(predicate) = shuffle.valid {
            warp.registers.set_predicate(predicate, mask, valid);
        }
        Ok(Flow::Next)
    }

    pub(super) fn vote(
        &mut self,
        warp: &mut Warp,
        vote: &Vote,
        mask: u32,
    ) -> Result<Flow, Box<Fault>> {
        if let Some(flow) = self.gather_lanes(warp, vote.members, mask)? {
            return Ok(flow);
        }
        if let Some(index) = vote.from.index {
            self.need_predicate(warp, index, mask)?;
        }
        let votes = truth(warp, vote.from) & mask;
        let outcome = match vote.kind {
            VoteKind::All => votes == mask,
            VoteKind::Any => votes != 0,
            VoteKind::Uniform => votes == mask || votes == 0,
            VoteKind::Ballot => {
                warp.registers.set_narrow(vote.to, mask, &[votes; LANES]);
                return Ok(Flow::Next);
            }
        };
        let value = if outcome { mask } else { 0 };
        warp.registers.set_predicate(vote.to, mask, value);
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
        if let Some(flow) = self.gather_lanes(warp, members, mask)? {
            return Ok(flow);
        }
        self.need(warp, from, mask)?;
        let value: [u64; LANES] = match wide {
            true => *warp.registers.wide(from),
            false => warp.registers.narrow(from).map(u64::from),
        };
        let equal = |lane: usize| {
            let others = lanes_of(mask).filter(|other| value[*other] == value[lane]);
            others.fold(0u32, |lanes, other| lanes | 1 << other)
        };
        let matches: [u32; LANES] = std::array::from_fn(equal);
        let first = mask.trailing_zeros() as usize & 31;
        match all {
            None => warp.registers.set_narrow(to, mask, &matches),
            Some(predicate) => {
                let agree = matches[first] == mask;
                let value = if agree { mask } else { 0 };
                warp.registers.set_narrow(to, mask, &[value; LANES]);
                if let Some(predicate) = predicate {
                    warp.registers.set_predicate(predicate, mask, value);
                }
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
        if let Some(flow) = self.gather_lanes(warp, members, mask)? {
            return Ok(flow);
        }
        self.need(warp, from, mask)?;
        let value = *warp.registers.narrow(from);
        let total = lanes_of(mask).map(|lane| value[lane]).reduce(combine);
        let total = total.unwrap_or_default();
        warp.registers.set_narrow(to, mask, &[total; LANES]);
        Ok(Flow::Next)
    }
}

/// PTX ISA 9.7.9.6: the lane that a lane reads from, and whether that lies within its segment.
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
        // Segments of eight lanes: the upper bits of c say which lane bits stay.
        let c = 0b11000 << 8 | 0b00111;
        assert_eq!(source_lane(Index, 13, 2, c), (10, true));
        assert_eq!(source_lane(Down, 13, 4, c), (13, false));
    }
}
