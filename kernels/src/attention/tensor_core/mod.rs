//! Attention in bf16 on tensor cores, with f32 accumulators.
//!
//! Each of the three kernels has stationary rows and streamed rows. The forward kernel and the
//! gradient of queries keep queries and stream keys and values. The gradient of keys and values
//! keeps those and streams queries. A CTA of four warps owns 64 stationary rows, 16 per warp. All
//! accumulators of a row are in the registers of its warp, so warps exchange nothing.
//!
//! - **`cp.async`** copies the next tile into one of two buffers while the other is multiplied. One
//!   barrier per tile suffices: after it, all copies of this tile have arrived, and no thread still
//!   reads the other buffer.
//! - **Scores stay in registers.** The accumulators of a lane have the layout of an A fragment.
//!   Probabilities are rounded to bf16 and enter the next product without passing through shared
//!   memory. For the same reason the gradient of keys computes the scores transposed, keys by
//!   queries.
//! - **No bank conflicts**: the pitch of a row is a multiple of 128 bytes plus 16 bytes.
//! - **Head dims** are multiples of 8 up to 256. The products pad them with zeros to multiples of
//!   16. Above 128, the accumulators of dk and dv do not fit in registers, so two CTAs compute half
//!   of the columns each.

mod forward;
mod grad_keys;
mod grad_queries;
mod product;
mod tile;

pub(super) use forward::forward;
pub(super) use grad_keys::grad_keys;
pub(super) use grad_queries::grad_queries;

use self::product::Sums;
pub use self::tile::Lines;
use super::Products;
use super::cta_tile::{Common, Seen};
use crate::assembler::{Pred, U32, Variable};

/// Threads per CTA: four warps of 16 rows.
pub(super) const THREADS: u32 = 128;

/// The largest head dim.
pub(super) const MAX_FEATURES: u32 = 256;

/// The tile sizes of a kernel.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    lines: Lines,
    /// Rows per streamed tile.
    streamed_rows: u32,
}

impl Shape {
    /// Tile sizes of the forward kernel.
    pub(super) fn forward(lines: Lines) -> Shape {
        Shape { lines, streamed_rows: if lines.head_dim <= 128 { 64 } else { 32 } }
    }

    /// Tile sizes of both gradient kernels.
    fn backward(lines: Lines) -> Shape {
        let most = match lines.products {
            Products::Warps => 64,
            Products::Warpgroups => 128,
        };
        Shape { lines, streamed_rows: if lines.head_dim <= most { 64 } else { 32 } }
    }

    /// CTAs that share the columns of the gradients of keys and values.
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

    /// Bytes of all tiles, for the given numbers of stationary and streamed operands. A streamed
    /// operand has two buffers.
    fn tiles(self, stationary: u32, streamed: u32) -> u32 {
        stationary * self.lines.tile_bytes(super::ROWS_PER_CTA)
            + 2 * streamed * self.lines.tile_bytes(self.streamed_rows)
    }
}

/// Bytes of dynamic shared memory of the forward kernel.
pub(super) fn forward_shared(lines: Lines) -> u32 {
    dynamic(Shape::forward(lines).tiles(1, 2))
}

/// Bytes of dynamic shared memory of the gradient of queries.
pub(super) fn grad_queries_shared(lines: Lines) -> u32 {
    dynamic(Shape::backward(lines).tiles(2, 2))
}

/// Bytes of dynamic shared memory of the gradients of keys and values. Besides tiles, two buffers
/// hold four numbers of each streamed query: lse, delta, and the limits of its keys.
pub(super) fn grad_keys_shared(lines: Lines) -> u32 {
    let shape = Shape::backward(lines);
    dynamic(shape.tiles(2, 2) + 4 * 2 * 4 * shape.streamed_rows)
}

/// CTAs that share a tile of keys.
pub(super) fn key_blocks(lines: Lines) -> u32 {
    Shape::backward(lines).blocks()
}

/// Bytes of dynamic shared memory if a kernel needs `bytes`: 0 if static memory suffices.
fn dynamic(bytes: u32) -> u32 {
    if bytes > 48 * 1024 { bytes } else { 0 }
}

/// Calls `set(score, visible)` for each score of this lane, unless the warp's whole tile of 16
/// queries is visible. The tile begins at `key`; the lane's two queries see the keys `seen`, and all
/// queries the keys `common`.
#[track_caller]
fn mask_scores<'k>(
    scores: &Sums<'k>,
    key: U32<'k>,
    seen: [Seen<'k>; 2],
    common: Common<'k>,
    set: impl Fn(&Variable<'k, f32>, Pred<'k>),
) {
    let k = key.kernel();
    k.if_(!common.contain(key, 8 * scores.len() as u32), || {
        let seen = seen.map(|it| it.from(key + (k.lane() & 3) * 2));
        for (tile, scores) in (0..).zip(scores) {
            for (i, score) in (0..).zip(scores) {
                set(score, seen[i / 2].contains(8 * tile + i as u32 % 2));
            }
        }
    });
}

/// Like [`mask_scores`] for transposed scores: rows are 16 keys from `key` on, columns are queries.
/// `seen(i)` returns the keys that the lane's two queries of the i-th eight see.
#[track_caller]
fn mask_transposed<'k>(
    scores: &Sums<'k>,
    key: U32<'k>,
    seen: impl Fn(u32) -> [Seen<'k>; 2],
    common: Common<'k>,
    set: impl Fn(&Variable<'k, f32>, Pred<'k>),
) {
    let k = key.kernel();
    k.if_(!common.contain(key, 16), || {
        let key = key + (k.lane() >> 2);
        for (tile, scores) in (0..).zip(scores) {
            let seen = seen(tile).map(|it| it.from(key));
            for (i, score) in (0..).zip(scores) {
                set(score, seen[i % 2].contains(8 * (i as u32 / 2)));
            }
        }
    });
}
