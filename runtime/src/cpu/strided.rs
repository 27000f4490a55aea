//! Reading tensors of any layout in row-major order, chunk by chunk.

use std::ops::{Deref, DerefMut};

use super::prefetch::prefetch;
use super::transpose::ColumnMajor;
use crate::core::strides::Dims;
use crate::{Element, Float, ReadGuard, Result, Tensor};

/// The number of elements that a kernel buffers on its stack.
pub(crate) const CHUNK: usize = 256;

/// A buffer of [`CHUNK`] elements, aligned so that no vector crosses a cache line. An access that
/// crosses one takes twice as long, or more if it reads data that was just written.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(crate) struct Chunk<W>([W; CHUNK]);

impl<W: Copy> Chunk<W> {
    /// A chunk filled with `value`.
    #[inline(always)]
    pub(crate) fn of(value: W) -> Self {
        Chunk([value; CHUNK])
    }
}

impl<W> Deref for Chunk<W> {
    type Target = [W; CHUNK];

    #[inline(always)]
    fn deref(&self) -> &[W; CHUNK] {
        &self.0
    }
}

impl<W> DerefMut for Chunk<W> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [W; CHUNK] {
        &mut self.0
    }
}

/// An input of a kernel: a tensor's elements in row-major order, for any layout.
pub(crate) struct Source<'a, T> {
    elements: ReadGuard<'a, T>,
    dims: Dims,
}

impl<'a, T: Element> Source<'a, T> {
    pub(crate) fn new(tensor: &'a Tensor) -> Result<Source<'a, T>> {
        Ok(Source { elements: tensor.read()?, dims: Dims::new(tensor.layout()) })
    }

    /// The elements as column-major matrices, if that is their layout.
    pub(super) fn column_major(&self) -> Option<ColumnMajor<'_, T>> {
        ColumnMajor::new(&self.elements, &self.dims)
    }

    /// The `len` elements from `start` on: a slice of the tensor if they are contiguous, else a copy
    /// in `buffer`, which must be as long then.
    #[inline(always)]
    pub(crate) fn elements<'s>(&'s self, start: usize, len: usize, buffer: &'s mut [T]) -> &'s [T] {
        if len == 0 {
            return &[];
        }
        let (offset, stride, run) = self.dims.run(start);
        if stride == 1 && run >= len {
            self.prefetch_after_next(offset, len);
            return &self.elements[offset..offset + len];
        }
        let buffer = &mut buffer[..len];
        self.copy(start, buffer);
        buffer
    }

    /// Whether all elements are contiguous.
    pub(crate) fn is_contiguous(&self) -> bool {
        self.dims.are_contiguous()
    }

    /// Prefetches the chunk after the next of the `len` elements at `offset`; the next was
    /// prefetched before.
    #[inline(always)]
    fn prefetch_after_next(&self, offset: usize, len: usize) {
        let ahead = self.elements.get(offset + 2 * len..offset + 3 * len);
        prefetch(ahead.unwrap_or_default());
    }

    /// Copies the elements that start at `start` into `to`.
    pub(crate) fn copy(&self, start: usize, to: &mut [T]) {
        let mut filled = 0;
        self.dims.for_each_run(start, to.len(), |offset, stride, run| {
            let to = &mut to[filled..filled + run];
            filled += run;
            match stride {
                1 => to.copy_from_slice(&self.elements[offset..offset + run]),
                _ => self.gather(offset, stride, to, |element| element),
            }
        });
    }

    /// Converts the elements from `start` on, and stores them in `to`.
    #[inline(always)]
    pub(crate) fn load<U: Copy>(&self, start: usize, to: &mut [U], convert: impl Fn(T) -> U) {
        let mut filled = 0;
        self.dims.for_each_run(
            start,
            to.len(),
            #[inline(always)]
            |offset, stride, run| {
                let to = &mut to[filled..filled + run];
                filled += run;
                match stride {
                    1 => {
                        self.prefetch_after_next(offset, run);
                        for (to, from) in to.iter_mut().zip(&self.elements[offset..offset + run]) {
                            *to = convert(*from);
                        }
                    }
                    _ => self.gather(offset, stride, to, &convert),
                }
            },
        );
    }

    /// Converts the elements at `offset`, `offset + stride`, .., and stores them in `to`.
    #[inline(always)]
    fn gather<U: Copy>(
        &self,
        offset: usize,
        stride: isize,
        to: &mut [U],
        convert: impl Fn(T) -> U,
    ) {
        if stride == 0 {
            return to.fill(convert(self.elements[offset]));
        }
        for (i, to) in to.iter_mut().enumerate() {
            *to = convert(self.elements[(offset as isize + i as isize * stride) as usize]);
        }
    }
}

impl<T: Float> Source<'_, T> {
    /// Widens the elements that start at `start` into `to`.
    ///
    /// Not inlined, so that it is compiled once per type and not into every kernel.
    #[inline(never)]
    pub(crate) fn load_wide(&self, start: usize, to: &mut [T::Wide]) {
        vectorized!(T::Wide, || self.load(start, to, T::wide));
    }
}
