//! Reading tensors of any layout in row-major order, chunk by chunk.

use std::ops::{Deref, DerefMut};

use super::prefetch::prefetch;
use super::transpose::ColumnMajor;
use crate::{Element, Float, Layout, ReadGuard, Result, Tensor};

/// Elements that a kernel processes at a time in buffers on its stack.
pub(crate) const CHUNK: usize = 256;

/// A buffer of [`CHUNK`] elements, aligned so that no vector crosses a cache line: such accesses
/// take twice as long, and longer when read back at once.
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

/// Calls `f` with the offset of every element, in row-major order.
pub(crate) fn for_each_offset(layout: &Layout, mut f: impl FnMut(usize)) {
    let dims = Dims::new(layout);
    let elements = layout.shape().elements();
    dims.for_each_run(0, elements, |offset, stride, run| {
        for i in 0..run {
            f((offset as isize + i as isize * stride) as usize);
        }
    });
}

/// The merged dims of a layout, for traversal in row-major order from any element.
pub(crate) struct Dims {
    dims: Vec<(usize, isize)>,
    offset: usize,
}

impl Dims {
    pub(crate) fn new(layout: &Layout) -> Dims {
        let mut dims = layout.merged_dims();
        if dims.is_empty() {
            dims.push((1, 1));
        }
        Dims {
            dims,
            offset: layout.offset(),
        }
    }

    /// The other dims, and extent and stride of the last two.
    pub(crate) fn split_last_two(&self) -> Option<(Dims, [(usize, isize); 2])> {
        let (outer, last) = self.dims.split_last_chunk()?;
        let outer = Dims {
            dims: outer.to_vec(),
            offset: self.offset,
        };
        Some((outer, *last))
    }

    /// The offset of element `index` in row-major order.
    pub(crate) fn offset(&self, mut index: usize) -> usize {
        let mut offset = self.offset as isize;
        for &(extent, stride) in self.dims.iter().rev() {
            offset += (index % extent) as isize * stride;
            index /= extent;
        }
        offset as usize
    }

    /// Calls `f(offset, stride, run)` for runs of `run` elements, `stride` apart, that together are
    /// the elements `start..start + len` in row-major order.
    #[inline(always)]
    pub(crate) fn for_each_run(
        &self,
        start: usize,
        len: usize,
        mut f: impl FnMut(usize, isize, usize),
    ) {
        let (&(inner, stride), outer) = match self.dims.split_last() {
            Some(split) => split,
            None => return,
        };

        let mut at = start;
        let end = start + len;
        while at < end {
            let (mut row, column) = (at / inner, at % inner);
            let mut offset = self.offset as isize + column as isize * stride;
            for &(extent, step) in outer.iter().rev() {
                offset += (row % extent) as isize * step;
                row /= extent;
            }
            let run = (inner - column).min(end - at);
            f(offset as usize, stride, run);
            at += run;
        }
    }
}

/// An input of a kernel: a tensor's elements in row-major order, for any layout.
pub(crate) struct Source<'a, T> {
    elements: ReadGuard<'a, T>,
    dims: Dims,
}

impl<'a, T: Element> Source<'a, T> {
    pub(crate) fn new(tensor: &'a Tensor) -> Result<Source<'a, T>> {
        Ok(Source {
            elements: tensor.read()?,
            dims: Dims::new(tensor.layout()),
        })
    }

    /// The elements as column-major matrices, if that is their layout.
    pub(super) fn column_major(&self) -> Option<ColumnMajor<'_, T>> {
        ColumnMajor::new(&self.elements, &self.dims)
    }

    /// Copies the elements that start at `start` into `to`.
    pub(crate) fn copy(&self, start: usize, to: &mut [T]) {
        let mut filled = 0;
        self.dims
            .for_each_run(start, to.len(), |offset, stride, run| {
                let to = &mut to[filled..filled + run];
                filled += run;
                match stride {
                    1 => to.copy_from_slice(&self.elements[offset..offset + run]),
                    _ => self.gather(offset, stride, to, |element| element),
                }
            });
    }

    /// Stores `convert` of the elements that start at `start` in `to`.
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
                        // Prefetches the chunk after the next; the next is already on its way.
                        let end = offset + run;
                        let ahead = self.elements.get(end + run..end + 2 * run);
                        prefetch(ahead.unwrap_or_default());
                        for (to, from) in to.iter_mut().zip(&self.elements[offset..offset + run]) {
                            *to = convert(*from);
                        }
                    }
                    _ => self.gather(offset, stride, to, &convert),
                }
            },
        );
    }

    /// Stores `convert` of the elements at `offset`, `offset + stride`, .. in `to`.
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
