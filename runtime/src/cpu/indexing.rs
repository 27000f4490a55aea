//! Kernels that copy or add elements by index. The caller has checked the indices.

use super::rows::{copy_rows, rows_per_task};
use super::strided::Source;
use super::{BLOCK, blocks, for_blocks, for_parts};
use crate::{Element, Float, Layout, Number, Result, Tensor};

/// Concatenates the rows of `inputs`, whose widths are `widths`.
pub(crate) fn concat<T: Element>(
    inputs: &[&Tensor],
    widths: &[usize],
    out: &mut [T],
) -> Result<()> {
    let sources: Result<Vec<Source<'_, T>>> = inputs.iter().map(|x| Source::new(x)).collect();
    let sources = sources?;
    let row_width: usize = widths.iter().sum();

    for_blocks(out, BLOCK, |start, mut part| {
        let (mut row, mut column) = (start / row_width.max(1), start % row_width.max(1));
        while !part.is_empty() {
            let mut first = 0;
            for (source, width) in sources.iter().zip(widths) {
                let skip = column.saturating_sub(first).min(*width);
                let run = (width - skip).min(part.len());
                let (now, rest) = part.split_at_mut(run);
                source.copy(row * width + skip, now);
                part = rest;
                first += width;
            }
            (row, column) = (row + 1, 0);
        }
    });
    Ok(())
}

/// A dim of a contiguous tensor.
#[derive(Clone, Copy)]
pub(crate) struct IndexedDim {
    /// The extent of the dim.
    pub(crate) extent: usize,
    /// The product of the extents of the dims after it.
    pub(crate) inner: usize,
}

/// `out[o, j, ..] = x[o, ids[j], ..]`, and zeros for a negative id.
pub(crate) fn index_select<T: Element>(x: &[T], dim: IndexedDim, ids: &[i64], out: &mut [T]) {
    copy_rows(out, dim.inner, |at, to| {
        let (outer, j) = (at / ids.len(), at % ids.len());
        match usize::try_from(ids[j]) {
            Ok(id) => {
                let row = outer * dim.extent + id;
                to.copy_from_slice(&x[row * dim.inner..][..dim.inner]);
            }
            Err(_) => to.fill(T::from_f64(0.0)),
        }
    });
}

/// Sets `out` to zero, then adds `out[o, ids[j], ..] += dy[o, j, ..]` in the order of j, except for
/// negative ids.
///
/// Each task owns some rows of `out`, and scans all ids for these rows.
pub(crate) fn index_add<T: Float>(dy: &[T], dim: IndexedDim, ids: &[i64], out: &mut [T::Wide]) {
    let inner = dim.inner.max(1);
    let slab = (dim.extent * inner).max(1);
    let rows_per_task = rows_per_task(inner);
    for_parts(blocks(out, slab), |outer, slab| {
        for_blocks(slab, rows_per_task * inner, |start, rows| {
            vectorized!(T::Wide, || {
                rows.fill(T::Wide::ZERO);
                let (first_row, held) = (start / inner, rows.len() / inner);
                for (j, id) in ids.iter().enumerate() {
                    let Some(row) = (*id as usize).checked_sub(first_row).filter(|row| *row < held)
                    else {
                        continue;
                    };
                    let from = &dy[(outer * ids.len() + j) * inner..][..inner];
                    for (sum, value) in rows[row * inner..][..inner].iter_mut().zip(from) {
                        *sum += value.wide();
                    }
                }
            });
        });
    });
}

/// Maps positions in an index tensor to offsets in another tensor. The coordinate in the indexed
/// dim is the value of the index tensor; all other coordinates are equal.
pub(crate) struct IndexedLayout {
    /// Extents of the index tensor with the strides of the other tensor; the stride of the indexed
    /// dim is 0.
    dims: Vec<(usize, isize)>,
    offset: isize,
    indexed_stride: isize,
}

impl IndexedLayout {
    /// Both tensors must have at least one dim.
    pub(crate) fn new(layout: &Layout, dim: usize, index_shape: &[usize]) -> IndexedLayout {
        let strides = layout.strides();
        let stride = |at: usize| if at == dim { 0 } else { strides[at] };
        IndexedLayout {
            dims: index_shape
                .iter()
                .enumerate()
                .map(|(at, extent)| (*extent, stride(at)))
                .collect(),
            offset: layout.offset() as isize,
            indexed_stride: strides[dim],
        }
    }

    /// The extent of the innermost dim of the index tensor.
    fn run(&self) -> usize {
        self.dims.last().map_or(1, |(extent, _)| *extent).max(1)
    }

    /// Calls `f(position, offset)` for positions `start..start + indices.len()` of the index
    /// tensor, in order, except those of negative indices; `start` must be the first position of a
    /// row.
    #[inline(always)]
    fn for_each(&self, start: usize, indices: &[i64], mut f: impl FnMut(usize, usize)) {
        let Some((&(_, step), outer)) = self.dims.split_last() else {
            return;
        };
        let run = self.run();
        for (at, indices) in indices.chunks(run).enumerate() {
            let (mut row, mut base) = (start / run + at, self.offset);
            for &(extent, stride) in outer.iter().rev() {
                base += (row % extent) as isize * stride;
                row /= extent;
            }
            for (column, index) in indices.iter().enumerate() {
                if *index < 0 {
                    continue;
                }
                let offset = base + column as isize * step + *index as isize * self.indexed_stride;
                f(start + at * run + column, offset as usize);
            }
        }
    }
}

/// `out[c] = x[c']`, where c' is c with `index[c]` as its coordinate in the indexed dim, and zero
/// for a negative index. `x` is a whole storage.
pub(crate) fn gather<T: Element>(x: &[T], around: &IndexedLayout, index: &[i64], out: &mut [T]) {
    let run = around.run();
    for_blocks(out, rows_per_task(run) * run, |start, part| {
        let index = &index[start..start + part.len()];
        part.fill(T::from_f64(0.0));
        around.for_each(start, index, |position, offset| part[position - start] = x[offset]);
    });
}

/// Sets `out` to zero, then adds `out[c'] += src[c]` in row-major order of c, where c' is c with
/// `index[c]` as its coordinate in the indexed dim.
///
/// `out` is divided into `slabs[0]` equal parts and `index` into `slabs[1] <= slabs[0]`. Part i of
/// `index` writes only to part i of `out`, so the parts run in parallel.
pub(crate) fn scatter_add<T: Float>(
    src: &[T],
    around: &IndexedLayout,
    index: &[i64],
    slabs: [usize; 2],
    out: &mut [T::Wide],
) {
    let (slab, index_slab) = (out.len() / slabs[0].max(1), index.len() / slabs[1].max(1));
    for_parts(blocks(out, slab), |at, out| {
        out.fill(T::Wide::ZERO);
        if at >= slabs[1] {
            return;
        }
        let start = at * index_slab;
        let index = &index[start..start + index_slab];
        around.for_each(start, index, |position, offset| {
            out[offset - at * slab] += src[position].wide();
        });
    });
}

/// `out[i] = wide[i]`, rounded to `T`.
pub(crate) fn narrow<T: Float>(wide: &[T::Wide], out: &mut [T]) {
    for_blocks(out, BLOCK, |start, part| {
        vectorized!(T::Wide, || {
            for (out, wide) in part.iter_mut().zip(&wide[start..]) {
                *out = T::narrow(*wide);
            }
        });
    });
}
