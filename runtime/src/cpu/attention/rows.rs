//! Views of what is read, disjoint pieces of what is written.

use std::marker::PhantomData;

/// A [B, T, H, D] view of memory whose last axis is dense.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows<'a, T> {
    /// The memory.
    pub(crate) data: &'a [T],
    /// Where element (0, 0, 0, 0) is.
    pub(crate) offset: usize,
    /// Distance between neighbours along B, T and H, in elements.
    pub(crate) strides: [usize; 3],
}

impl<'a, T> Rows<'a, T> {
    /// The D elements at (b, t, h).
    #[inline(always)]
    pub(super) fn row(&self, [b, t, h]: [usize; 3], head_dim: usize) -> &'a [T] {
        let [by_b, by_t, by_h] = self.strides;
        &self.data[self.offset + b * by_b + t * by_t + h * by_h..][..head_dim]
    }

    /// One past the last element that the view reaches; `None` when that overflows.
    pub(super) fn end(&self, [b, t, h, d]: [usize; 4]) -> Option<usize> {
        if b == 0 || t == 0 || h == 0 || d == 0 {
            return Some(0);
        }

        let mut last = self.offset.checked_add(d)?;
        for (extent, stride) in [b, t, h].into_iter().zip(self.strides) {
            last = last.checked_add((extent - 1).checked_mul(stride)?)?;
        }
        Some(last)
    }
}

/// A slice that several tasks write at once, each its own places: rows of a head are interleaved
/// with those of other heads, so chunks of the slice cannot give a task what is its.
pub(super) struct Shared<'a, T> {
    start: *mut T,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: a `Shared` is a `&mut [T]` whose parts are handed to threads, which is sound for `T:
// Send`; that no part is handed out twice is what callers of `part` promise.
unsafe impl<T: Send> Sync for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    pub(super) fn new(slice: &'a mut [T]) -> Self {
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
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn part(&self, from: usize, len: usize) -> &mut [T] {
        assert!(from <= self.len && len <= self.len - from);

        // SAFETY: the range lies in the slice that `self` borrows mutably, and the caller promises
        // that nobody else has a part that overlaps it.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(from), len) }
    }
}
