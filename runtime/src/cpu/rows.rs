//! Row kernels: reading tensors whose last dim is contiguous, loops over rows, and folds along a
//! row.

use std::ops::{Deref, Range};

use super::{BLOCK, for_blocks};
use crate::{Element, Float, Number, ReadGuard, Result, Tensor, Wide};

/// Interleaved partial results of a fold along a row, enough to hide the latency of an addition.
const LANES: usize = 32;

/// The rows of a tensor whose last dim is contiguous; the other dims may have any strides.
pub(crate) struct Rows<'a, T> {
    elements: ReadGuard<'a, T>,
    /// Extents and strides of the other dims, merged, outermost first.
    outer: Vec<(usize, isize)>,
    offset: usize,
    columns: usize,
}

impl<'a, T: Element> Rows<'a, T> {
    pub(crate) fn new(x: &'a Tensor) -> Result<Rows<'a, T>> {
        let elements = x.read()?;
        let columns = x.shape().last().copied().unwrap_or(1);
        let outer = match x.shape().len().checked_sub(1) {
            Some(last) if columns > 0 => x.layout().slice(last, 0..1)?.merged_dims(),
            _ => Vec::new(),
        };
        Ok(Rows {
            elements,
            outer,
            offset: if columns > 0 { x.layout().offset() } else { 0 },
            columns,
        })
    }

    /// Elements per row.
    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    /// Row `row` in row-major order.
    #[inline(always)]
    pub(crate) fn row(&self, row: usize) -> &[T] {
        let mut offset = self.offset as isize;
        if let Some((&(_, outermost), inner)) = self.outer.split_first() {
            let mut rest = row;
            for &(extent, stride) in inner.iter().rev() {
                offset += (rest % extent) as isize * stride;
                rest /= extent;
            }
            offset += rest as isize * outermost;
        }
        let offset = offset as usize;
        &self.elements[offset..offset + self.columns]
    }
}

/// All elements of a contiguous tensor.
pub(crate) struct Flat<'a, T> {
    elements: ReadGuard<'a, T>,
    range: Range<usize>,
}

impl<'a, T: Element> Flat<'a, T> {
    pub(crate) fn new(x: &'a Tensor) -> Result<Flat<'a, T>> {
        let range = x.contiguous_range("read")?;
        Ok(Flat { elements: x.read()?, range })
    }
}

impl<T> Deref for Flat<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.elements[self.range.clone()]
    }
}

/// The number of rows of `columns` elements that a task processes.
pub(crate) fn rows_per_task(columns: usize) -> usize {
    (BLOCK / columns.max(1)).max(1)
}

/// `for_rows!(out, columns, |row, out| ..)` calls a vectorized closure with each row of `columns`
/// elements of `out`, in parallel if there are many rows. With `|row, out, scratch|` the closure
/// also gets scratch space of `columns` wide numbers.
///
/// It is a macro because the closure must be inlined to be vectorized, and only an attribute on the
/// closure guarantees that.
macro_rules! for_rows {
    ($out:expr, $columns:expr, |$row:ident, $y:ident, $scratch:ident| $body:expr) => {
        $crate::cpu::rows::each_row(
            $out,
            $columns,
            $columns,
            #[inline(always)]
            |$row, $y, $scratch| $body,
        )
    };
    ($out:expr, $columns:expr, |$row:ident, $y:ident| $body:expr) => {
        $crate::cpu::rows::each_row(
            $out,
            $columns,
            0,
            #[inline(always)]
            |$row, $y, _| $body,
        )
    };
}

pub(crate) use for_rows;

/// The implementation of [`for_rows`]. `scratch` is the length of the scratch space; `f` must be
/// `#[inline(always)]`.
#[inline(always)]
pub(crate) fn each_row<T: Float>(
    out: &mut [T],
    columns: usize,
    scratch: usize,
    f: impl Fn(usize, &mut [T], &mut [T::Wide]) + Sync,
) {
    if columns == 0 {
        return;
    }
    for_blocks(out, rows_per_task(columns) * columns, |start, part| {
        let mut scratch = vec![T::Wide::ZERO; scratch];
        vectorized!(T::Wide, || {
            for (at, out) in part.chunks_exact_mut(columns).enumerate() {
                f(start / columns + at, out, &mut scratch);
            }
        });
    });
}

/// Calls `f` with each row of `columns` elements of `out`, in parallel if there are many rows. `f`
/// is not vectorized, so use this for copies.
pub(crate) fn copy_rows<T: Element>(
    out: &mut [T],
    columns: usize,
    f: impl Fn(usize, &mut [T]) + Sync,
) {
    if columns == 0 {
        return;
    }
    for_blocks(out, rows_per_task(columns) * columns, |start, part| {
        for (at, out) in part.chunks_exact_mut(columns).enumerate() {
            f(start / columns + at, out);
        }
    });
}

/// The sum of `term` over the columns of `rows`.
#[inline(always)]
pub(crate) fn sum<T: Float, const N: usize>(
    rows: [&[T]; N],
    term: impl Fn([T::Wide; N]) -> T::Wide,
) -> T::Wide {
    fold(rows, T::Wide::ZERO, |sum, values| sum + term(values), |a, b| a + b)
}

/// The largest element of a row; minus infinity if it is empty. NaN is ignored.
#[inline(always)]
pub(crate) fn max<T: Float>(row: &[T]) -> T::Wide {
    fold([row], T::Wide::NEG_INFINITY, |max, [x]| max.larger(x), T::Wide::larger)
}

/// Folds the columns of `rows` in [`LANES`] lanes, which [`merge_halves`] then merges. The order
/// depends only on the number of columns.
///
/// Every step writes a new array. Lanes that are updated in place, or indexed by the remainder of a
/// row, are kept on the stack, and then merged two by two: for a head of 32 columns that takes 4 to
/// 12 ns instead of 3.
#[inline(always)]
fn fold<T: Float, const N: usize>(
    rows: [&[T]; N],
    start: T::Wide,
    step: impl Fn(T::Wide, [T::Wide; N]) -> T::Wide,
    merge: impl Fn(T::Wide, T::Wide) -> T::Wide,
) -> T::Wide {
    let columns = rows[0].len();
    let whole = columns - columns % LANES;

    let mut lanes = [start; LANES];
    for first in (0..whole).step_by(LANES) {
        let group = part(rows, first, LANES);
        let mut stepped = lanes;
        for (at, stepped) in stepped.iter_mut().enumerate() {
            // SAFETY: a group has as many columns as there are lanes.
            *stepped = step(lanes[at], unsafe { column(group, at) });
        }
        lanes = stepped;
    }
    if whole < columns {
        let rest = part(rows, whole, columns - whole);
        let mut stepped = lanes;
        for (at, lane) in stepped.iter_mut().enumerate().take(columns - whole) {
            // SAFETY: these are the columns of `rest`.
            *lane = step(*lane, unsafe { column(rest, at) });
        }
        lanes = stepped;
    }

    merge_halves(lanes, &merge)
}

/// `out[i] = f(out[i], column i of rows)`. No row is shorter than `out`.
#[inline(always)]
pub(crate) fn update_columns<T: Float, U: Copy, const N: usize>(
    rows: [&[T]; N],
    out: &mut [U],
    f: impl Fn(U, [T::Wide; N]) -> U,
) {
    let rows = part(rows, 0, out.len());
    for (at, out) in out.iter_mut().enumerate() {
        // SAFETY: the rows are as long as `out`.
        *out = f(*out, unsafe { column(rows, at) });
    }
}

/// `count` elements from `first` on of each of `rows`.
#[inline(always)]
fn part<T, const N: usize>(mut rows: [&[T]; N], first: usize, count: usize) -> [&[T]; N] {
    for row in &mut rows {
        *row = &row[first..][..count];
    }
    rows
}

/// Row `row` of each of `N` matrices.
#[inline(always)]
pub(crate) fn rows_at<'a, T: Element, const N: usize>(
    matrices: &'a [Rows<'_, T>],
    row: usize,
) -> [&'a [T]; N] {
    let mut rows: [&[T]; N] = [&[]; N];
    for (to, matrix) in rows.iter_mut().zip(matrices) {
        *to = matrix.row(row);
    }
    rows
}

/// Element `at` of each of `rows`, widened.
///
/// It does not check bounds: the compiler does not see that they hold, and would calculate up to the
/// last 16 columns of each row one by one. It does not use `array::from_fn` or `zip`, which are not
/// inlined when another crate instantiates this.
///
/// # Safety
/// Each row must have more than `at` elements.
#[inline(always)]
unsafe fn column<T: Float, const N: usize>(rows: [&[T]; N], at: usize) -> [T::Wide; N] {
    let mut values = [T::Wide::ZERO; N];
    for (n, row) in rows.iter().enumerate() {
        // SAFETY: promised by the caller.
        values[n] = unsafe { row.get_unchecked(at) }.wide();
    }
    values
}

/// Merges the second half of the lanes into the first until one lane is left. The number of lanes
/// must be a power of two.
#[inline(always)]
pub(crate) fn merge_halves<W: Copy, const N: usize>(
    mut lanes: [W; N],
    merge: &impl Fn(W, W) -> W,
) -> W {
    let mut width = N / 2;
    while width > 0 {
        let (low, high) = lanes.split_at_mut(width);
        for (low, high) in low.iter_mut().zip(high) {
            *low = merge(*low, *high);
        }
        width /= 2;
    }
    lanes[0]
}
