//! Strided views of matrices in a slice, checked once at construction.

use std::marker::PhantomData;

use super::output::{Output, Sum, Update};
use crate::cpu::prefetch::prefetch;

/// The layout of a batch of matrices. An empty batch is one matrix.
#[derive(Debug, Clone, Copy)]
struct Layout<'a> {
    offset: isize,
    rows: usize,
    cols: usize,
    row_stride: isize,
    col_stride: isize,
    batch: &'a [usize],
    batch_strides: &'a [isize],
}

impl<'a> Layout<'a> {
    /// Checks that every element is in a slice of `len` elements.
    fn new(
        len: usize,
        offset: usize,
        [rows, cols]: [usize; 2],
        [row_stride, col_stride]: [isize; 2],
        (batch, batch_strides): (&'a [usize], &'a [isize]),
    ) -> Self {
        assert_eq!(batch.len(), batch_strides.len(), "a batch needs one stride per extent");
        let mut layout =
            Self { offset: 0, rows, cols, row_stride, col_stride, batch, batch_strides };
        if layout.dims().any(|(extent, _)| extent == 0) {
            return layout;
        }

        let start = offset as i128;
        let (mut lowest, mut highest) = (start, start);
        for (extent, stride) in layout.dims() {
            let reach = (extent as i128 - 1).saturating_mul(stride as i128);
            lowest = lowest.saturating_add(reach.min(0));
            highest = highest.saturating_add(reach.max(0));
        }

        assert!(
            lowest >= 0 && highest < len as i128,
            "{layout:?} at offset {offset} is out of bounds of its slice of {len} elements"
        );
        layout.offset = offset as isize;
        layout
    }

    /// Checks that no two indices address the same element, so that no two threads write it.
    fn without_overlap(self) -> Self {
        if self.dims().any(|(extent, _)| extent == 0) {
            return self;
        }

        // In order of increasing stride, each dim must step over the span of the dims before it.
        let mut spanned: u128 = 0;
        let mut last = None;
        loop {
            let next = self
                .dims()
                .enumerate()
                .filter(|&(_, (extent, _))| extent > 1)
                .map(|(index, (extent, stride))| (stride.unsigned_abs(), index, extent))
                .filter(|&(stride, index, _)| last.is_none_or(|last| (stride, index) > last))
                .min();
            let Some((stride, index, extent)) = next else {
                return self;
            };

            assert!(stride as u128 > spanned, "{self:?} may address an element twice");
            spanned += (extent as u128 - 1) * stride as u128;
            last = Some((stride, index));
        }
    }

    fn dims(&self) -> impl Iterator<Item = (usize, isize)> + use<'a> {
        let matrix = [(self.rows, self.row_stride), (self.cols, self.col_stride)];
        let batch = self.batch.iter().copied().zip(self.batch_strides.iter().copied());
        batch.chain(matrix)
    }

    fn transposed(self) -> Self {
        Self {
            rows: self.cols,
            cols: self.rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
            ..self
        }
    }

    /// Matrix `index` of the batch, in row-major order of the batch dims.
    fn at(self, mut index: usize) -> Self {
        let mut offset = self.offset;
        for (&extent, &stride) in self.batch.iter().zip(self.batch_strides).rev() {
            offset += (index % extent) as isize * stride;
            index /= extent;
        }

        Self { offset, batch: &[], batch_strides: &[], ..self }
    }

    /// The `rows` x `cols` submatrix whose first element is (row, col). It must be within bounds.
    fn part(self, [row, col]: [usize; 2], [rows, cols]: [usize; 2]) -> Self {
        assert!(row + rows <= self.rows && col + cols <= self.cols);
        let empty = rows == 0 || cols == 0;
        let offset = if empty { 0 } else { self.index(row, col) };

        Self { offset, rows, cols, ..self }
    }

    fn index(&self, row: usize, col: usize) -> isize {
        self.offset + row as isize * self.row_stride + col as isize * self.col_stride
    }
}

/// A read-only matrix, or a batch of them, with any strides, including zero and negative ones.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MatrixRef<'a, T> {
    data: &'a [T],
    layout: Layout<'a>,
}

impl<'a, T: Copy> MatrixRef<'a, T> {
    /// `data` as a row-major matrix.
    ///
    /// # Panics
    /// If `data` has fewer than rows x cols elements.
    pub(crate) fn new(data: &'a [T], extents: [usize; 2]) -> Self {
        Self::strided(data, 0, extents, [extents[1] as isize, 1])
    }

    /// [rows, cols] elements: (i, j) is `data[offset + i * strides[0] + j * strides[1]]`.
    ///
    /// # Panics
    /// If an element is outside of `data`.
    pub(crate) fn strided(
        data: &'a [T],
        offset: usize,
        extents: [usize; 2],
        strides: [isize; 2],
    ) -> Self {
        Self::batched(data, offset, extents, strides, &[], &[])
    }

    /// A batch of matrices: `batch` has the extents of the batch dims, `batch_strides` their
    /// strides.
    ///
    /// # Panics
    /// If an element is outside of `data`, or `batch` and `batch_strides` differ in length.
    pub(crate) fn batched(
        data: &'a [T],
        offset: usize,
        extents: [usize; 2],
        strides: [isize; 2],
        batch: &'a [usize],
        batch_strides: &'a [isize],
    ) -> Self {
        let layout = Layout::new(data.len(), offset, extents, strides, (batch, batch_strides));
        Self { data, layout }
    }

    /// The transpose, without a copy.
    pub(crate) fn transposed(self) -> Self {
        Self { layout: self.layout.transposed(), ..self }
    }

    /// Rows of each matrix.
    pub(crate) fn rows(&self) -> usize {
        self.layout.rows
    }

    /// Columns of each matrix.
    pub(crate) fn cols(&self) -> usize {
        self.layout.cols
    }

    /// Extents of the batch; empty for one matrix.
    pub(crate) fn batch(&self) -> &'a [usize] {
        self.layout.batch
    }

    pub(super) fn at(self, index: usize) -> Self {
        Self { layout: self.layout.at(index), ..self }
    }

    pub(super) fn part(self, start: [usize; 2], extents: [usize; 2]) -> Self {
        Self { layout: self.layout.part(start, extents), ..self }
    }

    pub(super) fn get(&self, row: usize, col: usize) -> T {
        self.data[self.layout.index(row, col) as usize]
    }

    pub(super) fn rows_are_contiguous(&self) -> bool {
        self.layout.col_stride == 1
    }

    /// The elements from (0, 0) on and the row stride, if rows are contiguous and the row stride is
    /// not negative.
    #[inline(always)]
    pub(super) fn contiguous_rows(&self) -> Option<(&'a [T], usize)> {
        let stride = usize::try_from(self.layout.row_stride).ok()?;
        let start = self.layout.index(0, 0) as usize;
        self.rows_are_contiguous().then(|| (&self.data[start..], stride))
    }

    /// Divides the elements into `count` parts and prefetches part `index`. Does nothing if neither
    /// rows nor columns are contiguous.
    #[inline(always)]
    pub(super) fn prefetch(&self, index: usize, count: usize) {
        let by_rows = match self.rows_are_contiguous() {
            true => *self,
            false => self.transposed(),
        };
        let rows = by_rows.rows();
        if !by_rows.rows_are_contiguous() || by_rows.cols() == 0 {
            return;
        }
        for row in rows * index / count..rows * (index + 1) / count {
            by_rows.prefetch_row(row);
        }
    }

    /// Prefetches a row, if it exists. Rows must be contiguous.
    #[inline(always)]
    pub(super) fn prefetch_row(&self, row: usize) {
        if row < self.rows() {
            prefetch(self.row(row, 0, self.cols()));
        }
    }

    /// `len` elements of a row. Rows must be contiguous.
    #[inline(always)]
    pub(super) fn row(&self, row: usize, first: usize, len: usize) -> &'a [T] {
        debug_assert!(self.rows_are_contiguous());
        let start = self.layout.index(row, first) as usize;
        &self.data[start..start + len]
    }
}

/// A mutable matrix, or a batch of them. No two elements share memory.
#[derive(Debug)]
pub(crate) struct MatrixMut<'a, T> {
    data: &'a mut [T],
    layout: Layout<'a>,
}

impl<'a, T: Copy> MatrixMut<'a, T> {
    /// `data` as a row-major matrix.
    ///
    /// # Panics
    /// If `data` has fewer than rows x cols elements.
    pub(crate) fn new(data: &'a mut [T], extents: [usize; 2]) -> Self {
        Self::strided(data, 0, extents, [extents[1] as isize, 1])
    }

    /// [rows, cols] elements: (i, j) is `data[offset + i * strides[0] + j * strides[1]]`.
    ///
    /// # Panics
    /// If an element is outside of `data`, or a stride is smaller than the span of the dims with
    /// smaller strides.
    pub(crate) fn strided(
        data: &'a mut [T],
        offset: usize,
        extents: [usize; 2],
        strides: [isize; 2],
    ) -> Self {
        Self::batched(data, offset, extents, strides, &[], &[])
    }

    /// A batch of matrices: `batch` has the extents of the batch dims, `batch_strides` their
    /// strides.
    ///
    /// # Panics
    /// As [`MatrixMut::strided`], and if `batch` and `batch_strides` differ in length.
    pub(crate) fn batched(
        data: &'a mut [T],
        offset: usize,
        extents: [usize; 2],
        strides: [isize; 2],
        batch: &'a [usize],
        batch_strides: &'a [isize],
    ) -> Self {
        let layout = Layout::new(data.len(), offset, extents, strides, (batch, batch_strides));
        Self { data, layout: layout.without_overlap() }
    }

    /// The transpose, without a copy.
    #[cfg(test)]
    pub(crate) fn transposed(self) -> Self {
        Self { layout: self.layout.transposed(), ..self }
    }

    /// Rows of each matrix.
    pub(crate) fn rows(&self) -> usize {
        self.layout.rows
    }

    /// Columns of each matrix.
    pub(crate) fn cols(&self) -> usize {
        self.layout.cols
    }

    /// Extents of the batch; empty for one matrix.
    pub(crate) fn batch(&self) -> &'a [usize] {
        self.layout.batch
    }

    /// A view of the same memory that threads can share.
    pub(super) fn target<S: Sum>(&mut self) -> Target<'_, S>
    where
        T: Output<S>,
    {
        let data = self.data.as_mut_ptr().cast();
        Target { data, is_narrow: T::IS_NARROW, layout: self.layout, borrow: PhantomData }
    }
}

/// A [`MatrixMut`] shared by threads, each of which writes disjoint elements. Whether its elements
/// are accumulators or narrower is a value, so that products are compiled once for both.
pub(super) struct Target<'a, S> {
    data: *mut (),
    /// Whether the elements are of type [`Sum::Narrow`] instead of `S`.
    is_narrow: bool,
    layout: Layout<'a>,
    borrow: PhantomData<&'a mut [S]>,
}

impl<S> Clone for Target<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for Target<'_, S> {}

// SAFETY: elements are accessed only through `update`, whose callers guarantee that no two threads
// access the same element. Both types of elements are `Send`, because `Output` is.
unsafe impl<S> Send for Target<'_, S> {}
// SAFETY: as above.
unsafe impl<S> Sync for Target<'_, S> {}

impl<S: Sum> Target<'_, S> {
    pub(super) fn rows(&self) -> usize {
        self.layout.rows
    }

    pub(super) fn cols(&self) -> usize {
        self.layout.cols
    }

    pub(super) fn at(self, index: usize) -> Self {
        Self { layout: self.layout.at(index), ..self }
    }

    pub(super) fn part(self, start: [usize; 2], extents: [usize; 2]) -> Self {
        Self { layout: self.layout.part(start, extents), ..self }
    }

    pub(super) fn transposed(self) -> Self {
        Self { layout: self.layout.transposed(), ..self }
    }

    /// Whether the row stride is smaller than the column stride.
    pub(super) fn is_column_major(&self) -> bool {
        self.layout.row_stride.unsigned_abs() < self.layout.col_stride.unsigned_abs()
    }

    /// Updates all elements with sums, whose rows are `stride` apart.
    ///
    /// # Safety
    /// No other thread may access the elements meanwhile.
    #[inline(always)]
    pub(super) unsafe fn update(self, sums: &[S], stride: usize, update: Update) {
        for (row, sums) in sums.chunks_exact(stride).take(self.layout.rows).enumerate() {
            let sums = &sums[..self.layout.cols];
            // SAFETY: the row and the columns are in the matrix, and `is_narrow` tells its type.
            unsafe {
                match (self.is_narrow, update) {
                    (false, Update::Replace) => {
                        self.update_row(row, sums, |_, sum| S::replace(sum))
                    }
                    (false, Update::Add) => self.update_row(row, sums, |c: S, sum| c.add(sum)),
                    (true, Update::Replace) => {
                        self.update_row(row, sums, |_, sum| S::Narrow::replace(sum));
                    }
                    (true, Update::Add) => {
                        self.update_row(row, sums, |c: S::Narrow, sum| c.add(sum));
                    }
                }
            }
        }
    }

    /// Replaces the elements of a row by `update(element, sum)`, one per sum.
    ///
    /// # Safety
    /// `row` and `sums.len()` must be within the matrix, its elements must be of type `T`, and no
    /// other thread may access them meanwhile.
    #[inline(always)]
    unsafe fn update_row<T: Copy>(self, row: usize, sums: &[S], update: impl Fn(T, S) -> T) {
        // SAFETY: the layout was checked against the slice when the view was constructed.
        let start = unsafe { self.data.cast::<T>().offset(self.layout.index(row, 0)) };

        if self.layout.col_stride == 1 {
            // SAFETY: consecutive elements of the row, which only the caller accesses.
            let row = unsafe { std::slice::from_raw_parts_mut(start, sums.len()) };
            for (element, &sum) in row.iter_mut().zip(sums) {
                *element = update(*element, sum);
            }
            return;
        }

        for (col, &sum) in sums.iter().enumerate() {
            // SAFETY: an element of the row, which only the caller accesses.
            let element = unsafe { &mut *start.offset(col as isize * self.layout.col_stride) };
            *element = update(*element, sum);
        }
    }
}
