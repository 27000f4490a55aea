//! Attention in bf16 on tensor cores, with f32 accumulators.
//!
//! Each of the three passes has stationary rows and streamed rows. The forward pass and the
//! gradient of queries keep queries and stream keys and values; the gradient of keys and values
//! keeps those and streams queries. A CTA of four warps owns 64 stationary rows, 16 per warp. All
//! accumulators of a row are in the registers of its warp, so warps exchange nothing.
//!
//! - **`cp.async`** copies the next tile into one of two buffers while the other is multiplied. One
//!   barrier per tile suffices: after it, all copies of this tile have arrived, and no thread still
//!   reads the other buffer.
//! - **Scores stay in registers.** The accumulator layout of a lane is also its left-operand
//!   fragment layout. Probabilities are rounded to bf16 and enter the next product without passing
//!   through shared memory. For the same reason the gradient of keys computes the scores
//!   transposed, keys by queries.
//! - **No bank conflicts**: row lengths are multiples of 128 bytes plus 16 bytes of padding.
//! - **Head dims** are multiples of 8 up to 256. Products run over multiples of 16, padded with
//!   zeros. Above 128, the accumulators of dk and dv do not fit in registers, so two CTAs compute
//!   half of the columns each.

mod forward;
mod grad_keys;
mod grad_queries;
mod product;
mod tile;

pub(super) use forward::forward;
pub(super) use grad_keys::grad_keys;
pub(super) use grad_queries::grad_queries;

use self::product::Sums;
use self::tile::Lines;
use super::cta_tile::CtaTile;
use crate::assembler::{Pred, U32, Variable};

/// Threads per CTA: four warps of 16 rows.
pub(super) const THREADS: u32 = 128;

/// The largest head dim.
pub(super) const MAX_FEATURES: u32 = 256;

/// The tile sizes of a pass.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    lines: Lines,
    /// Rows per tile that streams by.
    streamed: u32,
}

impl Shape {
    /// Of the forward pass.
    pub(super) fn forward(head_dim: u32) -> Shape {
        Shape {
            lines: Lines { head_dim },
            streamed: if head_dim <= 128 { 64 } else { 32 },
        }
    }

    /// Of both gradients.
    fn backward(head_dim: u32) -> Shape {
        Shape {
            lines: Lines { head_dim },
            streamed: if head_dim <= 64 { 64 } else { 32 },
        }
    }

    /// Blocks of columns that the gradients of keys and values are computed in.
    fn blocks(self) -> u32 {
        if self.lines.head_dim <= 128 { 1 } else { 2 }
    }

    /// Columns per block.
    fn columns(self) -> u32 {
        match self.blocks() {
            1 => self.lines.head_dim,
            blocks => self.lines.steps().div_ceil(blocks) * 16,
        }
    }

    /// Rows that stay, by operand; and rows that stream, by operand, in two buffers.
    fn tiles(self, staying: u32, streaming: u32) -> u32 {
        let rows = super::SIDE * staying + 2 * self.streamed * streaming;
        rows * self.lines.pitch()
    }
}

/// Bytes of dynamic shared memory of the forward pass.
pub(super) fn forward_shared(head_dim: u32) -> u32 {
    dynamic(Shape::forward(head_dim).tiles(1, 2))
}

/// Bytes of dynamic shared memory of the gradient of queries.
pub(super) fn grad_queries_shared(head_dim: u32) -> u32 {
    dynamic(Shape::backward(head_dim).tiles(2, 2))
}

/// Bytes of dynamic shared memory of the gradients of keys: with two numbers of each query, in two
/// buffers.
pub(super) fn grad_keys_shared(head_dim: u32) -> u32 {
    let shape = Shape::backward(head_dim);
    dynamic(shape.tiles(2, 2) + 2 * 2 * 4 * shape.streamed)
}

/// CTAs that share a tile of keys.
pub(super) fn key_blocks(head_dim: u32) -> u32 {
    Shape::backward(head_dim).blocks()
}

/// What is dynamic of so much shared memory.
fn dynamic(bytes: u32) -> u32 {
    if bytes > 48 * 1024 { bytes } else { 0 }
}

/// The position of a warp's scores: its first query and its first key.
#[derive(Clone, Copy)]
struct Seen<'k> {
    query: U32<'k>,
    key: U32<'k>,
    /// Rows are keys and columns queries.
    transposed: bool,
}

/// Passes each score to `set` with whether its query sees its key; does nothing if all do.
#[track_caller]
fn each_seen<'k>(
    cta: &CtaTile<'k>,
    scores: &Sums<'k>,
    seen: Seen<'k>,
    set: impl Fn(&Variable<'k, f32>, Pred<'k>),
) {
    let Seen {
        query,
        key,
        transposed,
    } = seen;
    let (k, columns) = (query.kernel(), 8 * scores.len() as u32);
    let [queries, keys] = if transposed {
        [columns, 16]
    } else {
        [16, columns]
    };
    k.if_(!cta.see_all((query, queries), (key, keys)), || {
        let lane = k.lane();
        let (row, column) = (lane >> 2, (lane & 3) * 2);
        let [query, key] = match transposed {
            true => [query + column, key + row],
            false => [query + row, key + column],
        };
        let behind = cta.behind(query, key);
        let left = (cta.keys.length - key).signed();
        for (tile, scores) in (0..).zip(scores) {
            for (i, score) in (0..).zip(scores) {
                let (row, column) = (8 * (i / 2), 8 * tile + i % 2);
                let [query, key] = if transposed {
                    [column, row]
                } else {
                    [row, column]
                };
                let sees = cta.sees(behind + query - key) & left.gt(key as i32);
                set(score, sees);
            }
        }
    });
}
