//! One total order of the actions of all ranks.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Runs all ranks until none can go on: in rounds, and within a round in rank order.
///
/// `step(rank, woken)` runs the next action of a rank and returns true, or returns false when the
/// action cannot run yet. It pushes the ranks that may now go on. A blocked rank is tried again only
/// when it is woken, so the work is linear in the number of actions.
pub(crate) fn run_in_total_order(
    ranks: usize,
    mut step: impl FnMut(usize, &mut Vec<usize>) -> bool,
) {
    let mut queue: BinaryHeap<_> = (0..ranks).map(|rank| Reverse((0, rank))).collect();
    let mut queued = vec![true; ranks];
    let mut woken = Vec::new();
    while let Some(Reverse((round, rank))) = queue.pop() {
        queued[rank] = false;
        if !step(rank, &mut woken) {
            continue;
        }
        woken.push(rank);
        for peer in woken.drain(..) {
            // In this round, the turn of later ranks is still to come.
            let next = if peer > rank { round } else { round + 1 };
            if !queued[peer] {
                queue.push(Reverse((next, peer)));
                queued[peer] = true;
            }
        }
    }
}
