//! The order of top-k selection: descending, NaN before all numbers, ties by index.

use crate::{Element, Wide};

/// The most winners that one pass over the scores finds.
const WINNERS_PER_PASS: usize = 64;

/// Whether `a` comes before `b` regardless of their indices.
#[inline(always)]
pub(crate) fn ranks_before<W: Wide>(a: W, b: W) -> bool {
    a > b || (is_nan(a) && !is_nan(b))
}

#[inline(always)]
pub(crate) fn is_nan<W: Wide>(x: W) -> bool {
    x.partial_cmp(&x).is_none()
}

/// Fills `winners` with the indices of the largest scores in `0..count`, in order. There must be at
/// least `winners.len()` scores.
///
/// A pass keeps a short sorted list, into which few scores are inserted. More winners take more
/// passes but no more memory.
#[inline(always)]
pub(crate) fn top_k_indices<W: Wide, I: Element>(
    count: usize,
    score: impl Fn(usize) -> W,
    winners: &mut [I],
) {
    let mut last = None;
    for winners in winners.chunks_mut(WINNERS_PER_PASS) {
        last = Some(best_after(last, count, &score, winners));
    }
}

/// Fills `winners` with the indices of the best scores that rank after `bound`, in order. Returns
/// the last of these scores and its index.
#[inline(always)]
fn best_after<W: Wide, I: Element>(
    bound: Option<(W, usize)>,
    count: usize,
    score: &impl Fn(usize) -> W,
    winners: &mut [I],
) -> (W, usize) {
    let mut held = [W::ZERO; WINNERS_PER_PASS];
    let mut found = 0;
    for index in 0..count {
        let value = score(index);
        let beaten = found == winners.len() && !ranks_before(value, held[found - 1]);
        if beaten || bound.is_some_and(|bound| !ranks_after((value, index), bound)) {
            continue;
        }

        found = (found + 1).min(winners.len());
        let mut at = found - 1;
        while at > 0 && ranks_before(value, held[at - 1]) {
            held[at] = held[at - 1];
            winners[at] = winners[at - 1];
            at -= 1;
        }
        held[at] = value;
        winners[at] = I::from_i64(index as i64);
    }
    (held[found.max(1) - 1], winners[found.max(1) - 1].to_i64() as usize)
}

#[inline(always)]
fn ranks_after<W: Wide>((value, index): (W, usize), (bound, bound_index): (W, usize)) -> bool {
    ranks_before(bound, value) || (!ranks_before(value, bound) && index > bound_index)
}
