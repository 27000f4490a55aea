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
use super::cta_tile::CtaTile;
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
/// hold lse and delta of the streamed queries.
pub(super) fn grad_keys_shared(lines: Lines) -> u32 {
    let shape = Shape::backward(lines);
    dynamic(shape.tiles(2, 2) + 2 * 2 * 4 * shape.streamed_rows)
}

/// CTAs that share a tile of keys.
pub(super) fn key_blocks(lines: Lines) -> u32 {
    Shape::backward(lines).blocks()
}

/// Bytes of dynamic shared memory if a kernel needs `bytes`: 0 if static memory suffices.
fn dynamic(bytes: u32) -> u32 {
    if bytes > 48 * 1024 { bytes } else { 0 }
}

/// The position of a warp's tile of scores: its first query and its first key.
#[derive(Clone, Copy)]
struct ScoreTile<'k> {
    query: U32<'k>,
    key: U32<'k>,
    /// Whether rows are keys and columns are queries.
    transposed: bool,
}

/// Calls `set(score, visible)` for each score of this lane, unless the warp's whole tile is
/// visible.
#[track_caller]
fn mask_scores<'k>(
    cta: &CtaTile<'k>,
    scores: &Sums<'k>,
    score_tile: ScoreTile<'k>,
    set: impl Fn(&Variable<'k, f32>, Pred<'k>),
) {
    let ScoreTile { query, key, transposed } = score_tile;
    let (k, columns) = (query.kernel(), 8 * scores.len() as u32);
    let [queries, keys] = if transposed { [columns, 16] } else { [16, columns] };
    k.if_(!cta.all_visible((query, queries), (key, keys)), || {
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
                let [query, key] = if transposed { [column, row] } else { [row, column] };
                let visible = cta.is_visible(behind + query - key) & left.gt(key as i32);
                set(score, visible);
            }
        }
    });
}
