//! One row of f32 times columns that are contiguous along k, as in a linear layer for one token,
//! with AVX-512 and without packing.
//!
//! A vector of accumulators belongs to 16 columns, as in the micro-kernel, so each is the same
//! chain of multiply-adds. The columns are read in blocks of 16 along k, which are transposed in
//! registers. A block reads whole cache lines, because columns whose distance is a power of two
//! compete for the same cache sets.

use std::arch::x86_64::*;

/// Columns per vector of accumulators.
pub(super) const LANES: usize = 16;

/// Elements of 16 columns, 16 along k.
#[repr(C, align(64))]
struct Block([[f32; LANES]; LANES]);

/// Writes to `sums` the product of `row` and the columns `columns[j * stride..][..row.len()]`.
#[target_feature(enable = "avx512f")]
pub(super) fn multiply_row(row: &[f32], columns: &[f32], stride: usize, sums: &mut [f32]) {
    let mut first = 0;
    // Computes two vectors at a time: one chain of multiply-adds takes as long as the loads of two.
    for sums in sums.chunks_mut(2 * LANES) {
        let columns = &columns[first * stride..][..(sums.len() - 1) * stride + row.len()];
        first += sums.len();
        // Missing columns read the last column.
        let start = |j: usize| j.min(sums.len() - 1) * stride;
        let starts = [0, LANES].map(|first| std::array::from_fn(|lane| start(first + lane)));
        // SAFETY: the columns are as long as the row.
        unsafe {
            match sums.len() > LANES {
                true => multiply_columns(row, columns, &starts, sums),
                false => multiply_columns(row, columns, &[starts[0]], sums),
            }
        }
    }
}

/// The products of `row` and the columns that start at `starts`.
///
/// # Safety
/// `columns` must have as many elements as `row` from each start.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn multiply_columns<const COUNT: usize>(
    row: &[f32],
    columns: &[f32],
    starts: &[[usize; LANES]; COUNT],
    sums: &mut [f32],
) {
    let mut vectors = [_mm512_setzero_ps(); COUNT];
    let (blocks, rest) = row.as_chunks::<LANES>();
    let mut depth = 0;
    for row in blocks {
        for (vector, starts) in vectors.iter_mut().zip(starts) {
            // SAFETY: 16 elements from each start are in `columns`, as this block is in the row.
            let block = unsafe { load_block(columns.as_ptr().add(depth), starts) };
            *vector = multiply_block(row, &block, *vector);
        }
        depth += LANES;
    }

    for element in rest {
        for (vector, starts) in vectors.iter_mut().zip(starts) {
            let units = starts.map(|start| columns[start + depth]);
            // SAFETY: `units` has 16 elements.
            let units = unsafe { _mm512_loadu_ps(units.as_ptr()) };
            *vector = _mm512_fmadd_ps(_mm512_set1_ps(*element), units, *vector);
        }
        depth += 1;
    }
    for (sums, vector) in sums.chunks_mut(LANES).zip(vectors) {
        let mut lanes = [0.0; LANES];
        // SAFETY: `lanes` has 16 elements.
        unsafe { _mm512_storeu_ps(lanes.as_mut_ptr(), vector) };
        sums.copy_from_slice(&lanes[..sums.len()]);
    }
}

/// # Safety
/// 16 elements after each start must be readable.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn load_block(columns: *const f32, starts: &[usize; LANES]) -> Block {
    let mut block = Block([[0.0; LANES]; LANES]);
    for (to, start) in block.0.iter_mut().zip(starts) {
        // SAFETY: the caller guarantees the elements; `to` has 16 and is aligned.
        unsafe { _mm512_store_ps(to.as_mut_ptr(), _mm512_loadu_ps(columns.add(*start))) };
    }
    block
}

/// Adds the products of 16 elements of the row and of each column to `sums`.
#[target_feature(enable = "avx512f")]
#[inline]
fn multiply_block(row: &[f32; LANES], columns: &Block, mut sums: __m512) -> __m512 {
    for first in (0..LANES).step_by(4) {
        for (element, units) in row[first..].iter().zip(load_transposed(columns, first)) {
            sums = _mm512_fmadd_ps(_mm512_set1_ps(*element), units, sums);
        }
    }
    sums
}

/// Four vectors: the elements `first` to `first + 3` along k of all columns.
#[target_feature(enable = "avx512f")]
#[inline]
fn load_transposed(columns: &Block, first: usize) -> [__m512; 4] {
    let mut rows = [_mm512_setzero_ps(); 4];
    for (i, row) in rows.iter_mut().enumerate() {
        // Four elements of column 4 l + i become the 128-bit lane l.
        // SAFETY: four elements of a column of the block, which are aligned.
        unsafe {
            let four = |lane: usize| columns.0[4 * lane + i][first..first + 4].as_ptr();
            *row = _mm512_castps128_ps512(_mm_load_ps(four(0)));
            *row = _mm512_insertf32x4::<1>(*row, _mm_load_ps(four(1)));
            *row = _mm512_insertf32x4::<2>(*row, _mm_load_ps(four(2)));
            *row = _mm512_insertf32x4::<3>(*row, _mm_load_ps(four(3)));
        }
    }

    // Transposes the 4 x 4 matrix in each lane.
    let low = [
        _mm512_castps_pd(_mm512_unpacklo_ps(rows[0], rows[1])),
        _mm512_castps_pd(_mm512_unpacklo_ps(rows[2], rows[3])),
    ];
    let high = [
        _mm512_castps_pd(_mm512_unpackhi_ps(rows[0], rows[1])),
        _mm512_castps_pd(_mm512_unpackhi_ps(rows[2], rows[3])),
    ];
    [
        _mm512_castpd_ps(_mm512_unpacklo_pd(low[0], low[1])),
        _mm512_castpd_ps(_mm512_unpackhi_pd(low[0], low[1])),
        _mm512_castpd_ps(_mm512_unpacklo_pd(high[0], high[1])),
        _mm512_castpd_ps(_mm512_unpackhi_pd(high[0], high[1])),
    ]
}
