//! Reading tensors of any layout in row-major order, a chunk at a time.

use std::ops::{Deref, DerefMut};

use super::prefetch::prefetch;
use super::transpose::Columns;
use crate::{Element, Float, Layout, ReadGuard, Result, Tensor};

/// Elements that a kernel handles at a time in buffers on its stack.
pub(crate) const CHUNK: usize = 256;

/// Room for [`CHUNK`] elements, none of whose vectors lies across two lines of a cache: those take
/// twice as long, and longer if they are read again at once.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(crate) struct Chunk<W>([W; CHUNK]);

impl<W: Copy> Chunk<W> {
    /// All elements the same.
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

/// Calls `f` with the place of every element, in row-major order.
pub(crate) fn for_each_offset(layout: &Layout, mut f: impl FnMut(usize)) {
    let dims = Dims::new(layout);
    let elements = layout.shape().elements();
    dims.for_each_run(0, elements, |place, stride, run| {
        for i in 0..run {
            f((place as isize + i as isize * stride) as usize);
        }
    });
}

/// Merged dims of a layout, for walking it in row-major order from anywhere.
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

    /// The last two dims, extents and strides, and all others.
    pub(crate) fn split_last_two(&self) -> Option<(Dims, [(usize, isize); 2])> {
        let (outer, last) = self.dims.split_last_chunk()?;
        let outer = Dims {
            dims: outer.to_vec(),
            offset: self.offset,
        };
        Some((outer, *last))
    }

    /// The place of element `index` in row-major order.
    pub(crate) fn place(&self, mut index: usize) -> usize {
        let mut place = self.offset as isize;
        for &(extent, stride) in self.dims.iter().rev() {
            place += (index % extent) as isize * stride;
            index /= extent;
        }
        place as usize
    }

    /// Calls `f(place, stride, run)` for stretches of `run` elements `stride` apart that together
    /// are the elements `start..start + len` in row-major order.
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
            let mut place = self.offset as isize + column as isize * stride;
            for &(extent, step) in outer.iter().rev() {
                place += (row % extent) as isize * step;
                row /= extent;
            }
            let run = (inner - column).min(end - at);
            f(place as usize, stride, run);
            at += run;
        }
    }
}

/// One input of a kernel: a tensor's elements in row-major order, whatever its layout.
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

    /// As matrices stored column by column, if that is what they are.
    pub(super) fn columns(&self) -> Option<Columns<'_, T>> {
        Columns::new(&self.elements, &self.dims)
    }

    /// Copies the elements from `start` on into `to`.
    pub(crate) fn copy(&self, start: usize, to: &mut [T]) {
        let mut filled = 0;
        self.dims
            .for_each_run(start, to.len(), |place, stride, run| {
                let to = &mut to[filled..filled + run];
                filled += run;
                match stride {
                    1 => to.copy_from_slice(&self.elements[place..place + run]),
                    _ => self.gather(place, stride, to, |element| element),
                }
            });
    }

    /// Stores `convert` of the elements from `start` on in `to`.
    #[inline(always)]
    pub(crate) fn load<U: Copy>(&self, start: usize, to: &mut [U], convert: impl Fn(T) -> U) {
        let mut filled = 0;
        self.dims.for_each_run(
            start,
            to.len(),
            #[inline(always)]
            |place, stride, run| {
                let to = &mut to[filled..filled + run];
                filled += run;
                match stride {
                    1 => {
                        // The chunk after the next, which is on its way.
                        let end = place + run;
                        let ahead = self.elements.get(end + run..end + 2 * run);
                        prefetch(ahead.unwrap_or_default());
                        for (to, from) in to.iter_mut().zip(&self.elements[place..place + run]) {
                            *to = convert(*from);
                        }
                    }
                    _ => self.gather(place, stride, to, &convert),
                }
            },
        );
    }

    /// Stores `convert` of the elements at `place`, `place + stride`, .. in `to`.
    #[inline(always)]
    fn gather<U: Copy>(&self, place: usize, stride: isize, to: &mut [U], convert: impl Fn(T) -> U) {
        if stride == 0 {
            return to.fill(convert(self.elements[place]));
        }
        for (i, to) in to.iter_mut().enumerate() {
            *to = convert(self.elements[(place as isize + i as isize * stride) as usize]);
        }
    }
}

impl<T: Float> Source<'_, T> {
    /// Widens the elements from `start` on into `to`.
    ///
    /// A function of its own, compiled once for each type and not into every kernel that reads.
    #[inline(never)]
    pub(crate) fn load_wide(&self, start: usize, to: &mut [T::Wide]) {
        vectorised!(T::Wide, || self.load(start, to, T::wide));
    }
}
