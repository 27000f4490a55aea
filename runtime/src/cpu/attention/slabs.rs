//! Partial sums of dK and dV, one per task.
//!
//! All queries of a head add to the gradients of the same keys. So that tasks can split the
//! queries, each task sums into its own *slab*, with the gradients of every key. The slabs are then
//! added in order. The number of slabs depends on the shape, never on the number of threads.

use std::ops::Range;

use super::Shape;
use super::group::{STRIP, padded};
use super::mask::Segment;
use super::real::{Element, Real};
use crate::cpu::for_blocks;

/// The fewest queries per slab, because each slab takes memory.
const QUERIES_PER_SLAB: usize = 1024;

/// With this many tasks, the queries of a head are not split.
const ENOUGH_TASKS: usize = 32;

/// Keys per task of the final sum.
const KEYS_PER_TASK: usize = 64;

/// How the queries of a head are split.
#[derive(Clone, Copy)]
pub(super) struct Slabs {
    pub(super) count: usize,
    /// Queries per slab. The first slab of a sequence starts at its first query.
    queries: usize,
    /// Elements per slab: dK, then dV, both [Tk, W].
    pub(super) len: usize,
}

impl Slabs {
    pub(super) fn of(shape: &Shape) -> Self {
        let heads = (shape.batch * shape.kv_heads).max(1);
        let wanted = (ENOUGH_TASKS / heads).max(1);
        let queries = shape.queries.div_ceil(wanted).next_multiple_of(STRIP).max(QUERIES_PER_SLAB);

        let len = 2 * shape.keys * padded(shape.head_dim);
        Self { count: shape.queries.div_ceil(queries), queries, len }
    }

    /// The rows of a segment that belong to slab `index`. Several sequences can share a slab,
    /// because their keys differ. The slabs of one sequence are in the order of its queries.
    pub(super) fn rows(&self, index: usize, segment: &Segment, group: usize) -> Range<usize> {
        let Some(part) = index.checked_sub(segment.queries.start / self.queries) else {
            return 0..0;
        };

        let len = segment.queries.len();
        let start = (part * self.queries).min(len);
        let end = (start + self.queries).min(len);
        start * group..end * group
    }
}

pub(super) fn workspace(shape: &Shape) -> usize {
    let slabs = Slabs::of(shape);
    shape.batch * shape.kv_heads * slabs.count * slabs.len
}

/// `to[b, t, h]` = the sum over the slabs of the row of key t, in the order of the slabs.
pub(super) fn add_slabs<E: Element>(
    shape: &Shape,
    slabs: &Slabs,
    workspace: &[E::Real],
    offset: usize,
    to: &mut [E],
) {
    let Shape { keys, kv_heads, head_dim, .. } = *shape;
    let width = padded(head_dim);
    let row = kv_heads * head_dim;
    for_blocks(to, KEYS_PER_TASK * row, |start, to| {
        for (at, to) in to.chunks_exact_mut(row).enumerate() {
            let key = start / row + at;
            let (batch, key) = (key / keys, key % keys);
            for (kv_head, to) in to.chunks_exact_mut(head_dim).enumerate() {
                let head = (batch * kv_heads + kv_head) * slabs.count * slabs.len;
                let from = &workspace[head + offset + key * width..];
                add_rows(slabs, from, to);
            }
        }
    });
}

/// `to[i]` = the sum of `from[i]` over the slabs, in order.
fn add_rows<E: Element>(slabs: &Slabs, from: &[E::Real], to: &mut [E]) {
    const LANES: usize = 16;

    for (first, to) in (0..).step_by(LANES).zip(to.chunks_mut(LANES)) {
        let mut sum = [E::Real::ZERO; LANES];
        for slab in 0..slabs.count {
            let part = &from[slab * slabs.len + first..][..LANES];
            sum.iter_mut().zip(part).for_each(|(sum, part)| *sum = *sum + *part);
        }
        to.iter_mut().zip(sum).for_each(|(to, sum)| *to = E::from_real(sum));
    }
}
