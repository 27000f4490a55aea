//! The state of a warp's asynchronous copies: which are pending, and what a wait completes.

use super::registers::LANES;

/// A copy by one lane from global to shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Copy {
    pub(crate) lane: usize,
    pub(crate) to: u64,
    pub(crate) from: u64,
    pub(crate) bytes: usize,
    /// Bytes read from the source; the rest of the destination is zeroed.
    pub(crate) source_bytes: usize,
    pub(crate) epoch: u32,
    /// The instruction that started it.
    pub(crate) pc: u32,
}

/// An arrival at an mbarrier that follows the completion of a lane's earlier copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CopyArrival {
    pub(crate) lane: usize,
    /// The mbarrier's offset in shared memory.
    pub(crate) at: u64,
    /// The last epoch of the copies that it follows.
    pub(crate) epoch: u32,
    /// The instruction that requested it.
    pub(crate) pc: u32,
}

/// The asynchronous copies of a warp. Each lane numbers its copies by epochs, counted from 1: a
/// commit ends an epoch, and so does an arrival, because it follows only the copies before it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Copies {
    /// Not performed yet, oldest first.
    pub(crate) pending: Vec<Copy>,
    /// Arrivals that have not happened yet, oldest first.
    pub(crate) arrivals: Vec<CopyArrival>,
    /// Ended epochs per lane.
    ended: [u32; LANES],
    /// The last epoch of each committed group, per lane, without groups that the lane waited for.
    groups: [Vec<u32>; LANES],
}

impl Copies {
    /// The epoch of the lane's next copy.
    pub(crate) fn open_epoch(&self, lane: usize) -> u32 {
        self.ended[lane] + 1
    }

    /// Ends the lane's open epoch, and returns it.
    pub(crate) fn end_epoch(&mut self, lane: usize) -> u32 {
        self.ended[lane] += 1;
        self.ended[lane]
    }

    pub(crate) fn commit(&mut self, lane: usize) {
        let epoch = self.end_epoch(lane);
        self.groups[lane].push(epoch);
    }

    /// The last epoch that must be complete when at most `left` groups may be pending. `None` means
    /// all copies, committed or not.
    pub(crate) fn wait(&mut self, lane: usize, left: Option<u32>) -> u32 {
        let Some(left) = left else {
            self.groups[lane].clear();
            return self.end_epoch(lane);
        };
        let groups = &mut self.groups[lane];
        let due = groups.len().saturating_sub(left as usize);
        groups.drain(..due).next_back().unwrap_or(0)
    }

    /// Removes and returns the pending copies of each lane up to epoch `epochs[lane]`.
    pub(crate) fn take(&mut self, epochs: &[u32; LANES]) -> Vec<Copy> {
        let due = |copy: &mut Copy| copy.epoch <= epochs[copy.lane];
        self.pending.extract_if(.., due).collect()
    }

    /// Removes and returns the arrivals that `due` selects, except those that follow a pending copy.
    pub(crate) fn take_arrivals(
        &mut self,
        mut due: impl FnMut(&CopyArrival) -> bool,
    ) -> Vec<CopyArrival> {
        let pending = &self.pending;
        let follows =
            |it: &CopyArrival, copy: &Copy| copy.lane == it.lane && copy.epoch <= it.epoch;
        let is_ready = |it: &CopyArrival| !pending.iter().any(|copy| follows(it, copy));
        let due = |it: &mut CopyArrival| due(it) && is_ready(it);
        self.arrivals.extract_if(.., due).collect()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.pending.is_empty() && self.arrivals.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_lane(lane: usize, epoch: u32) -> [u32; LANES] {
        let mut epochs = [0; LANES];
        epochs[lane] = epoch;
        epochs
    }

    fn start(copies: &mut Copies, lane: usize) {
        copies.pending.push(Copy {
            lane,
            to: 0,
            from: 0,
            bytes: 16,
            source_bytes: 16,
            epoch: copies.open_epoch(lane),
            pc: 0,
        });
    }

    #[test]
    fn groups_complete_in_order() {
        let mut copies = Copies::default();
        for _ in 1..=3 {
            start(&mut copies, 4);
            copies.commit(4);
        }
        let done = copies.wait(4, Some(1));
        assert_eq!(done, 2);
        assert_eq!(copies.take(&of_lane(4, done)).len(), 2);
        assert_eq!(copies.take(&of_lane(5, 9)).len(), 0);
        assert_eq!(copies.wait(4, Some(5)), 0);
        let all = copies.wait(4, None);
        assert_eq!(copies.take(&of_lane(4, all)).len(), 1);
    }

    /// A group that an arrival divides is still one group, and the arrival follows only its part.
    #[test]
    fn an_arrival_divides_a_group() {
        let mut copies = Copies::default();
        start(&mut copies, 0);
        let arrival = CopyArrival { lane: 0, at: 8, epoch: copies.end_epoch(0), pc: 0 };
        copies.arrivals.push(arrival);
        start(&mut copies, 0);
        copies.commit(0);
        start(&mut copies, 0);
        copies.commit(0);

        assert_eq!(copies.take_arrivals(|_| true), []);
        assert_eq!(copies.take(&of_lane(0, arrival.epoch)).len(), 1);
        assert_eq!(copies.take_arrivals(|it| it.at == 0), []);
        assert_eq!(copies.take_arrivals(|it| it.at == 8), [arrival]);
        let first_group = copies.wait(0, Some(1));
        assert_eq!(copies.take(&of_lane(0, first_group)).len(), 1);
        let second_group = copies.wait(0, Some(0));
        assert_eq!(copies.take(&of_lane(0, second_group)).len(), 1);
    }
}
