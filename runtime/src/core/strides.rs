//! Traversal of a layout in row-major order.

use crate::Layout;

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
        Dims { dims, offset: layout.offset() }
    }

    /// Whether the elements are contiguous.
    pub(crate) fn are_contiguous(&self) -> bool {
        matches!(self.dims[..], [(_, 1)])
    }

    /// Splits off the last two dims as (extent, stride) pairs. `None` with fewer than two dims.
    pub(crate) fn split_last_two(&self) -> Option<(Dims, [(usize, isize); 2])> {
        let (outer, last) = self.dims.split_last_chunk()?;
        let outer = Dims { dims: outer.to_vec(), offset: self.offset };
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

    /// Splits the elements `start..start + len`, in row-major order, into runs along the last dim.
    /// Calls `f(offset, stride, run)` for each: `run` elements, `stride` apart, the first at
    /// `offset`.
    #[inline(always)]
    pub(crate) fn for_each_run(
        &self,
        start: usize,
        len: usize,
        mut f: impl FnMut(usize, isize, usize),
    ) {
        let mut at = start;
        let end = start + len;
        while at < end {
            let (offset, stride, rest) = self.run(at);
            let run = rest.min(end - at);
            f(offset, stride, run);
            at += run;
        }
    }

    /// The run along the last dim that starts at element `start`, which must exist: the offset of
    /// that element, the stride, and the number of elements.
    #[inline(always)]
    pub(crate) fn run(&self, start: usize) -> (usize, isize, usize) {
        let Some((&(inner, stride), outer)) = self.dims.split_last() else {
            return (self.offset, 1, 0);
        };
        // A division takes as long as the arithmetic of several vectors.
        let (mut row, column) = match outer.is_empty() {
            true => (0, start),
            false => (start / inner, start % inner),
        };
        let mut offset = self.offset as isize + column as isize * stride;
        for &(extent, step) in outer.iter().rev() {
            offset += (row % extent) as isize * step;
            row /= extent;
        }
        (offset as usize, stride, inner - column)
    }
}
