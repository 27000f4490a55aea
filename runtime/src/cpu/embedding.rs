//! Kernels of the embedding lookup and its gradient.

use super::for_blocks;
use super::rows::{Flat, Rows, copy_rows, rows_per_task};
use crate::core::arguments::indexed::IndexRange;
use crate::cpu::index_out_of_range;
use crate::{Float, Number, Result, Tensor};

/// y[i] = table[ids[i]]; zeros for an id in another shard of the table.
pub(crate) fn embedding<T: Float>(
    op: &'static str,
    table: &Tensor,
    ids: &Tensor,
    range: IndexRange,
    y: &mut [T],
) -> Result<()> {
    let [rows, features] = [table.shape()[0], table.shape()[1]];
    let (table, ids) = (Rows::<T>::new(table)?, Flat::<i64>::new(ids)?);
    let ids = &*ids;
    check_indices(op, ids, range.total)?;
    copy_rows(y, features, |at, y| match range.position(ids[at], rows) {
        Some(row) => y.copy_from_slice(table.row(row)),
        None => y.fill(T::from_f64(0.0)),
    });
    Ok(())
}

/// # Errors
/// For the first of `ids` outside of 0..extent.
fn check_indices(op: &'static str, ids: &[i64], extent: usize) -> Result<()> {
    let outside = |id: &i64| usize::try_from(*id).map_or(true, |id| id >= extent);
    match ids.iter().position(outside) {
        None => Ok(()),
        Some(position) => Err(index_out_of_range(op, ids[position], position, extent)),
    }
}

/// Positions grouped by id, in ascending order within each id.
pub(crate) struct Positions<'a> {
    /// For each id, the end of its range in `positions`.
    ends: &'a [i64],
    positions: &'a [i64],
}

/// The number of workspace elements that [`group_positions`] needs.
pub(crate) fn position_workspace(extent: usize, ids: usize) -> usize {
    extent + ids
}

/// Groups the positions of `ids` by their id in the table's shard of `extent` rows, by counting
/// sort. Ids of other shards are left out.
///
/// # Errors
/// When an index is out of range.
pub(crate) fn group_positions<'a>(
    op: &'static str,
    ids: &Tensor,
    extent: usize,
    range: IndexRange,
    workspace: &'a mut [i64],
) -> Result<Positions<'a>> {
    let ids = Flat::<i64>::new(ids)?;
    check_indices(op, &ids, range.total)?;

    let (ends, positions) = workspace.split_at_mut(extent);
    ends.fill(0);
    for row in ids.iter().filter_map(|id| range.position(*id, extent)) {
        ends[row] += 1;
    }

    let mut start = 0;
    for end in ends.iter_mut() {
        start += std::mem::replace(end, start);
    }
    for (position, id) in ids.iter().enumerate() {
        let Some(row) = range.position(*id, extent) else {
            continue;
        };
        let next = &mut ends[row];
        positions[*next as usize] = position as i64;
        *next += 1;
    }
    Ok(Positions { ends, positions })
}

impl Positions<'_> {
    fn of(&self, id: usize) -> &[i64] {
        let start = id.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.positions[start as usize..self.ends[id] as usize]
    }
}

/// dtable[id] += dy[position] for the positions of each id, in order. If `empty`, the table is
/// overwritten.
pub(crate) fn embedding_grad<T: Float>(
    dy: &Tensor,
    order: &Positions<'_>,
    features: usize,
    dtable: &mut [T::Wide],
    empty: bool,
) -> Result<()> {
    let dy = Rows::<T>::new(dy)?;
    if features == 0 {
        return Ok(());
    }

    for_blocks(dtable, rows_per_task(features) * features, |start, part| {
        vectorized!(T::Wide, || {
            for (at, sum) in part.chunks_exact_mut(features).enumerate() {
                let positions = order.of(start / features + at);
                add_rows(&dy, positions, sum, empty);
            }
        });
    });
    Ok(())
}

#[inline(always)]
fn add_rows<T: Float>(dy: &Rows<'_, T>, positions: &[i64], sum: &mut [T::Wide], empty: bool) {
    let positions = match (empty, positions.split_first()) {
        (false, _) => positions,
        (true, None) => return sum.fill(T::Wide::ZERO),
        (true, Some((first, rest))) => {
            for (sum, dy) in sum.iter_mut().zip(dy.row(*first as usize)) {
                *sum = dy.wide();
            }
            rest
        }
    };
    for position in positions {
        for (sum, dy) in sum.iter_mut().zip(dy.row(*position as usize)) {
            *sum += dy.wide();
        }
    }
}
