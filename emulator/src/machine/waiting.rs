//! When a CTA counts as waiting: it runs, but in a circle. Its warps have come to a state in which
//! they were before, and nothing that anybody else could see has happened in between.
//!
//! A loop that only computes, however long, is no circle: some register differs each time.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use super::warp::{State, Warp};

/// Instructions without a visible effect after which states are compared at all.
const IDLE: u64 = 10_000;

/// The states that a CTA comes through while nothing visible happens.
#[derive(Debug, Default)]
pub(crate) struct Circle {
    /// What states are compared with, and turns since the CTA was in it.
    state: Option<u64>,
    turns: u64,
    /// Turns until another state is taken: twice as many each time, so that circles of any length
    /// are found (Brent 1980). Once the circle is closed, its length.
    limit: u64,
    closed: bool,
}

impl Circle {
    /// Looks at the warps at the end of a turn, `idle` instructions after the last visible effect.
    /// No circle is shorter than `least` turns, in which each warp has its turn.
    pub(crate) fn look(&mut self, warps: &[Warp], idle: u64, least: u64) {
        if idle < IDLE {
            return;
        }
        let state = state_of(warps);
        self.turns += 1;
        if self.state == Some(state) && (self.closed || self.turns >= least) {
            self.closed = true;
            self.limit = self.limit.min(self.turns.max(least));
            self.turns = 0;
        } else if self.state.is_none() || self.turns >= self.limit {
            *self = Circle {
                state: Some(state),
                turns: 0,
                limit: (2 * self.limit).max(least),
                closed: false,
            };
        }
    }

    /// Whether the CTA has come back to where it was.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }
}

fn state_of(warps: &[Warp]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for warp in warps {
        warp.registers.hash(&mut hasher);
        warp.copies.pending.len().hash(&mut hasher);
        for fragment in &warp.fragments {
            (fragment.pc, fragment.mask, &fragment.calls).hash(&mut hasher);
            // Whether it has just yielded or goes on anyway is the schedule's affair.
            matches!(fragment.state, State::Ready | State::Yielded).hash(&mut hasher);
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

    /// Whether the circle is closed after each turn, given what a register holds at its end.
    fn closed(values: impl IntoIterator<Item = u32>) -> Vec<bool> {
        let (mut circle, mut warp) = (Circle::default(), warp());
        let look = |value| {
            warp.registers.set_narrow(0, ALL, &[value; LANES]);
            circle.look(std::slice::from_ref(&warp), IDLE, 1);
            circle.is_closed()
        };
        values.into_iter().map(look).collect()
    }

    #[test]
    fn a_circle_of_any_length_closes_and_stays_so() {
        for length in [1u32, 2, 7, 100] {
            let closed = closed((0..1000).map(|turn| turn % length));
            let first = closed.iter().position(|closed| *closed).unwrap();
            assert!(closed[first..].iter().all(|closed| *closed), "{length}");
        }
    }

    #[test]
    fn a_count_is_no_circle_and_a_circle_can_be_left() {
        assert_eq!(closed(0..1000), [false; 1000]);
        let left = closed((0..50).map(|turn| turn % 3).chain(10..100));
        assert!(left[49] && left[60..].iter().all(|closed| !closed));
    }
}
