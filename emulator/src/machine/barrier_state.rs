//! The state of an mbarrier: arrivals, transfers and phases.

use super::vector_clock::VectorClock;

/// The state of a barrier.
#[derive(Clone, Debug)]
pub(crate) struct BarrierState {
    /// Arrivals per phase.
    pub(super) expected: u32,
    /// Arrivals that are missing in this phase.
    pub(super) pending: u32,
    /// Bytes that are still to be transferred in this phase.
    pub(super) transfers: i64,
    /// Completed phases.
    pub(super) phase: u64,
    /// The warp that initialized it, and that warp's clock then.
    pub(super) initialized: (usize, u32),
    /// Joined clocks of the arrivals of this phase, and of all completed phases.
    pub(super) arriving: VectorClock,
    pub(super) released: VectorClock,
}

/// An arrival of one lane.
#[derive(Clone, Copy)]
pub(super) struct Arrival {
    pub(super) count: u32,
    pub(super) bytes: u32,
    pub(super) drops: bool,
}

impl Arrival {
    pub(super) fn of_one() -> Arrival {
        Arrival { count: 1, bytes: 0, drops: false }
    }
}

impl BarrierState {
    pub(super) fn new(expected: u32, initialized: (usize, u32)) -> BarrierState {
        BarrierState {
            expected,
            pending: expected,
            transfers: 0,
            phase: 0,
            initialized,
            arriving: VectorClock::zero(),
            released: VectorClock::zero(),
        }
    }

    /// The phase and the pending count, as an arrival returns them.
    pub(super) fn token(&self) -> u64 {
        self.phase << 20 | u64::from(self.pending)
    }

    pub(super) fn arrive(&mut self, arrival: Arrival) {
        self.transfers += i64::from(arrival.bytes);
        self.pending -= arrival.count;
        if arrival.drops {
            self.expected -= arrival.count;
        }
        self.complete_if_due();
    }

    pub(super) fn complete_if_due(&mut self) {
        if self.pending == 0 && self.transfers == 0 {
            self.phase += 1;
            self.pending = self.expected;
            self.released.join(&self.arriving);
        }
    }

    pub(super) fn describe(&self) -> String {
        let BarrierState { expected, pending, transfers, phase, .. } = self;
        let bytes = match transfers {
            0 => String::new(),
            bytes => format!(" and {bytes} bytes"),
        };
        format!("phase {phase}: {pending} of {expected} arrivals{bytes} are missing")
    }
}

/// A test that found its phase incomplete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FailedTest {
    pub(crate) lanes: u32,
    /// The barrier's offset in shared memory.
    pub(crate) at: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrival(count: u32, drops: bool) -> Arrival {
        Arrival { count, bytes: 0, drops }
    }

    #[test]
    fn a_phase_completes_with_its_last_arrival() {
        for expected in 1..5 {
            let mut state = BarrierState::new(expected, (0, 1));
            for arrived in 0..10 * expected {
                assert_eq!(state.phase, u64::from(arrived / expected));
                assert_eq!(state.token() & 0xf_ffff, u64::from(expected - arrived % expected));
                state.arrive(arrival(1, false));
            }
        }
    }

    #[test]
    fn dropped_arrivals_are_not_expected_again() {
        let mut state = BarrierState::new(3, (0, 1));
        state.arrive(arrival(1, true));
        assert_eq!((state.phase, state.pending), (0, 2));
        state.arrive(arrival(2, false));
        assert_eq!((state.phase, state.pending), (1, 2));
    }

    #[test]
    fn a_phase_waits_for_its_bytes() {
        let mut state = BarrierState::new(1, (0, 1));
        state.arrive(Arrival { bytes: 16, ..arrival(1, false) });
        assert_eq!(state.phase, 0);
        assert!(state.describe().contains("16 bytes"), "{}", state.describe());
        state.transfers -= 16;
        state.complete_if_due();
        assert_eq!(state.phase, 1);
    }
}
