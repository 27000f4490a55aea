//! The extents at which the table's cases reach every kernel variant and every instruction.

use super::operands::{Operands, tensor};
use super::run;
use crate::op_cases::*;
use crate::ops::{self, AttentionMask, AttentionSequences, RopeStyle};
use crate::{DType, Key, Region, Result, Tensor};

/// More elements than one CTA handles, with a partial last tile.
pub(super) const MORE_THAN_A_TILE: usize = 8395;

pub(super) fn elementwise(source: &Operands<'_>) -> Result<()> {
    let (extremes, shape) = (source.with_extremes(), &[MORE_THAN_A_TILE]);
    run(unary(&extremes, shape)?)?;
    run(with_constants(&extremes, shape)?)?;
    run(binary(&extremes, shape, shape)?)?;

    // Views in which no two dims can be merged.
    for dims in 1..=5 {
        let mut view = source.numbers("x", &[&[4; 5][..dims], &[2]].concat())?.slice(-1, 0..1)?;
        for dim in 0..dims {
            view = view.slice(dim as isize, 0..3)?;
        }
        ops::add(&view, &view)?;
    }
    Ok(())
}

pub(super) fn indexing(source: &Operands<'_>) -> Result<()> {
    for source in &source.by_index_dtype() {
        for features in [64, 3] {
            run(embedding(source, [4, features], &[5])?)?;
        }
        run(selection(source, &[9, 4, 7], 1, 5)?)?;
        run(gathering(source, &[9, 4, 7], 1, 6)?)?;
    }
    Ok(())
}

/// Rows that fit into registers, and rows read in loops by elements or by vectors.
pub(super) fn rows(source: &Operands<'_>) -> Result<()> {
    for features in [64, 1024, 4096, 333] {
        run(norms(source, &[5], features)?)?;
    }
    for features in [64, 1024, 4096, 333, 40_000] {
        run(softmaxes(source, &[5, features])?)?;
    }
    for features in [64, 333] {
        run(swiglu(source, 5, features)?)?;
    }
    Ok(())
}

/// Covers the global norm of short and long gradients, of whole vectors or not.
pub(super) fn gradients(source: &Operands<'_>) -> Result<()> {
    let vector = 128 / source.dtype.bits();
    run(gradient_norm(source, &[3, vector, 499, 5001, 20_001])?)
}

/// Covers rows that are whole vectors or not, with and without split k.
pub(super) fn products(source: &Operands<'_>) -> Result<()> {
    let extents = [
        [8, 64, 64],
        [8, 33, 17],
        [64, 64, 64],
        [64, 512, 64],
        [64, 513, 63],
        [64, 64, 512],
        [512, 64, 64],
    ];
    for [rows, inputs, outputs] in extents {
        run(linear(source, &[rows], [inputs, outputs])?)?;
        run(matmul(source, &[], [rows, outputs, inputs], "nt")?)?;
        run(matmul(source, &[], [outputs, inputs, rows], "tn")?)?;
    }

    // Large tiles. All dims but one are as short as possible, so that the emulator computes the
    // products in reasonable time.
    let rows = 132 * 128;
    run(linear(source, &[rows], [8, 8])?)?;
    run(linear(source, &[8], [8, rows])?)?;
    if source.dtype == DType::BF16 {
        let operand = |shape: [usize; 2]| source.numbers("x", &shape);
        ops::linear(&operand([2 * rows, 8])?, &operand([256, 8])?)?;
    }
    Ok(())
}

/// Covers small and large tiles, and rows that are whole vectors or not. Large products are long in
/// one dim only, so that the emulator computes them in reasonable time.
pub(super) fn grouped_products(source: &Operands<'_>) -> Result<()> {
    let widths: &[usize] = match source.dtype {
        DType::BF16 => &[8, 33],
        _ => &[8],
    };
    for &width in widths {
        for [rows, outputs] in [[64, width], [132 * 128, width], [64, 33 * 128]] {
            // The second group is empty, the first ends inside a tile, and the last two rows belong
            // to no group.
            let ends = [0, rows / 2 + 3, rows / 2 + 3, rows - 7, rows - 2];
            let offsets = Tensor::from_slice(source.device, &[5], &ends.map(|end| end as i64))?;
            run(grouped(source, &offsets, [rows, width, outputs])?)?;
        }
    }
    Ok(())
}

/// Covers one tile with a warp per row (70 classes) or a CTA per row (600), several tiles (5000),
/// and labels of every index dtype.
pub(super) fn cross_entropy(source: &Operands<'_>) -> Result<()> {
    for source in &source.by_index_dtype() {
        for classes in [70, 600, 5000] {
            run(losses(source, [6, 8, classes])?)?;
        }
    }
    let x = source.numbers("x", &[6])?;
    ops::cross_entropy_sum(&x, &x, &source.indices("labels", &[6], 2)?, 0)?;
    Ok(())
}

/// Covers few and many experts, rows of experts that are whole vectors or not (57), rows too long
/// for registers (600), and indices of every index dtype.
pub(super) fn router(source: &Operands<'_>) -> Result<()> {
    for experts in [8, 64, 128, 57, 600] {
        run(routing(source, [3, experts, 4])?)?;
        let probabilities = source.positive("probabilities", &[3, experts])?;
        let bias = tensor(source.device, &[experts], DType::F32)?;
        ops::router_top_k(&probabilities, 4, false, Some(&bias))?;
    }
    for source in &source.by_index_dtype() {
        for experts in [8, 128, 1000] {
            run(routing(source, [30, experts, 4])?)?;
        }
    }
    Ok(())
}

/// Covers rows for a few lanes (64 features), for a whole warp (2048), and of partial vectors (33).
pub(super) fn permutations(source: &Operands<'_>) -> Result<()> {
    for features in [64, 2048, 33] {
        run(permutation(source, [3, 4, 2], features)?)?;
    }
    Ok(())
}

/// Covers positions of every index dtype.
pub(super) fn rotations(source: &Operands<'_>) -> Result<()> {
    for [features, pairs] in [[128, 64], [64, 32], [96, 32], [9, 3]] {
        for style in [RopeStyle::Half, RopeStyle::Interleaved] {
            run(positions(source, [1, 2, 3, features], pairs, style)?)?;
        }
    }
    for source in &source.by_index_dtype() {
        let positions = source.indices("positions", &[2], 2)?;
        ops::rope_tables(&positions, &tensor(source.device, &[8], DType::F32)?, 1.0)?;
    }
    Ok(())
}

pub(super) fn draws(source: &Operands<'_>) -> Result<()> {
    let key = Key::new(1);
    let columns = Region::whole(&[70, 64])?.slice(1, 3..40)?;
    run(random(source, &[70, 64], &key.into())?)?;
    run(random(source, &[70, 37], &key.within(&columns))?)
}

/// Covers whole parameters and shards of larger ones, with more elements than one CTA handles. Some
/// rows are multiples of four elements, which a thread accesses together; others are not.
pub(super) fn steps(source: &Operands<'_>) -> Result<()> {
    for (columns, first) in [(687, 3), (688, 4)] {
        let part = Region::whole(&[3, 700])?.slice(1, first..first + columns)?;
        let key = Key::new(1);
        for rounding in [None, Some(key.into()), Some(key.within(&part))] {
            run([adamw(source, 1, &[3, columns], rounding)?])?;
        }
    }
    Ok(())
}

/// Covers short and long rows and columns, of whole vectors or not, in one and several passes.
pub(super) fn sums(source: &Operands<'_>) -> Result<()> {
    for shape in [[3, 5, 7], [100, 64, 16], [2, 8, 1032], [3, 132, 333]] {
        for dims in [&[2][..], &[1], &[0], &[0, 2], &[0, 1, 2]] {
            run(reductions(source, &shape, dims)?)?;
        }
    }
    // Single rows that end within a vector, in one chunk and in up to some tens of chunks.
    for columns in [15, 63, 4097, 9001, 30_001, 50_001, 200_001, 400_001] {
        run(reductions(source, &[columns], &[0])?)?;
    }
    Ok(())
}

/// Covers head dims with and without tensor cores, and plain and cached sequences and ranges of keys.
pub(super) fn attentions(source: &Operands<'_>) -> Result<()> {
    let head_dims: &[usize] = match source.dtype {
        DType::F32 => &[5, 8],
        _ => &[5, 64, 80, 128, 192, 256],
    };
    let list = |values: &[i64]| Tensor::from_slice(source.device, &[values.len()], values);
    // The second row has no valid keys.
    let cached = AttentionSequences::Cached { q_offset: list(&[60, 3])?, k_len: list(&[66, 0])? };
    let ranges = [[0i32, 3], [0, 4], [0, 5], [5, 8]];
    let ranges = Tensor::from_slice(source.device, &[1, 4, 2], ranges.as_flattened())?;
    let with = |sequences| AttentionMask { sequences, ..AttentionMask::default() };
    let masks = [
        ([1, 70, 70], AttentionMask::causal()),
        ([2, 2, 66], with(cached)),
        ([1, 4, 8], with(AttentionSequences::Ranges(ranges))),
    ];
    for &features in head_dims {
        for ([batch, queries, keys], mask) in &masks {
            let extents = [*queries, *keys].map(|tokens| [*batch, tokens, 1, features]);
            run(attention(source, extents, mask, 0.5)?)?;
        }
    }
    run(visible_keys(source, [2, 70])?)
}

pub(super) fn order(source: &Operands<'_>) -> Result<()> {
    run(ordered(source, &[2, 1100])?)?;
    run(ordered(&source.with_extremes(), &[3, 1500])?)
}

/// Covers rows for a few lanes, for a CTA, and split into chunks; rows of whole vectors or not; one
/// tile and many.
pub(super) fn largest(source: &Operands<'_>) -> Result<()> {
    for shape in [[3, 7], [3, 64], [5, 4096], [5, 333], [2, 16_392], [1, 63], [1, 4097], [1, 9001]]
    {
        run(arg_reductions(source, &shape, 1)?)?;
        run(arg_reductions(source, &shape, 0)?)?;
        run([top_k(source, &shape, 3)?, top_k(source, &shape, shape[1])?])?;
    }
    Ok(())
}
