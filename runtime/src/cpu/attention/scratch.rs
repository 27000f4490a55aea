//! Per-thread scratch buffers, which stay in the core's cache.

use std::cell::Cell;

use bytemuck::{Pod, Zeroable};

/// A cache line. Buffers are aligned to it, so that no vector crosses a cache line.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([f64; 8]);

thread_local! {
    /// Kept between calls, so that it stays in the cache. The size depends only on D; for D = 128
    /// it is a few hundred KiB.
    static LINES: Cell<Vec<Line>> = const { Cell::new(Vec::new()) };
}

/// Calls `f` with buffers of the given lengths, each aligned to a cache line. Their contents are
/// arbitrary.
#[inline(always)]
pub(super) fn with_blocks<R: Pod, const N: usize, Out>(
    lengths: [usize; N],
    f: impl FnOnce([&mut [R]; N]) -> Out,
) -> Out {
    let per_line = size_of::<Line>() / size_of::<R>();
    let lines = lengths.map(|len| len.div_ceil(per_line));

    let mut memory = LINES.take();
    let total = lines.iter().sum();
    if memory.len() < total {
        memory.resize(total, Line::zeroed());
    }

    let mut rest = memory.as_mut_slice();
    let blocks = std::array::from_fn(|i| {
        let (block, after) = std::mem::take(&mut rest).split_at_mut(lines[i]);
        rest = after;
        &mut bytemuck::cast_slice_mut(block)[..lengths[i]]
    });

    let out = f(blocks);
    LINES.set(memory);
    out
}
