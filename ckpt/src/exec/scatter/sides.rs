//! The sides of tiles: the loops along the window, and the loops along the target.

use std::iter;

use crate::plan::ByteLoop;

/// Nested loops treated as one, the first of them innermost.
#[derive(Clone, Copy)]
pub(super) struct Side<'l>(&'l [ByteLoop]);

/// The offsets of an iteration of a side, relative to the side's first iteration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Offset {
    pub(super) from: u64,
    pub(super) to: u64,
}

impl<'l> Side<'l> {
    /// The number of iterations.
    pub(super) fn count(&self) -> u64 {
        self.0.iter().map(|it| it.count).product()
    }

    /// The offset between iterations of the innermost loop.
    pub(super) fn stride(&self) -> Offset {
        let first = self.0.first();
        first.map_or(Offset::default(), |it| Offset { from: it.from, to: it.to })
    }

    /// The offsets of the iterations, starting with number `first`.
    pub(super) fn offsets(self, first: u64) -> impl Iterator<Item = Offset> + use<'l> {
        let inner = self.0.first().copied().unwrap_or(ONCE);
        let mut number = first;
        let mut offset = self.offset(first);
        let mut left = inner.count - first % inner.count;
        let count = self.count();
        iter::from_fn(move || {
            if number >= count {
                return None;
            }
            let here = offset;
            (number, left) = (number + 1, left - 1);
            offset.from += inner.from;
            offset.to += inner.to;
            if left == 0 && number < count {
                (offset, left) = (self.offset(number), inner.count);
            }
            Some(here)
        })
    }

    fn offset(&self, mut number: u64) -> Offset {
        let mut offset = Offset::default();
        for it in self.0 {
            offset.from += number % it.count * it.from;
            offset.to += number % it.count * it.to;
            number /= it.count;
        }
        offset
    }
}

const ONCE: ByteLoop = ByteLoop { count: 1, from: 0, to: 0 };

/// The loops of a copy: first over the rows of tiles, then over their columns, then around the
/// tiles.
pub(super) struct Sides {
    loops: Vec<ByteLoop>,
    rows: usize,
    columns: usize,
}

impl Sides {
    /// Columns start with the loop that has the smallest stride in the target. Rows start with the
    /// remaining loop that has the smallest stride in the window. Both are extended by loops that
    /// continue at their ends, until there are `wide` columns and `high` rows.
    pub(super) fn new(loops: &[ByteLoop], high: u64, wide: u64) -> Sides {
        let mut left = loops.to_vec();
        left.retain(|it| it.count != 1);
        let mut columns = least(&mut left, |it| it.to);
        let mut rows = least(&mut left, |it| it.from);
        extend(&mut columns, &mut left, wide, |it| it.to);
        extend(&mut rows, &mut left, high, |it| it.from);
        Sides { rows: rows.len(), columns: columns.len(), loops: [rows, columns, left].concat() }
    }

    /// The loops along the window.
    pub(super) fn rows(&self) -> Side<'_> {
        Side(&self.loops[..self.rows])
    }

    /// The loops along the target.
    pub(super) fn columns(&self) -> Side<'_> {
        Side(&self.loops[self.rows..][..self.columns])
    }

    /// The loops around the tiles.
    pub(super) fn outer(&self) -> &[ByteLoop] {
        &self.loops[self.rows + self.columns..]
    }
}

/// Removes and returns the loop with the smallest stride.
fn least(left: &mut Vec<ByteLoop>, stride: impl Fn(&ByteLoop) -> u64) -> Vec<ByteLoop> {
    let least = (0..left.len()).min_by_key(|at| stride(&left[*at]));
    least.map(|at| left.remove(at)).into_iter().collect()
}

/// Moves the loops that continue where `side` ends from `left` to `side`, until it has `enough`
/// iterations.
fn extend(
    side: &mut Vec<ByteLoop>,
    left: &mut Vec<ByteLoop>,
    enough: u64,
    stride: impl Fn(&ByteLoop) -> u64,
) {
    let mut count: u64 = side.iter().map(|it| it.count).product();
    while let Some(last) = side.last()
        && count < enough
    {
        let end = stride(last) * last.count;
        let Some(next) = left.iter().position(|it| stride(it) == end) else {
            return;
        };
        count *= left[next].count;
        side.push(left.remove(next));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loops(all: &[(u64, u64, u64)]) -> Vec<ByteLoop> {
        let all = all.iter().copied();
        all.map(|(count, from, to)| ByteLoop { count, from, to }).collect()
    }

    /// In a permutation with short contiguous ranges, loops that continue each other form one side.
    #[test]
    fn sides_merge_adjoining_loops() {
        let all = loops(&[(3, 2, 900), (1, 0, 0), (5, 6, 60), (10, 30, 6), (3, 300, 2)]);
        let sides = Sides::new(&all, 10, 20);
        assert_eq!(sides.columns().0, loops(&[(3, 300, 2), (10, 30, 6)]));
        assert_eq!(sides.rows().0, loops(&[(3, 2, 900), (5, 6, 60)]));
        assert!(sides.outer().is_empty());

        let narrow = Sides::new(&all, 3, 3);
        assert_eq!(narrow.outer(), loops(&[(5, 6, 60), (10, 30, 6)]));
    }

    /// From any first iteration, the offsets are those of the nested loops.
    #[test]
    fn offsets_follow_the_loops() {
        let all = loops(&[(3, 1, 100), (2, 10, 7), (4, 50, 1)]);
        let side = Side(&all);
        let every: Vec<Offset> = (0..4)
            .flat_map(|c| (0..2).flat_map(move |b| (0..3).map(move |a| (a, b, c))))
            .map(|(a, b, c)| Offset { from: a + 10 * b + 50 * c, to: 100 * a + 7 * b + c })
            .collect();
        for first in 0..=24 {
            let offsets: Vec<Offset> = side.offsets(first as u64).collect();
            assert_eq!(offsets, every[first..]);
        }
        let once: Vec<Offset> = Side(&[]).offsets(0).collect();
        assert_eq!(once, [Offset::default()]);
    }
}
