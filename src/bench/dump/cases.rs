//! The cases of a dump: every kernel on fixed inputs, including ragged sizes and special values.
//!
//! A result is *exact* if its kernel uses only IEEE 754 operations in an order that depends on the
//! shape: every GPU and the emulator must agree on each bit. The order and the intermediate
//! rounding of tensor cores are undocumented, and the exponential in attention is an approximate
//! instruction; for these the difference is measured.

use meshgrad::prelude::*;
use meshgrad::runtime::ops;
use meshgrad::runtime::{Accumulator, Result, Shape};

use super::inputs::{Case, Cases, ELEMENTS, Inputs};
use super::models;

type Unary = (&'static str, fn(&Tensor) -> Result<Tensor>);
type Binary = (&'static str, fn(&Tensor, &Tensor) -> Result<Tensor>);

const UNARY: &[Unary] = &[
    ("neg", ops::neg),
    ("clamp", |x| ops::clamp(x, -0.5, 1.5)),
    ("affine", |x| ops::affine(x, 1.7, -0.3)),
];

const BINARY: &[Binary] = &[
    ("add", ops::add),
    ("sub", ops::sub),
    ("mul", ops::mul),
    ("div", ops::div),
    ("maximum", ops::maximum),
    ("minimum", ops::minimum),
    ("eq", ops::eq),
    ("lt", ops::lt),
    ("ge", ops::ge),
    ("where_", |a, b| ops::where_(&ops::le(a, b)?, a, b)),
    ("chain", |a, b| {
        let gate = ops::silu(&ops::affine(a, 0.5, 1.0)?)?;
        ops::sub(&ops::mul(&gate, b)?, &ops::square(a)?)
    }),
];

/// [rows, features]: whole vectors and warps, several warps, and rows that are not whole vectors.
const NORMS: [[usize; 2]; 3] = [[37, 1024], [5, 4096], [19, 333]];

/// [m, n, k]: whole tiles, partial tiles of aligned rows, unaligned rows, a single row, and many
/// steps along k.
const PRODUCTS: [[usize; 3]; 5] = [
    [128, 128, 64],
    [130, 136, 72],
    [65, 33, 17],
    [1, 256, 520],
    [144, 96, 1000],
];

const FLOATS: [DType; 2] = [DType::F32, DType::BF16];

/// All cases, computed on `device`.
pub(crate) fn cases(device: &Device) -> Result<Vec<Case>> {
    let inputs = Inputs::new(device);
    let mut cases = Cases(Vec::new());
    for dtype in FLOATS {
        elementwise(&inputs, dtype, &mut cases)?;
    }
    strided(&inputs, &mut cases)?;
    for (dtype, shape) in FLOATS.into_iter().flat_map(|d| NORMS.map(|s| (d, s))) {
        norms(&inputs, dtype, shape, &mut cases)?;
    }
    for (dtype, extents) in FLOATS.into_iter().flat_map(|d| PRODUCTS.map(|e| (d, e))) {
        for transposes in ["nn", "nt", "tn", "tt"] {
            products(&inputs, dtype, extents, transposes, &mut cases)?;
        }
    }
    for dtype in FLOATS {
        models::cases(&inputs, dtype, &mut cases)?;
    }
    Ok(cases.0)
}

fn elementwise(inputs: &Inputs, dtype: DType, cases: &mut Cases) -> Result<()> {
    let [a, b] = inputs.with_specials(dtype)?;
    for op in ops::UNARY {
        cases.exact(format!("{} {dtype}", op.name), (op.value)(&a)?);
        cases.exact(format!("{} {dtype}", op.grad_name), (op.grad)(&a, &b)?);
    }
    for (name, op) in UNARY {
        cases.exact(format!("{name} {dtype}"), op(&a)?);
    }
    for (name, op) in BINARY {
        cases.exact(format!("{name} {dtype}"), op(&a, &b)?);
    }
    for to in FLOATS.into_iter().filter(|to| *to != dtype) {
        cases.exact(format!("cast {dtype} to {to}"), ops::cast(&a, to)?);
    }

    let into = inputs.normal("into", &[ELEMENTS], DType::F32)?;
    let into = mutable_copy(&into)?;
    let mut into = Accumulator::over(into)?;
    into.filled();
    ops::add_into(&a, &mut into)?;
    cases.exact(format!("add_into {dtype}"), into.buffer().clone());
    Ok(())
}

fn strided(inputs: &Inputs, cases: &mut Cases) -> Result<()> {
    let x = inputs.normal("x", &[23, 5, 34], DType::F32)?;
    let permuted = x.permute(&[2, 0, 1])?;
    cases.exact("copy of a permuted view".into(), ops::copy(&permuted)?);
    let row = inputs.normal("row", &[5], DType::F32)?;
    cases.exact("add of a broadcast row".into(), ops::add(&permuted, &row)?);
    let part = x.slice(2, 1..30)?.slice(0, 3..20)?;
    cases.exact("exp of a slice".into(), ops::exp(&part)?);
    Ok(())
}

fn norms(inputs: &Inputs, dtype: DType, shape: [usize; 2], cases: &mut Cases) -> Result<()> {
    let [rows, features] = shape;
    let x = inputs.normal("x", &shape, dtype)?;
    let dy = inputs.normal("dy", &shape, dtype)?;
    let w = inputs.normal("w", &[features], dtype)?;
    let of = |what: &str| format!("{what} {dtype} {rows}x{features}");

    let (y, inv_rms) = ops::rms_norm(&x, &w, 1e-6)?;
    let dx = ops::rms_norm_grad_input(&dy, &x, &w, &inv_rms)?;
    let mut dw = Accumulator::new(inputs.device, *w.shape(), DType::F32)?;
    ops::rms_norm_grad_weight_into(&dy, &x, &inv_rms, &mut dw)?;

    cases.exact(of("rms_norm"), y);
    cases.exact(of("rms_norm's 1 / rms"), inv_rms);
    cases.exact(of("rms_norm_grad_input"), dx);
    cases.exact(of("rms_norm_grad_weight"), dw.buffer().clone());
    Ok(())
}

fn products(
    inputs: &Inputs,
    dtype: DType,
    [m, n, k]: [usize; 3],
    transposes: &str,
    cases: &mut Cases,
) -> Result<()> {
    let a = inputs.matrix("a", [m, k], transposes.starts_with('t'), dtype)?;
    let b = inputs.matrix("b", [k, n], transposes.ends_with('t'), dtype)?;
    let of = |what: &str| format!("{what} {dtype} {transposes} {m}x{n}x{k}");

    let c = ops::matmul(&a, &b)?;
    let mut sum = Accumulator::new(inputs.device, Shape::new(&[m, n])?, DType::F32)?;
    ops::matmul_into(&a, &b, &mut sum)?;
    ops::matmul_into(&a, &b, &mut sum)?;
    let sum = sum.buffer().clone();

    // f32 is a chain of fused multiply-adds along k; bf16 uses tensor cores.
    match dtype {
        DType::F32 => {
            cases.exact(of("matmul"), c);
            cases.exact(of("matmul_into"), sum);
        }
        _ => {
            cases.measured(of("matmul"), c);
            cases.measured(of("matmul_into"), sum);
        }
    }
    Ok(())
}

/// A mutable copy of `x`.
fn mutable_copy(x: &Tensor) -> Result<Tensor> {
    let copy = Tensor::zeros(x.device(), x.shape(), x.dtype(), Kind::Gradient)?;
    ops::copy_into(x, &copy)?;
    Ok(copy)
}
