//! RoPE tables and rotations.

use super::Family;
use meshgrad_kernels::rope::{Direction, Heads, PositionFormat, Rope, RopeTables, Style};
use meshgrad_kernels::{Dtype, Variant};

/// D and H of heads: heads of a few lanes, two chunks per lane, pass-through features, and heads
/// that a warp loops over.
pub const HEADS: [[u32; 2]; 5] = [[128, 64], [64, 32], [320, 160], [120, 24], [9, 3]];

/// Six sequences of three positions and two heads each.
pub fn heads([features, pairs]: [u32; 2]) -> Heads {
    Heads { rows: 36, positions: 3, heads: 2, features, pairs }
}

pub(super) fn rope() -> Family {
    let mut kernels: Vec<_> =
        PositionFormat::ALL.map(|format| RopeTables::new(format).ptx()).into();
    for dtype in Dtype::ALL {
        for style in Style::ALL {
            for direction in [Direction::Forward, Direction::Inverse] {
                for extents in HEADS {
                    let heads = heads(extents);
                    kernels.push(Rope::new(dtype, style, direction, &heads, true).ptx());
                }
            }
        }
    }
    kernels.into_iter().map(Ok).collect()
}
