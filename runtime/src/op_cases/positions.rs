//! Rotary position embedding, alone and fused with RMS norm.

use super::op_case::{OpCase, Source, adding, case};
use crate::ops::RopeStyle;
use crate::{DType, Result, ops};

const EPS: f64 = 1e-6;

/// The embedding of x [batch, tokens, heads, features], of which `pairs` are rotated, and its
/// gradients.
pub fn positions(
    source: &dyn Source,
    shape: [usize; 4],
    pairs: usize,
    style: RopeStyle,
) -> Result<Vec<OpCase>> {
    let [batch, tokens, _, features] = shape;
    let (x, dy) = (source.numbers("x", &shape)?, source.numbers("dy", &shape)?);
    let w = source.positive("w", &[features])?;
    let sum = source.sums("dw", &[features])?;
    let at = source.indices("positions", &[batch, tokens], tokens)?;
    let frequencies = ops::cast(&source.positive("frequencies", &[pairs])?, DType::F32)?;
    let (cos, sin) = ops::rope_tables(&at, &frequencies, 1.0)?;
    let (_, inv_rms) = ops::rms_norm_rope(&x, &w, &cos, &sin, style, EPS)?;
    Ok(vec![
        case("rope_tables", [&at, &frequencies], |[at, frequencies]| {
            ops::rope_tables(at, frequencies, 1.0)
        }),
        case("rope", [&x, &cos, &sin], move |[x, cos, sin]| ops::rope(x, cos, sin, style)),
        case("rope_grad", [&dy, &cos, &sin], move |[dy, cos, sin]| {
            ops::rope_grad(dy, cos, sin, style)
        }),
        case("rms_norm_rope", [&x, &w, &cos, &sin], move |[x, w, cos, sin]| {
            ops::rms_norm_rope(x, w, cos, sin, style, EPS)
        }),
        case(
            "rms_norm_rope_grad_input",
            [&dy, &x, &w, &inv_rms, &cos, &sin],
            move |[dy, x, w, inv_rms, cos, sin]| {
                ops::rms_norm_rope_grad_input(dy, x, w, inv_rms, cos, sin, style)
            },
        ),
        adding(
            "rms_norm_rope_grad_weight_into",
            [&dy, &x, &inv_rms, &cos, &sin],
            &sum,
            move |[dy, x, inv_rms, cos, sin], dw| {
                ops::rms_norm_rope_grad_weight_into(dy, x, inv_rms, cos, sin, style, dw)
            },
        ),
    ])
}
