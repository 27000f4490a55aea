//! Packing: copies slabs of A and B in the order in which a micro-kernel reads them.
//!
//! A *lane* is a row of A or a column of B. A *unit* is the operand of one multiplication: one
//! number, or two bf16 that are consecutive along k. A matrix is read in blocks of 16 x 16 units,
//! along its contiguous dim, and transposed in registers if the panel needs the other order.

use bytemuck::{Pod, Zeroable};
use half::bf16;

use super::MatrixRef;
use crate::core::dtype::Float;

/// Rows and columns of a block, in units: one 64-byte vector of 4-byte units.
pub(super) const BLOCK: usize = 16;

/// Prefetch distance in rows, which are too far apart for the hardware prefetcher.
const PREFETCH_ROWS: usize = 12;

type Block<U> = [[U; BLOCK]; BLOCK];

/// A unit of `DEPTH` elements of type `T` that are consecutive along k.
pub(super) trait Unit<T>: Pod {
    const DEPTH: usize;

    /// A unit from `DEPTH` elements; the second is ignored if `DEPTH` is 1.
    fn join(first: T, second: T) -> Self;

    /// 16 units from `16 * DEPTH` elements.
    fn join_contiguous(elements: &[T]) -> [Self; BLOCK];

    fn transpose(block: &mut Block<Self>) {
        transpose_by_swaps(block);
    }

    /// Reinterprets elements as units, if their layouts are equal. An incomplete last unit is
    /// dropped.
    fn of_elements(_: &[T]) -> Option<&[Self]> {
        None
    }
}

impl Unit<f64> for f64 {
    const DEPTH: usize = 1;

    #[inline(always)]
    fn of_elements(elements: &[f64]) -> Option<&[f64]> {
        Some(elements)
    }

    #[inline(always)]
    fn join(first: f64, _: f64) -> Self {
        first
    }

    #[inline(always)]
    fn join_contiguous(elements: &[f64]) -> [f64; BLOCK] {
        join_singles(elements)
    }
}

impl Unit<f32> for f32 {
    const DEPTH: usize = 1;

    #[inline(always)]
    fn of_elements(elements: &[f32]) -> Option<&[f32]> {
        Some(elements)
    }

    #[inline(always)]
    fn join(first: f32, _: f32) -> Self {
        first
    }

    #[inline(always)]
    fn join_contiguous(elements: &[f32]) -> [f32; BLOCK] {
        join_singles(elements)
    }

    #[inline(always)]
    fn transpose(block: &mut Block<f32>) {
        transpose_words(bytemuck::cast_mut(block));
    }
}

impl Unit<bf16> for f32 {
    const DEPTH: usize = 1;

    #[inline(always)]
    fn join(first: bf16, _: bf16) -> Self {
        first.wide()
    }

    #[inline(always)]
    fn join_contiguous(elements: &[bf16]) -> [f32; BLOCK] {
        join_singles(elements)
    }

    #[inline(always)]
    fn transpose(block: &mut Block<f32>) {
        transpose_words(bytemuck::cast_mut(block));
    }
}

#[inline(always)]
fn join_singles<T: Copy, U: Unit<T>>(elements: &[T]) -> [U; BLOCK] {
    let mut units = [U::zeroed(); BLOCK];
    for (unit, &element) in units.iter_mut().zip(elements) {
        *unit = U::join(element, element);
    }
    units
}

/// A pair of elements along k, the first in the low half: the operand of dot-product instructions.
impl Unit<bf16> for u32 {
    const DEPTH: usize = 2;

    #[inline(always)]
    fn join(first: bf16, second: bf16) -> Self {
        u32::from(first.to_bits()) | u32::from(second.to_bits()) << 16
    }

    /// `None` if the elements are not aligned to 4 bytes.
    #[inline(always)]
    fn of_elements(elements: &[bf16]) -> Option<&[u32]> {
        bytemuck::try_cast_slice(&elements[..elements.len() / 2 * 2]).ok()
    }

    /// Machines with bf16 dot products are little-endian, so two consecutive elements are a unit.
    #[inline(always)]
    fn join_contiguous(elements: &[bf16]) -> [u32; BLOCK] {
        bytemuck::pod_read_unaligned(bytemuck::cast_slice(elements))
    }

    #[inline(always)]
    fn transpose(block: &mut Block<u32>) {
        transpose_words(block);
    }
}

/// Stores lane i at `panel[i * units..]`, where `units` is the number of units per lane. This is
/// the order for micro-kernels that broadcast units of single lanes.
#[inline(always)]
pub(super) fn pack_rows<T: Pod, U: Unit<T>>(lanes: MatrixRef<'_, T>, panel: &mut [U]) {
    let units = lanes.cols().div_ceil(U::DEPTH);
    for (lane, row) in (0..lanes.rows()).zip(panel.chunks_mut(units)) {
        if !lanes.rows_are_contiguous() {
            for (unit, to) in row.iter_mut().enumerate() {
                *to = strided_unit(&lanes, lane, unit);
            }
            continue;
        }

        for (first, to) in (0..units).step_by(BLOCK).zip(row.chunks_mut(BLOCK)) {
            copy_units(to, &contiguous_units(&lanes, lane, first));
        }
    }
}

/// Packs panels of `width` lanes in one pass; panels start `stride` units apart. Unit p of lane i
/// of a panel is stored at `p * width + i`. Fast if adjacent lanes are adjacent in memory: then the
/// lanes of all whole panels are read as one slice.
#[inline(always)]
pub(super) fn pack_panels_by_depth<T: Pod, U: Unit<T>>(
    lanes: MatrixRef<'_, T>,
    width: usize,
    panels: &mut [U],
    stride: usize,
) {
    for unit in 0..lanes.cols().div_ceil(U::DEPTH) {
        prefetch_depths::<T, U>(&lanes, unit);
        let whole = lanes.rows() / width;
        let mut packed = 0;
        if let Some((firsts, lasts)) = adjacent_elements::<T, U>(&lanes, 0, unit, whole * width) {
            let sources = firsts.chunks_exact(width).zip(lasts.chunks_exact(width));
            for (panel, (firsts, lasts)) in panels.chunks_mut(stride).zip(sources) {
                join_units(firsts, lasts, &mut panel[unit * width..][..width]);
            }
            packed = whole;
        }
        for panel in packed..lanes.rows().div_ceil(width) {
            let to = &mut panels[panel * stride + unit * width..][..width];
            write_units_at_depth(&lanes, panel * width, unit, to);
        }
    }
}

/// Stores unit p of lane i at `panel[p * width + i]`. This is the order for micro-kernels that load
/// unit p of all lanes together.
///
/// `lanes` is [at most width, depth]; the rest of the panel is filled with zeros.
#[inline(always)]
pub(super) fn pack_by_depth<T: Pod, U: Unit<T>>(
    lanes: MatrixRef<'_, T>,
    width: usize,
    panel: &mut [U],
) {
    if !lanes.rows_are_contiguous() {
        for (unit, row) in panel.chunks_exact_mut(width).enumerate() {
            prefetch_depths::<T, U>(&lanes, unit);
            write_units_at_depth(&lanes, 0, unit, &mut row[..width]);
        }
        return;
    }

    let mut block = Block::<U>::zeroed();
    for lane in (0..width).step_by(BLOCK) {
        for (step, rows) in panel.chunks_mut(BLOCK * width).enumerate() {
            read_contiguous_lanes(&lanes, lane, step * BLOCK, &mut block);
            U::transpose(&mut block);

            let live = BLOCK.min(width - lane);
            for (row, units) in rows.chunks_exact_mut(width).zip(&block) {
                copy_units(&mut row[lane..lane + live], units);
            }
        }
    }
}

/// Stores 16 units of lane 0, the same 16 of lane 1 and so on, then the next 16. This is the order
/// for tile registers.
///
/// `lanes` is [at most width, depth] and `width` a multiple of 16.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) fn pack_by_lane<T: Pod, U: Unit<T>>(
    lanes: MatrixRef<'_, T>,
    width: usize,
    panel: &mut [U],
) {
    for (step, rows) in panel.chunks_exact_mut(BLOCK * width).enumerate() {
        let (tiles, _) = rows.as_chunks_mut::<BLOCK>();
        let (tiles, _) = tiles.as_chunks_mut::<BLOCK>();
        for (index, tile) in tiles.iter_mut().enumerate() {
            let (lane, unit) = (index * BLOCK, step * BLOCK);
            if lanes.rows_are_contiguous() {
                read_contiguous_lanes(&lanes, lane, unit, tile);
                continue;
            }

            for (unit, units) in (unit..).zip(&mut *tile) {
                write_units_at_depth(&lanes, lane, unit, units);
            }
            U::transpose(tile);
        }
    }
}

/// Prefetches all lanes of the unit that is [`PREFETCH_ROWS`] elements ahead along k, if adjacent
/// lanes are adjacent in memory.
#[inline(always)]
fn prefetch_depths<T: Pod, U: Unit<T>>(lanes: &MatrixRef<'_, T>, unit: usize) {
    let by_depth = lanes.transposed();
    if by_depth.rows_are_contiguous() {
        let first = unit * U::DEPTH + PREFETCH_ROWS;
        for depth in first..first + U::DEPTH {
            by_depth.prefetch_row(depth);
        }
    }
}

/// `block[i][p]` is unit `first_unit + p` of lane `first_lane + i`, zero outside of `lanes`. The
/// lanes must be contiguous along k.
#[inline(always)]
fn read_contiguous_lanes<T: Pod, U: Unit<T>>(
    lanes: &MatrixRef<'_, T>,
    first_lane: usize,
    first_unit: usize,
    block: &mut Block<U>,
) {
    for (lane, units) in (first_lane..).zip(block) {
        *units = match lane < lanes.rows() {
            true => contiguous_units(lanes, lane, first_unit),
            false => [U::zeroed(); BLOCK],
        };
    }
}

/// 16 units of a lane that is contiguous along k, zero outside of `lanes`.
#[inline(always)]
fn contiguous_units<T: Pod, U: Unit<T>>(
    lanes: &MatrixRef<'_, T>,
    lane: usize,
    first_unit: usize,
) -> [U; BLOCK] {
    let depth = first_unit * U::DEPTH;
    let whole = BLOCK * U::DEPTH;
    let live = whole.min(lanes.cols().saturating_sub(depth));
    if live == whole {
        return U::join_contiguous(lanes.row(lane, depth, whole));
    }

    let mut padded = [T::zeroed(); 2 * BLOCK];
    if live > 0 {
        padded[..live].copy_from_slice(lanes.row(lane, depth, live));
    }
    U::join_contiguous(&padded[..whole])
}

/// Writes unit `unit` of the lanes from `first_lane` on to `units`, zero outside of `lanes`. It is
/// fast if adjacent lanes are adjacent in memory.
///
/// Copies from memory to memory: an array in between would be on the stack, and loads from it wait
/// for its stores.
#[inline(always)]
fn write_units_at_depth<T: Pod, U: Unit<T>>(
    lanes: &MatrixRef<'_, T>,
    first_lane: usize,
    unit: usize,
    units: &mut [U],
) {
    let live = units.len().min(lanes.rows().saturating_sub(first_lane));
    let Some((firsts, lasts)) = adjacent_elements::<T, U>(lanes, first_lane, unit, live) else {
        for (lane, to) in (first_lane..).zip(units) {
            *to = strided_unit(lanes, lane, unit);
        }
        return;
    };

    // Callers pass slices of constant length, for which this call compiles to vector moves.
    if live == units.len() {
        join_units(firsts, lasts, units);
        return;
    }
    let (units, dead) = units.split_at_mut(live);
    join_units(firsts, lasts, units);
    dead.fill(U::zeroed());
}

/// The first and the last elements of unit `unit` of `count` lanes, if they are adjacent in memory.
#[inline(always)]
fn adjacent_elements<'a, T: Pod, U: Unit<T>>(
    lanes: &MatrixRef<'a, T>,
    first_lane: usize,
    unit: usize,
    count: usize,
) -> Option<(&'a [T], &'a [T])> {
    let by_depth = lanes.transposed();
    let (first, last) = (unit * U::DEPTH, unit * U::DEPTH + U::DEPTH - 1);
    if !by_depth.rows_are_contiguous() || last >= lanes.cols() || count == 0 {
        return None;
    }
    Some((by_depth.row(first, first_lane, count), by_depth.row(last, first_lane, count)))
}

#[inline(always)]
fn join_units<T: Copy, U: Unit<T>>(firsts: &[T], lasts: &[T], units: &mut [U]) {
    for ((to, &first), &last) in units.iter_mut().zip(firsts).zip(lasts) {
        *to = U::join(first, last);
    }
}

/// A unit of a lane with any strides, zero outside of `lanes`.
#[inline(always)]
fn strided_unit<T: Pod, U: Unit<T>>(lanes: &MatrixRef<'_, T>, lane: usize, unit: usize) -> U {
    let element = |depth| match lane < lanes.rows() && depth < lanes.cols() {
        true => lanes.get(lane, depth),
        false => T::zeroed(),
    };
    let first = unit * U::DEPTH;
    U::join(element(first), element(first + U::DEPTH - 1))
}

/// Fills `row` from `units`. Copies of the lengths that kernels use compile to vector moves; a copy
/// of unknown length would call `memcpy`.
#[inline(always)]
fn copy_units<U: Pod>(row: &mut [U], units: &[U; BLOCK]) {
    match row.len() {
        BLOCK => row.copy_from_slice(units),
        8 => row.copy_from_slice(&units[..8]),
        _ => row.iter_mut().zip(units).for_each(|(to, &from)| *to = from),
    }
}

#[inline(always)]
fn transpose_words(block: &mut Block<u32>) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx512f") {
        // SAFETY: the feature was detected.
        unsafe { transpose_avx512(block) };
        return;
    }

    transpose_by_swaps(block);
}

fn transpose_by_swaps<U>(block: &mut Block<U>) {
    for i in 1..BLOCK {
        let (above, below) = block.split_at_mut(i);
        for (row, lower) in above.iter_mut().zip(&mut below[0]) {
            std::mem::swap(&mut row[i], lower);
        }
    }
}

/// Transposes in four steps: after step s, blocks of 2^s x 2^s words are transposed.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
#[inline]
fn transpose_avx512(block: &mut Block<u32>) {
    use std::arch::x86_64::*;

    // SAFETY: plain vectors of the same size, every bit pattern valid.
    let rows: [__m512i; BLOCK] = unsafe { std::mem::transmute(*block) };
    let mut words = [_mm512_setzero_si512(); BLOCK];
    for i in 0..8 {
        words[2 * i] = _mm512_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
        words[2 * i + 1] = _mm512_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
    }

    let mut quads = [_mm512_setzero_si512(); BLOCK];
    for i in (0..BLOCK).step_by(4) {
        quads[i] = _mm512_unpacklo_epi64(words[i], words[i + 2]);
        quads[i + 1] = _mm512_unpackhi_epi64(words[i], words[i + 2]);
        quads[i + 2] = _mm512_unpacklo_epi64(words[i + 1], words[i + 3]);
        quads[i + 3] = _mm512_unpackhi_epi64(words[i + 1], words[i + 3]);
    }

    // 128-bit lane l of quads[4 g + c] holds rows 4 g .. 4 g + 4 of column 4 l + c. The last two
    // steps transpose these lanes.
    let mut columns = [_mm512_setzero_si512(); BLOCK];
    for c in 0..4 {
        let low = _mm512_shuffle_i32x4::<0x88>(quads[c], quads[4 + c]);
        let low_odd = _mm512_shuffle_i32x4::<0xdd>(quads[c], quads[4 + c]);
        let high = _mm512_shuffle_i32x4::<0x88>(quads[8 + c], quads[12 + c]);
        let high_odd = _mm512_shuffle_i32x4::<0xdd>(quads[8 + c], quads[12 + c]);

        columns[c] = _mm512_shuffle_i32x4::<0x88>(low, high);
        columns[4 + c] = _mm512_shuffle_i32x4::<0x88>(low_odd, high_odd);
        columns[8 + c] = _mm512_shuffle_i32x4::<0xdd>(low, high);
        columns[12 + c] = _mm512_shuffle_i32x4::<0xdd>(low_odd, high_odd);
    }

    // SAFETY: plain vectors of the same size, every bit pattern valid.
    *block = unsafe { std::mem::transmute::<[__m512i; BLOCK], Block<u32>>(columns) };
}
