//! Livelock detection: a CTA counts as waiting if the state of its warps repeats without any
//! visible effect in between.
//!
//! A loop that computes never repeats a state, however long it runs: some register differs.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use super::warp::{State, Warp};

/// States are compared after this many instructions without a visible effect.
const IDLE: u64 = 10_000;

/// Detects a cycle in the states of a CTA while nothing visible happens.
#[derive(Debug, Default)]
pub(crate) struct CycleDetector {
    /// The reference state, and the slices since the CTA was in it.
    state: Option<u64>,
    slices: u64,
    /// Slices until the reference is replaced. It doubles each time, so that cycles of any length
    /// are found (Brent 1980). Once a cycle is found, this is its length.
    limit: u64,
    found: bool,
}

impl CycleDetector {
    /// Observes the warps at the end of a slice, `idle` instructions after the last visible effect.
    /// A cycle has at least `least` slices, so that each warp has run.
    pub(crate) fn observe(&mut self, warps: &[Warp], idle: u64, least: u64) {
        if idle < IDLE {
            return;
        }
        let state = hash_state(warps);
        self.slices += 1;
        if self.state == Some(state) && (self.found || self.slices >= least) {
            self.found = true;
            self.limit = self.limit.min(self.slices.max(least));
            self.slices = 0;
        } else if self.state.is_none() || self.slices >= self.limit {
            *self = CycleDetector {
                state: Some(state),
                slices: 0,
                limit: (2 * self.limit).max(least),
                found: false,
            };
        }
    }

    /// Whether the state repeats.
    pub(crate) fn is_cycling(&self) -> bool {
        self.found
    }
}

fn hash_state(warps: &[Warp]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for warp in warps {
        warp.registers.hash(&mut hasher);
        let copies = &warp.copies;
        (copies.pending.len(), copies.arrivals.len()).hash(&mut hasher);
        warp.products.pending.len().hash(&mut hasher);
        for subwarp in &warp.subwarps {
            (subwarp.pc, subwarp.mask, &subwarp.calls).hash(&mut hasher);
            // Ready and Yielded differ only by the schedule.
            matches!(subwarp.state, State::Ready | State::Yielded).hash(&mut hasher);
        }
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::registers::{ALL, LANES, Registers};

    fn warp() -> Warp {
        let mut warp = Warp::new(0, 0, ALL);
        warp.registers = Registers::new(1, 0);
        warp
    }

    /// Whether a cycle is detected after each slice, for the register values at its end.
    fn found(values: impl IntoIterator<Item = u32>) -> Vec<bool> {
        let (mut cycle, mut warp) = (CycleDetector::default(), warp());
        let observe = |value| {
            warp.registers.set_narrow(0, ALL, &[value; LANES]);
            cycle.observe(std::slice::from_ref(&warp), IDLE, 1);
            cycle.is_cycling()
        };
        values.into_iter().map(observe).collect()
    }

    #[test]
    fn a_cycle_of_any_length_is_found_and_stays_found() {
        for length in [1u32, 2, 7, 100] {
            let found = found((0..1000).map(|slice| slice % length));
            let first = found.iter().position(|found| *found).unwrap();
            assert!(found[first..].iter().all(|found| *found), "{length}");
        }
    }

    #[test]
    fn a_counter_is_not_a_cycle_and_a_cycle_can_end() {
        assert_eq!(found(0..1000), [false; 1000]);
        let left = found((0..50).map(|slice| slice % 3).chain(10..100));
        assert!(left[49] && left[60..].iter().all(|found| !found));
    }
}
