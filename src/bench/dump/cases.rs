//! The results of a dump: the table of ops at fixed inputs, including ragged sizes and special values.
//!
//! A result is *exact* if its kernel uses only IEEE 754 operations in an order that depends on the
//! shape: every GPU and the emulator must agree on each bit. The order and the intermediate
//! rounding of tensor cores are undocumented, and the exponential in attention is an approximate
//! instruction; for these the difference is measured.

use meshgrad::prelude::*;
use meshgrad::runtime::op_cases::*;
use meshgrad::runtime::ops::{self, AttentionMask, RopeStyle};
use meshgrad::runtime::{Key, Result};

use super::inputs::{ELEMENTS, Inputs};

/// A result, and whether it is exact.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) exact: bool,
    pub(crate) result: Tensor,
}

/// Ops that are not exact: attention, and a sum of what tensor cores computed.
const MEASURED: &[&str] =
    &["attention", "attention_grad", "attention_lse_grad", "cross_entropy_sum"];

/// Prefixes of ops that use tensor cores in bf16. In f32 they are chains of fused multiply-adds.
const ON_TENSOR_CORES: &[&str] = &["matmul", "grouped_matmul", "linear_cross_entropy"];

/// [rows, features]: whole vectors and warps, several warps, and rows that are not whole vectors.
const NORMS: [[usize; 2]; 3] = [[37, 1024], [5, 4096], [19, 333]];

/// [m, n, k]: whole tiles, partial tiles of aligned rows, unaligned rows, a single row, and many
/// steps along k.
const PRODUCTS: [[usize; 3]; 5] =
    [[128, 128, 64], [130, 136, 72], [65, 33, 17], [1, 256, 520], [144, 96, 1000]];

/// Tokens, experts and experts per token, and features; not multiples of tiles.
const ROUTING: [usize; 3] = [77, 6, 2];
const WIDTH: usize = 72;

/// All results, computed on `device`.
pub(crate) fn cases(device: &Device) -> Result<Vec<Case>> {
    let mut results = Vec::new();
    for dtype in [DType::F32, DType::BF16] {
        let inputs = Inputs::new(device, dtype);
        for (note, cases) in families(&inputs)? {
            for case in cases {
                add(&mut results, &case, &format!("{} {dtype}{note}", case.name))?;
            }
        }
    }
    strided(&Inputs::new(device, DType::F32), &mut results)?;
    Ok(results)
}

/// The results of a case that are numbers or truth values.
fn add(results: &mut Vec<Case>, case: &OpCase, name: &str) -> Result<()> {
    let has_bf16 = case.operands.iter().any(|x| x.dtype() == DType::BF16);
    let on_tensor_cores = ON_TENSOR_CORES.iter().any(|op| case.op.starts_with(op));
    let measured = MEASURED.contains(&case.op) || (has_bf16 && on_tensor_cores);
    let computed = case.run(&case.whole(Written::Copies))?;
    for (at, result) in computed.into_iter().enumerate() {
        let is_listed = [DType::F32, DType::BF16, DType::Bool].contains(&result.dtype());
        let name = match at {
            0 => name.to_owned(),
            _ => format!("{name}, result {at}"),
        };
        if is_listed {
            results.push(Case { name, exact: !measured, result });
        }
    }
    Ok(())
}

/// Families of cases, with notes on their extents.
fn families(inputs: &Inputs<'_>) -> Result<Vec<(String, Vec<OpCase>)>> {
    let (specials, many) = (inputs.with_specials(), [ELEMENTS]);
    let mut all: Vec<(String, Vec<OpCase>)> = Vec::new();
    let mut add = |note: &str, cases: Vec<OpCase>| all.push((note.to_owned(), cases));
    add("", unary(&specials, &many)?);
    add("", with_constants(&specials, &many)?);
    add("", binary(&specials, &many, &many)?);
    add("", copies(inputs, [37, 1000])?);
    add("", random(inputs, &[ELEMENTS], &Key::new(11).into())?);
    for [rows, features] in NORMS {
        add(&format!(" {rows}x{features}"), norms(inputs, &[rows], features)?);
    }
    for [m, n, k] in PRODUCTS {
        for transposes in ["nn", "nt", "tn", "tt"] {
            let note = format!(" {transposes} {m}x{n}x{k}");
            add(&note, matmul(inputs, &[], [m, n, k], transposes)?);
        }
    }
    if inputs.dtype == DType::BF16 {
        // Enough tiles for warpgroups.
        for transposes in ["nn", "nt", "tn", "tt"] {
            let note = format!(" {transposes} 33 of 40x136x72");
            add(&note, matmul(inputs, &[33], [40, 136, 72], transposes)?);
        }
    }
    add("", softmaxes(inputs, &[37, 1000])?);
    for (note, dims) in [(" of rows", &[1][..]), (" of columns", &[0]), (" of all", &[0, 1])] {
        add(note, reductions(inputs, &[37, 1000], dims)?);
    }
    add("", vec![top_k(inputs, &[37, 1000], 9)?]);
    add("", ordered(inputs, &[37, 1000])?);
    add("", swiglu(inputs, 37, 500)?);
    add("", embedding(inputs, [50, WIDTH], &[77])?);
    add("", positions(inputs, [1, 19, 3, 64], 32, RopeStyle::Half)?);
    add("", routing(inputs, ROUTING)?);
    add("", permutation(inputs, ROUTING, WIDTH)?);
    let offsets = expert_offsets(inputs, ROUTING)?;
    add("", grouped(inputs, &offsets, [ROUTING[0] * ROUTING[2], WIDTH, 40])?);
    let window = AttentionMask { window: Some(40), ..AttentionMask::causal() };
    let extents = [4, 2].map(|heads| [2, 70, heads, 64]);
    add("", attention(inputs, extents, &window, 0.125)?);
    add("", losses(inputs, [77, WIDTH, 130])?);
    add("", vec![adamw(inputs, 2, &[ELEMENTS], None)?]);
    add("", gradient_norm(inputs, &[ELEMENTS, 130])?);
    Ok(all)
}

fn strided(inputs: &Inputs<'_>, results: &mut Vec<Case>) -> Result<()> {
    let x = inputs.numbers("x", &[23, 5, 34])?;
    let permuted = x.permute(&[2, 0, 1])?;
    let row = inputs.numbers("row", &[5])?;
    let part = x.slice(2, 1..30)?.slice(0, 3..20)?;
    for (name, result) in [
        ("copy of a permuted view", ops::copy(&permuted)?),
        ("add of a broadcast row", ops::add(&permuted, &row)?),
        ("exp of a slice", ops::exp(&part)?),
    ] {
        results.push(Case { name: name.into(), exact: true, result });
    }
    Ok(())
}
