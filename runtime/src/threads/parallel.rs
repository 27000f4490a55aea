//! Parallel loops, and slices that their tasks write.
//!
//! How work is split depends only on its size, so results do not depend on the number of threads.
//! The loop is compiled once here, not per kernel.

use std::marker::PhantomData;

use super::pool;

/// Elements per task of an elementwise kernel. Smaller tasks are not worth a second thread.
pub(crate) const BLOCK: usize = 16 * 1024;

/// Calls `task` with each of `0..count`, in parallel if there are several. Nested loops run
/// serially.
pub(crate) fn for_tasks(count: usize, task: &(dyn Fn(usize) + Sync)) {
    pool::parallel_for(count, task);
}

/// Calls `f(start, part)` for each block of `out`, `block` elements long, in parallel if there are
/// several. An empty `out` is one empty block.
pub(crate) fn for_blocks<T: Send>(out: &mut [T], block: usize, f: impl Fn(usize, &mut [T]) + Sync) {
    // Compiled once per element type, not per kernel.
    fn each<T: Send>(out: &mut [T], block: usize, f: &(dyn Fn(usize, &mut [T]) + Sync)) {
        if out.len() <= block {
            return f(0, out);
        }
        for_parts(blocks(out, block), |at, part| f(at * block, part));
    }

    each(out, block, &f);
}

/// Calls `f` with the index and the part of each task, in parallel if there are several.
pub(crate) fn for_parts<S: Split>(split: S, f: impl Fn(usize, S::Part) + Sync) {
    for_tasks(split.count(), &|at| {
        // SAFETY: `for_tasks` passes each number once.
        f(at, unsafe { split.part(at) })
    });
}

/// Slices divided into one part per task.
pub(crate) trait Split: Sync {
    /// The part of one task.
    type Part;

    /// The number of parts.
    fn count(&self) -> usize;

    /// Part `at`.
    ///
    /// # Safety
    /// The caller must request each part at most once.
    unsafe fn part(&self, at: usize) -> Self::Part;
}

/// A slice divided into blocks of equal length; the last may be shorter.
pub(crate) struct Blocks<'a, T> {
    slice: SharedSlice<'a, T>,
    block: usize,
}

/// Divides `slice` into blocks of `block` elements.
pub(crate) fn blocks<T>(slice: &mut [T], block: usize) -> Blocks<'_, T> {
    Blocks { slice: SharedSlice::new(slice), block: block.max(1) }
}

impl<'a, T: Send> Split for Blocks<'a, T> {
    type Part = &'a mut [T];

    fn count(&self) -> usize {
        self.slice.len.div_ceil(self.block)
    }

    unsafe fn part(&self, at: usize) -> &'a mut [T] {
        let start = at * self.block;
        let len = self.block.min(self.slice.len - start);
        // SAFETY: blocks do not overlap, and the caller requests none twice.
        unsafe { self.slice.part(start, len) }
    }
}

/// Task i gets part i of each element.
impl<S: Split> Split for Vec<S> {
    type Part = Vec<S::Part>;

    fn count(&self) -> usize {
        self.iter().map(Split::count).min().unwrap_or(usize::MAX)
    }

    unsafe fn part(&self, at: usize) -> Vec<S::Part> {
        // SAFETY: the caller requests no part twice.
        self.iter().map(|split| unsafe { split.part(at) }).collect()
    }
}

/// Implements [`Split`] for a tuple: task i gets part i of each element.
macro_rules! split_together {
    ($($C:ident $at:tt),+) => {
        impl<$($C: Split),+> Split for ($($C,)+) {
            type Part = ($($C::Part,)+);

            fn count(&self) -> usize {
                [$(self.$at.count()),+].into_iter().min().unwrap_or(0)
            }

            unsafe fn part(&self, at: usize) -> Self::Part {
                // SAFETY: the caller requests no part twice.
                unsafe { ($(self.$at.part(at),)+) }
            }
        }
    };
}

split_together!(A 0, B 1);
split_together!(A 0, B 1, C 2);

/// A slice whose disjoint parts are written by concurrent tasks.
pub(crate) struct SharedSlice<'a, T> {
    start: *mut T,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: a `SharedSlice` is a `&mut [T]` whose parts are sent to threads, which is sound for `T:
// Send`. Callers of `part` promise disjoint parts.
unsafe impl<T: Send> Sync for SharedSlice<'_, T> {}

impl<'a, T> SharedSlice<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), slice: PhantomData }
    }

    /// Elements `from .. from + len`.
    ///
    /// # Safety
    /// While the returned slice lives, no other call may return one of its elements.
    #[inline(always)]
    pub(crate) unsafe fn part(&self, from: usize, len: usize) -> &'a mut [T] {
        assert!(from <= self.len && len <= self.len - from);

        // SAFETY: the range is in the slice that is borrowed mutably for 'a, and the caller
        // promises that no other part overlaps it.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(from), len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_is_visited_once_with_its_index() {
        for (len, block) in [(0, 3), (1, 3), (3, 3), (7, 3), (100, 1), (5, 0)] {
            let (mut numbers, mut visits) = (vec![0; len], vec![0; len.div_ceil(block.max(1))]);
            for_parts(
                (blocks(&mut numbers, block), blocks(&mut visits, 1)),
                |at, (numbers, visits)| {
                    numbers.iter_mut().for_each(|number| *number += at + 1);
                    visits[0] += 1;
                },
            );
            let expected: Vec<usize> = (0..len).map(|i| i / block.max(1) + 1).collect();
            assert_eq!(numbers, expected, "{len} in blocks of {block}");
            assert!(visits.iter().all(|count| *count == 1));
        }
    }

    #[test]
    fn block_starts_are_offsets() {
        let mut out = vec![0; 1000];
        for_blocks(&mut out, 64, |start, part| {
            for (i, out) in part.iter_mut().enumerate() {
                *out = start + i;
            }
        });
        assert_eq!(out, (0..1000).collect::<Vec<_>>());
    }
}
