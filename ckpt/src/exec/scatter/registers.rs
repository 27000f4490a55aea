//! Transposing squares of elements in registers, and stores that bypass the caches.
//!
//! A square has `B` lines of 16 bytes, with `B` elements each. It is transposed in log2 `B` rounds;
//! each interleaves line `i` with line `i + B / 2` for all `i`, which moves one bit of an element's
//! position from column to row. SSE2, which every x86-64 has, interleaves 16 bytes in one
//! instruction. LLVM vectorizes plain loops only for larger elements; for two-byte elements the
//! intrinsics are three times as fast.
//!
//! A store of part of a cache line first reads the line from memory and evicts another one. Both
//! are unnecessary when the whole line is about to be overwritten. [`stream`] avoids both: it is
//! twice as fast for targets far larger than the caches.

use std::ops::Range;

use super::place::Destination;

/// Bytes per line of a square.
pub(super) const LINE: usize = 16;

/// Transposes the square at byte `number * LINE` of the lines. Elements have `N` bytes, and `N * B`
/// is [`LINE`].
#[inline(always)]
pub(super) fn transpose_square<const N: usize, const B: usize, const C: usize>(
    lines: &[&[u8; C]; B],
    number: usize,
) -> [[u8; LINE]; B] {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 has SSE2.
    unsafe {
        x86_64::transpose_square::<N, B, C>(lines, number)
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let mut transposed = [[0; LINE]; B];
        for (at, line) in lines.iter().enumerate() {
            let line: &[u8; LINE] = &line.as_chunks().0[number];
            for (transposed, element) in transposed.iter_mut().zip(line.as_chunks::<N>().0) {
                transposed.as_chunks_mut::<N>().0[at] = *element;
            }
        }
        transposed
    }
}

/// Writes rows to their ranges of the target, with non-temporal stores on x86-64.
pub(super) fn stream<'r>(
    place: &mut dyn Destination,
    rows: impl Iterator<Item = (Range<u64>, &'r [u8])>,
) {
    let mut stores = Stores;
    for (to, row) in rows {
        // SAFETY: `bytes` is exclusively ours and we do not read it; no other code can before
        // `stores` is dropped.
        unsafe { stores.store(place.bytes(to), row) };
    }
}

/// Non-temporal stores, which complete when this is dropped.
struct Stores;

impl Stores {
    /// # Safety
    /// The caller must not read or write the memory of `to` before this is dropped.
    #[inline]
    unsafe fn store(&mut self, to: &mut [u8], from: &[u8]) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: every x86-64 has SSE2; the rest is this function's contract.
        unsafe {
            x86_64::store(to, from);
        }
        #[cfg(not(target_arch = "x86_64"))]
        to.copy_from_slice(from);
    }
}

impl Drop for Stores {
    fn drop(&mut self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: every x86-64 has SSE.
        unsafe {
            std::arch::x86_64::_mm_sfence();
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use std::arch::x86_64::*;

    use crate::exec::scatter::registers::LINE;

    /// Bytes of a cache line.
    const CACHE_LINE: usize = 64;

    #[inline]
    #[target_feature(enable = "sse2")]
    pub(super) fn transpose_square<const N: usize, const B: usize, const C: usize>(
        lines: &[&[u8; C]; B],
        number: usize,
    ) -> [[u8; LINE]; B] {
        let mut square = [_mm_setzero_si128(); B];
        for (register, line) in square.iter_mut().zip(lines) {
            *register = load(&line.as_chunks().0[number]);
        }
        for _ in 0..B.ilog2() {
            let before = square;
            for at in 0..B / 2 {
                let pair = interleaved::<N>(before[at], before[at + B / 2]);
                (square[2 * at], square[2 * at + 1]) = pair;
            }
        }
        let mut transposed = [[0; LINE]; B];
        for (line, register) in transposed.iter_mut().zip(square) {
            *line = bytes(register);
        }
        transposed
    }

    #[inline]
    #[target_feature(enable = "sse2")]
    fn interleaved<const N: usize>(a: __m128i, b: __m128i) -> (__m128i, __m128i) {
        match N {
            1 => (_mm_unpacklo_epi8(a, b), _mm_unpackhi_epi8(a, b)),
            2 => (_mm_unpacklo_epi16(a, b), _mm_unpackhi_epi16(a, b)),
            4 => (_mm_unpacklo_epi32(a, b), _mm_unpackhi_epi32(a, b)),
            _ => (_mm_unpacklo_epi64(a, b), _mm_unpackhi_epi64(a, b)),
        }
    }

    // `load` and `bytes` each compile to one instruction.

    #[inline]
    #[target_feature(enable = "sse2")]
    fn load(bytes: &[u8; LINE]) -> __m128i {
        let bits = u128::from_le_bytes(*bytes);
        _mm_set_epi64x((bits >> 64) as i64, bits as i64)
    }

    #[inline]
    #[target_feature(enable = "sse2")]
    fn bytes(register: __m128i) -> [u8; LINE] {
        let low = _mm_cvtsi128_si64(register) as u64;
        let high = _mm_cvtsi128_si64(_mm_unpackhi_epi64(register, register)) as u64;
        (u128::from(high) << 64 | u128::from(low)).to_le_bytes()
    }

    /// # Safety
    /// The memory of `to` must not be read or written before the next fence.
    #[inline]
    #[target_feature(enable = "sse2")]
    pub(super) unsafe fn store(to: &mut [u8], from: &[u8]) {
        let head = to.as_ptr().align_offset(CACHE_LINE).min(to.len());
        let (to_head, to) = to.split_at_mut(head);
        let (from_head, from) = from.split_at(head);
        to_head.copy_from_slice(from_head);

        let (to_lines, to_tail) = to.as_chunks_mut::<CACHE_LINE>();
        let (from_lines, from_tail) = from.as_chunks::<CACHE_LINE>();
        for (to, from) in to_lines.iter_mut().zip(from_lines) {
            let (to, _) = to.as_chunks_mut::<LINE>();
            let (from, _) = from.as_chunks::<LINE>();
            for (to, from) in to.iter_mut().zip(from) {
                // SAFETY: 16 bytes, aligned to a cache line.
                unsafe { _mm_stream_si128((&raw mut *to).cast(), load(from)) };
            }
        }
        to_tail.copy_from_slice(from_tail);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<const N: usize, const B: usize>() {
        let lines: [[u8; 2 * LINE]; B] =
            std::array::from_fn(|line| std::array::from_fn(|at| (line * 2 * LINE + at) as u8));
        for number in [0, 1] {
            let transposed = transpose_square::<N, B, { 2 * LINE }>(&lines.each_ref(), number);
            for (row, line) in transposed.iter().enumerate() {
                for (column, element) in line.as_chunks::<N>().0.iter().enumerate() {
                    let expected = &lines[column].as_chunks::<N>().0[number * B + row];
                    assert_eq!(element, expected, "{N}");
                }
            }
        }
    }

    #[test]
    fn squares_are_transposed() {
        check::<1, 16>();
        check::<2, 8>();
        check::<4, 4>();
        check::<8, 2>();
        check::<16, 1>();
    }

    /// Rows may start and end anywhere in a cache line.
    #[test]
    fn streams_store_exactly_their_bytes() {
        let from: Vec<u8> = (0..300).map(|at| at as u8 | 1).collect();
        for (start, len) in (0..70).flat_map(|start| [0, 1, 63, 64, 65, 230].map(|it| (start, it)))
        {
            let mut to = vec![0; 300];
            let row = (start as u64..(start + len) as u64, &from[..len]);
            stream(&mut &mut to[..], [row].into_iter());
            assert!(to[start..][..len] == from[..len]);
            assert!(to[..start].iter().chain(&to[start + len..]).all(|byte| *byte == 0));
        }
    }
}
