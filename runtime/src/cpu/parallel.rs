//! The one parallel loop, and the memory that its tasks write.
//!
//! Work is split by size and never by the number of threads, so that results do not depend on it.
//! The machinery of a parallel loop is compiled once here, and not once a kernel.

use std::marker::PhantomData;

use super::team;

/// Elements that one task of an elementwise kernel handles; fewer than this are not worth a second
/// thread.
pub(crate) const BLOCK: usize = 16 * 1024;

/// Calls `task` with each of `0..count`, in parallel where there are several. One loop is shared at
/// a time: those inside of it are not.
pub(crate) fn for_tasks(count: usize, task: &(dyn Fn(usize) + Sync)) {
    team::share(count, task);
}

/// Calls `f(start, part)` for each block of `out`, `block` elements long, in parallel where there
/// are several. An empty `out` is one empty block.
pub(crate) fn for_blocks<T: Send>(out: &mut [T], block: usize, f: impl Fn(usize, &mut [T]) + Sync) {
    if out.len() <= block {
        return f(0, out);
    }
    for_parts(blocks(out, block), |at, part| f(at * block, part));
}

/// Calls `f` with the number and the part of each task, in parallel where there are several.
pub(crate) fn for_parts<C: Cut>(cut: C, f: impl Fn(usize, C::Part) + Sync) {
    for_tasks(cut.count(), &|at| {
        // SAFETY: `for_tasks` passes each number once.
        f(at, unsafe { cut.part(at) })
    });
}

/// Slices cut into as many parts as there are tasks.
pub(crate) trait Cut: Sync {
    /// What one task writes.
    type Part;

    /// How many parts there are.
    fn count(&self) -> usize;

    /// Part `at`.
    ///
    /// # Safety
    /// No part may be asked for twice.
    unsafe fn part(&self, at: usize) -> Self::Part;
}

/// A slice cut into blocks of equal length, of which the last may be shorter.
pub(crate) struct Blocks<'a, T> {
    slice: Shared<'a, T>,
    block: usize,
}

/// `slice` cut into blocks of `block` elements.
pub(crate) fn blocks<T>(slice: &mut [T], block: usize) -> Blocks<'_, T> {
    Blocks {
        slice: Shared::new(slice),
        block: block.max(1),
    }
}

impl<'a, T: Send> Cut for Blocks<'a, T> {
    type Part = &'a mut [T];

    fn count(&self) -> usize {
        self.slice.len.div_ceil(self.block)
    }

    unsafe fn part(&self, at: usize) -> &'a mut [T] {
        let start = at * self.block;
        let len = self.block.min(self.slice.len - start);
        // SAFETY: blocks do not overlap, and the caller asks for none twice.
        unsafe { self.slice.part(start, len) }
    }
}

/// Defines the cut of several slices at once: task i has part i of each.
macro_rules! cut_together {
    ($($C:ident $at:tt),+) => {
        impl<$($C: Cut),+> Cut for ($($C,)+) {
            type Part = ($($C::Part,)+);

            fn count(&self) -> usize {
                [$(self.$at.count()),+].into_iter().min().unwrap_or(0)
            }

            unsafe fn part(&self, at: usize) -> Self::Part {
                // SAFETY: the caller asks for no part twice.
                unsafe { ($(self.$at.part(at),)+) }
            }
        }
    };
}

cut_together!(A 0, B 1);
cut_together!(A 0, B 1, C 2);

/// A slice that several tasks write at once, each its own places.
pub(crate) struct Shared<'a, T> {
    start: *mut T,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: a `Shared` is a `&mut [T]` whose parts are handed to threads, which is sound for `T:
// Send`; that no part is handed out twice is what callers of `part` promise.
unsafe impl<T: Send> Sync for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Self {
            start: slice.as_mut_ptr(),
            len: slice.len(),
            slice: PhantomData,
        }
    }

    /// Elements `from .. from + len`.
    ///
    /// # Safety
    /// While the returned slice lives, no other call may return one of its elements.
    #[inline(always)]
    pub(crate) unsafe fn part(&self, from: usize, len: usize) -> &'a mut [T] {
        assert!(from <= self.len && len <= self.len - from);

        // SAFETY: the range lies in the slice that is borrowed mutably for 'a, and the caller
        // promises that nobody else has a part that overlaps it.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(from), len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_seen_once_with_its_number() {
        for (len, block) in [(0, 3), (1, 3), (3, 3), (7, 3), (100, 1), (5, 0)] {
            let (mut numbers, mut halves) = (vec![0; len], vec![0; len.div_ceil(block.max(1))]);
            for_parts(
                (blocks(&mut numbers, block), blocks(&mut halves, 1)),
                |at, (numbers, half)| {
                    numbers.iter_mut().for_each(|number| *number += at + 1);
                    half[0] += 1;
                },
            );
            let expected: Vec<usize> = (0..len).map(|i| i / block.max(1) + 1).collect();
            assert_eq!(numbers, expected, "{len} in blocks of {block}");
            assert!(halves.iter().all(|seen| *seen == 1));
        }
    }

    #[test]
    fn blocks_begin_where_they_say() {
        let mut out = vec![0; 1000];
        for_blocks(&mut out, 64, |start, part| {
            for (i, out) in part.iter_mut().enumerate() {
                *out = start + i;
            }
        });
        assert_eq!(out, (0..1000).collect::<Vec<_>>());
    }
}
