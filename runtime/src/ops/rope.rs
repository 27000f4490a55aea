//! Rotary position embedding (Su et al. 2021).
//!
//! Legend: B batch, T positions, N heads, D features per head, H rotated pairs of features (2 H <=
//! D).

use super::dense_last;
pub use crate::core::arguments::rope::RopeStyle;
use crate::core::arguments::rope::Rotation;
use crate::core::sharding::views;
use crate::cpu::rope as kernels;
use crate::launch::rope as launch;
use crate::{Call, DType, Result, Signature, Tensor, for_float, ops};

static ROPE_TABLES: Signature = Signature::new(
    "rope_tables",
    "positions: I[..], inv_freq: f32[h] -> cos: f32[.. h], sin: f32[.. h]",
    3,
);
static ROPE: Signature = Signature::new(
    "rope",
    "x: F[b t n d!], cos: f32[b t h!], sin: f32[b t h!] -> y: F[b t n d]",
    0,
)
.linear_in(&["x"]);
static ROPE_GRAD: Signature = Signature::new(
    "rope_grad",
    "dy: F[b t n d!], cos: f32[b t h!], sin: f32[b t h!] -> dx: F[b t n d]",
    0,
)
.linear_in(&["dy"]);

pub(super) static SIGNATURES: &[&Signature] = &[&ROPE_TABLES, &ROPE, &ROPE_GRAD];

/// cos = attention_factor cos(position inv_freq), and sin likewise; `attention_factor` is 1 except
/// for scaled variants such as YaRN.
///
/// Angles are computed in f64, so results are accurate to the last place of f32 at every position.
/// (In f32, an angle at position 1,000,000 is off by up to 0.03 radians.) A GPU uses angle 0 in
/// place of angles of 2^50 and more.
///
/// # Shapes
/// `positions` [..] of an index dtype, `inv_freq` \[H\] f32; returns two [.., H] f32.
pub fn rope_tables(
    positions: &Tensor,
    inv_freq: &Tensor,
    attention_factor: f64,
) -> Result<(Tensor, Tensor)> {
    let mut call = ROPE_TABLES.call(&[positions, inv_freq])?;
    let (positions, inv_freq) = (ops::contiguous(positions)?, ops::contiguous(inv_freq)?);
    let (mut cos, mut sin) = (call.output(0)?, call.output(1)?);
    match call.device().is_gpu() {
        true => call.launch(|gpu| {
            let operands = [&positions, &inv_freq];
            launch::tables(gpu, operands, attention_factor, [&cos, &sin])
        }),
        false => call.compute(|| {
            let positions = ops::cast(&positions, DType::I64)?;
            let (cos, sin) = (cos.slice()?, sin.slice()?);
            kernels::tables(&positions, &inv_freq, attention_factor, cos, sin)
        }),
    }?;
    Ok((cos.finish(), sin.finish()))
}

/// Rotates each pair of features: (a, b) becomes (a cos - b sin, b cos + a sin). The first 2 H
/// features of a head are rotated, the others are copied.
///
/// # Shapes
/// `x` [B, T, N, D], float; `cos` and `sin` [B, T, H], or [T, H] for all sequences, f32; returns
/// `x`'s shape and dtype.
///
/// # Errors
/// When 2 H > D.
pub fn rope(x: &Tensor, cos: &Tensor, sin: &Tensor, style: RopeStyle) -> Result<Tensor> {
    rotate(&ROPE, x, [cos, sin], style, Rotation::Forward)
}

/// The gradient of [`rope`]: the inverse rotation.
///
/// # Shapes
/// As [`rope`], with `dy` for `x`.
///
/// # Errors
/// As [`rope`].
pub fn rope_grad(dy: &Tensor, cos: &Tensor, sin: &Tensor, style: RopeStyle) -> Result<Tensor> {
    rotate(&ROPE_GRAD, dy, [cos, sin], style, Rotation::Inverse)
}

fn rotate(
    signature: &'static Signature,
    x: &Tensor,
    tables: [&Tensor; 2],
    style: RopeStyle,
    rotation: Rotation,
) -> Result<Tensor> {
    let [cos, sin] = tables.map(|table| for_each_sequence(x, table));
    let (cos, sin) = (cos?, sin?);
    let mut call = signature.call(&[x, &cos, &sin])?.with_flops(3 * x.elements() as u64);
    check_pairs(signature, &call, &[x, &cos, &sin])?;

    let (x, cos, sin) = (dense_last(x)?, dense_last(&cos)?, dense_last(&sin)?);
    let mut y = call.output(0)?;
    let heads = call.extent("n");
    match call.device().is_gpu() {
        true => call.launch(|gpu| launch::rope(gpu, &x, [&cos, &sin], style, rotation, &y)),
        false => call.compute(|| {
            for_float!(x.dtype(), T => {
                kernels::rope::<T>(&x, [&cos, &sin], heads, style, rotation, y.slice()?)
            })
        }),
    }?;
    Ok(y.finish())
}

/// Checks that the pairs fit into the features.
pub(super) fn check_pairs(
    signature: &'static Signature,
    call: &Call,
    operands: &[&Tensor],
) -> Result<()> {
    let (pairs, features) = (call.extent("h"), call.extent("d"));
    if 2 * pairs > features {
        let problem = format!("{pairs} pairs of angles rotate more than d = {features} features");
        return Err(signature.error(operands, problem));
    }
    Ok(())
}

/// Broadcasts a table [T, H] to [B, T, H]. If `x` is sharded along B, so is the result.
pub(super) fn for_each_sequence(x: &Tensor, table: &Tensor) -> Result<Tensor> {
    let ([batch, ..], [positions, pairs]) = (&x.shape()[..], &table.shape()[..]) else {
        return Ok(table.clone());
    };
    let wide = table.local_broadcast_to(&[*batch, *positions, *pairs])?;
    let tag = match (x.tag(), table.tag()) {
        (Some(x), Some(table)) => Some(views::repeated_for(x, table)?),
        _ => None,
    };
    Ok(wide.with_tag(tag))
}
