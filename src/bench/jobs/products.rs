//! Matrix products, which are compute-bound.

use meshgrad::prelude::*;
use meshgrad::runtime::ops;
use serde_json::json;

use super::{Amount, Group, Job};
use crate::bench::shapes::{Gemm, Shapes};

pub(crate) fn groups(shapes: &Shapes) -> Vec<Group> {
    let of_dtype = |dtype: DType| shapes.gemm.iter().map(move |gemm| product(gemm, dtype));
    shapes.floats().flat_map(of_dtype).collect()
}

fn product(gemm: &Gemm, dtype: DType) -> Group {
    let Gemm {
        m,
        n,
        k,
        transposes,
        what,
    } = gemm.clone();
    let extents = json!({"m": m, "n": n, "k": k, "transposes": transposes});
    let flops = Amount::Flops(2.0 * (m * n * k) as f64);
    let job = Job::new("matmul", dtype, flops, &extents, |of| {
        Ok(vec![ops::matmul(&of[0], &of[1])?])
    });
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
