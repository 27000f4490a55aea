//! Kernels of mixture-of-experts layers: routing, sorting tokens by expert, permuting and
//! unpermuting rows.

use meshgrad_error::bail;

use super::rows::{copy_rows, for_rows, rows_per_task, sum};
use super::strided::CHUNK;
use super::top_k::top_k_indices;
use super::{blocks, for_blocks, for_parts};
use crate::cpu::index_out_of_range;
use crate::{Element, Float, Number, Result};

/// Selects the `k` experts of each row with the largest `probabilities` + `bias`. Weights are
/// probabilities without the bias.
pub(crate) fn router_top_k<T: Float>(
    probabilities: &[T],
    bias: Option<&[T::Wide]>,
    experts: usize,
    k: usize,
    renormalize: bool,
    weights: &mut [T],
    indices: &mut [i32],
) {
    let choose = |row: usize, weights: &mut [T], indices: &mut [i32]| {
        let row = &probabilities[row * experts..][..experts];
        match bias {
            None => top_k_indices(experts, |expert| row[expert].wide(), indices),
            Some(bias) => {
                top_k_indices(experts, |expert| row[expert].wide() + bias[expert], indices)
            }
        }

        let chosen = |index: &i32| row[*index as usize].wide();
        let scale = match renormalize {
            true => indices.iter().map(chosen).sum(),
            false => T::Wide::ONE,
        };
        for (weight, index) in weights.iter_mut().zip(&*indices) {
            *weight = T::narrow(chosen(index) / scale);
        }
    };

    let rows = rows_per_task(experts);
    let out = (blocks(weights, rows * k), blocks(indices, rows * k));
    for_parts(out, |task, (weights, indices)| {
        let out = weights.chunks_mut(k).zip(indices.chunks_mut(k));
        for (at, (weights, indices)) in out.enumerate() {
            choose(task * rows + at, weights, indices);
        }
    });
}

/// The gradient of [`router_top_k`] through the weights; the selection has no gradient. `indices`
/// must have been checked.
pub(crate) fn router_top_k_grad<T: Float>(
    probabilities: &[T],
    indices: &[i32],
    dweights: &[T],
    experts: usize,
    k: usize,
    renormalize: bool,
    dprobabilities: &mut [T],
) {
    for_rows!(dprobabilities, experts, |row, dprobabilities| {
        let probabilities = &probabilities[row * experts..][..experts];
        let slots = row * k..(row + 1) * k;
        let (indices, dweights) = (&indices[slots.clone()], &dweights[slots]);
        let chosen = |index: &i32| probabilities[*index as usize].wide();

        // w_j = p_j / s with s = sum_j p_j, so dp_j = (dw_j - sum_i dw_i w_i) / s.
        let (mut mean, mut scale) = (T::Wide::ZERO, T::Wide::ONE);
        if renormalize {
            scale = indices.iter().map(chosen).sum();
            let products =
                indices.iter().zip(dweights).map(|(index, dw)| dw.wide() * chosen(index));
            mean = products.sum::<T::Wide>() / scale;
        }

        dprobabilities.fill(T::zeroed());
        for (index, dw) in indices.iter().zip(dweights) {
            dprobabilities[*index as usize] = T::narrow((dw.wide() - mean) / scale);
        }
    });
}

/// A stable counting sort of the slots by expert. The local experts are the `offsets.len() - 1`
/// experts from `first_expert` on. `indices` must have been checked.
pub(crate) fn expert_order<I: Element>(
    indices: &[I],
    first_expert: usize,
    offsets: &mut [i64],
    order: &mut [i32],
    row_of_slot: &mut [i32],
) {
    let held = offsets.len() - 1;
    let group =
        |index: &I| (index.to_i64() as usize).checked_sub(first_expert).filter(|g| *g < held);

    offsets.fill(0);
    for group in indices.iter().filter_map(group) {
        offsets[group + 1] += 1;
    }
    for group in 0..held {
        offsets[group + 1] += offsets[group];
    }

    // During the loop, `offsets[group]` is the next free row of the group; after it, the end of the
    // group.
    order.fill(-1);
    for (slot, (index, row_of_slot)) in indices.iter().zip(row_of_slot).enumerate() {
        let Some(group) = group(index) else {
            *row_of_slot = -1;
            continue;
        };
        let row = offsets[group];
        offsets[group] += 1;
        order[row as usize] = slot as i32;
        *row_of_slot = row as i32;
    }
    offsets.copy_within(..held, 1);
    offsets[0] = 0;
}

/// The result of [`expert_order`] for all experts.
pub(crate) struct Sorted<'a> {
    pub(crate) indices: &'a [i32],
    pub(crate) order: &'a [i32],
    pub(crate) offsets: &'a [i64],
    pub(crate) row_of_slot: &'a [i32],
}

impl Sorted<'_> {
    /// Checks that every slot has an expert and a row.
    pub(crate) fn check(&self, op: &'static str) -> Result<()> {
        let slots = self.indices.len();
        check_indices(op, self.indices, self.offsets.len() - 1, false)?;
        check_indices(op, self.order, slots, false)?;
        check_indices(op, self.row_of_slot, slots, false)?;
        check_offsets(op, self.offsets, self.order.len()).map(drop)
    }
}

/// Gives each rank `capacity` places, for the slots of its `held` experts. A slot without a place gets
/// -1, and so does a place without a slot, whose expert is `held`. `sorted` must have been checked.
pub(crate) fn expert_places(
    sorted: &Sorted<'_>,
    [held, capacity]: [usize; 2],
    slot_of_place: &mut [i32],
    place_of_slot: &mut [i32],
    expert_of_place: &mut [i32],
) {
    let first_row = |rank: usize| sorted.offsets[rank * held] as usize;
    let places = slot_of_place.iter_mut().zip(expert_of_place);
    for (at, (slot, expert)) in places.enumerate() {
        let (rank, inside) = (at / capacity, at % capacity);
        let row = first_row(rank) + inside;
        (*slot, *expert) = match row < first_row(rank + 1) {
            true => {
                let slot = sorted.order[row];
                (slot, sorted.indices[slot as usize] - (rank * held) as i32)
            }
            false => (-1, held as i32),
        };
    }
    let slots = sorted.indices.iter().zip(sorted.row_of_slot);
    for (place, (expert, row)) in place_of_slot.iter_mut().zip(slots) {
        let rank = *expert as usize / held;
        // A row before those of its rank is of another order.
        let inside = (*row as usize).checked_sub(first_row(rank));
        *place = match inside.filter(|inside| *inside < capacity) {
            Some(inside) => (rank * capacity + inside) as i32,
            None => -1,
        };
    }
}

/// `out[row] = x[order[row] / top_k]`; rows beyond `order`, or of a negative slot, are zero.
pub(crate) fn permute_tokens<T: Element>(
    x: &[T],
    width: usize,
    top_k: usize,
    order: &[i32],
    out: &mut [T],
) {
    copy_rows(out, width, |row, out| match slot_of(order, row) {
        Some(slot) => out.copy_from_slice(&x[slot / top_k * width..][..width]),
        None => out.fill(T::zeroed()),
    });
}

/// `out[row] = weights[order[row]] * x[order[row] / top_k]`; rows beyond `order`, or of a negative
/// slot, are zero.
pub(crate) fn permute_tokens_weighted<T: Float>(
    x: &[T],
    weights: &[T::Wide],
    width: usize,
    top_k: usize,
    order: &[i32],
    out: &mut [T],
) {
    for_rows!(out, width, |row, out| {
        let Some(slot) = slot_of(order, row) else {
            return out.fill(T::zeroed());
        };
        let from = &x[slot / top_k * width..][..width];
        for (out, value) in out.iter_mut().zip(from) {
            *out = T::narrow(weights[slot] * value.wide());
        }
    });
}

/// The slot of a row, if it has one.
fn slot_of(order: &[i32], row: usize) -> Option<usize> {
    order.get(row).and_then(|slot| usize::try_from(*slot).ok())
}

/// `out[token] = sum_j weight(slot) * rows[row_of_slot[slot]]` with slot = token * top_k + j, in
/// the order of j. Slots with a negative row are skipped.
pub(crate) fn unpermute_tokens<T: Float>(
    rows: &[T],
    width: usize,
    top_k: usize,
    row_of_slot: &[i32],
    weight: impl Fn(usize) -> T::Wide + Sync,
    out: &mut [T],
) {
    for_rows!(out, width, |token, out| {
        for (at, out) in out.chunks_mut(CHUNK).enumerate() {
            let mut sums = [T::Wide::ZERO; CHUNK];
            let sums = &mut sums[..out.len()];
            let first = token * top_k;
            for (slot, row) in (first..).zip(&row_of_slot[first..first + top_k]) {
                let Ok(row) = usize::try_from(*row) else {
                    continue;
                };
                let weight = weight(slot);
                let from = &rows[row * width + at * CHUNK..][..out.len()];
                for (sum, value) in sums.iter_mut().zip(from) {
                    *sum += weight * value.wide();
                }
            }
            for (out, sum) in out.iter_mut().zip(&*sums) {
                *out = T::narrow(*sum);
            }
        }
    });
}

/// `out[slot] = dot(dy[slot / top_k], y[row_of_slot[slot]])`; zero for a negative row.
pub(crate) fn unpermute_tokens_grad_weights<T: Float>(
    dy: &[T],
    y: &[T],
    width: usize,
    top_k: usize,
    row_of_slot: &[i32],
    out: &mut [T::Wide],
) {
    for_blocks(out, rows_per_task(width), |start, part| {
        vectorized!(T::Wide, || {
            for (at, out) in part.iter_mut().enumerate() {
                let slot = start + at;
                *out = usize::try_from(row_of_slot[slot]).map_or(T::Wide::ZERO, |row| {
                    let dy = &dy[slot / top_k * width..][..width];
                    sum([dy, &y[row * width..][..width]], |[dy, y]| dy * y)
                });
            }
        });
    });
}

/// Checks that every index is in 0..extent. If `absent`, an index may also be -1.
pub(crate) fn check_indices<I: Element>(
    op: &'static str,
    indices: &[I],
    extent: usize,
    absent: bool,
) -> Result<()> {
    let low = if absent { -1 } else { 0 };
    let legal = |index: &I| (low..extent as i64).contains(&index.to_i64());
    match indices.iter().position(|index| !legal(index)) {
        None => Ok(()),
        Some(position) => {
            let index = indices[position].to_i64();
            Err(index_out_of_range(op, index, position, extent))
        }
    }
}

/// Checks that offsets start at 0, do not decrease and are at most `rows`. Returns the last offset,
/// which is the number of rows in use.
pub(crate) fn check_offsets(op: &'static str, offsets: &[i64], rows: usize) -> Result<usize> {
    let rises = offsets.first() == Some(&0) && offsets.is_sorted();
    match offsets.last() {
        Some(last) if rises && *last <= rows as i64 => Ok(*last as usize),
        _ => bail!(
            Invalid,
            "{op}: offsets {offsets:?} must start with 0, be non-decreasing and end at or before \
             {rows} rows"
        ),
    }
}
