//! Matrix products, whose bound is arithmetic.

use meshgrad::prelude::*;
use serde_json::json;

use crate::jobs::{Amount, FLOATS, Group, Job};
use crate::shapes::{Gemm, Shapes};

pub(crate) fn groups(shapes: &Shapes) -> Vec<Group> {
    let of_dtype = |dtype: DType| shapes.gemm.iter().map(move |gemm| product(gemm, dtype));
    FLOATS.into_iter().flat_map(of_dtype).collect()
}

fn product(gemm: &Gemm, dtype: DType) -> Group {
    let Gemm {
        m,
        n,
        k,
        transposes,
        what,
    } = gemm.clone();
    let job = Job {
        name: "matmul",
        dtype,
        amount: Amount::Flops(2.0 * (m * n * k) as f64),
        request: json!({
            "what": "matmul", "dtype": dtype.name(),
            "m": m, "n": n, "k": k, "transposes": transposes,
        }),
        compiles: false,
        run: Box::new(|of| Ok(vec![values::matmul(&of[0], &of[1])?])),
    };
    Group {
        title: format!("{m}, {n}, {k} {transposes}: {what}"),
        jobs: vec![job],
        bytes: dtype.bytes((m + n) * k),
        operands: Box::new(move |source| {
            let a = source.matrix("a", [m, k], transposes.starts_with('t'), dtype)?;
            let b = source.matrix("b", [k, n], transposes.ends_with('t'), dtype)?;
            Ok(vec![a, b])
        }),
    }
}
