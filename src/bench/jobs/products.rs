//! Matrix products, which are compute-bound.

use meshgrad::prelude::*;
use meshgrad::runtime::op_cases::matmul;
use serde_json::json;

use super::{Amount, Group, Job};
use crate::bench::shapes::{Gemm, Shapes};

pub(crate) fn groups(shapes: &Shapes) -> Vec<Group> {
    let of_dtype = |dtype: DType| shapes.gemm.iter().map(move |gemm| product(gemm, dtype));
    shapes.floats().flat_map(of_dtype).collect()
}

fn product(gemm: &Gemm, dtype: DType) -> Group {
    let Gemm { m, n, k, transposes, what } = gemm.clone();
    let extents = json!({"m": m, "n": n, "k": k, "transposes": transposes});
    let flops = Amount::Flops(2.0 * (m * n * k) as f64);
    Group {
        title: format!("{m}, {n}, {k} {transposes}: {what}"),
        jobs: vec![Job::new("matmul", &["matmul"], dtype, flops, &extents)],
        bytes: dtype.bytes((m + n) * k),
        family: Box::new(move |source| matmul(source, &[], [m, n, k], &transposes)),
    }
}
