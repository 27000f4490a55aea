//! Evaluates regions of expressions over tensors in memory, to write them to a checkpoint.

use std::ops::Range;

use meshgrad_error::{Error, Result, bail, ensure, error};

use super::scatter;
use crate::Dtype;
use crate::graph::{ElementCopy, ElementOp, Expr, Graph, Leaf};
use crate::plan::{Conversion, Part, loops_in_bytes};

/// Gathers a region of an expression, row-major and dense, from the tensors that `memory` returns
/// by name.
///
/// # Errors
/// When a tensor is not in memory or has another size there, `out` has another size than the
/// region, or the region cannot be traced.
pub fn gather<'m>(
    graph: &Graph,
    expr: Expr,
    region: &[Range<u64>],
    memory: &dyn Fn(&str) -> Option<&'m [u8]>,
    out: &mut [u8],
) -> Result<()> {
    let elements: u64 = region.iter().map(|it| it.end - it.start).product();
    let expected = bytes_of(elements, graph.dtype(expr));
    check_size("the region", expected, out)?;
    for copy in graph.copies(expr, region)? {
        put(graph, &copy, graph.dtype(expr), memory, out)?;
    }
    Ok(())
}

/// Copies the elements of one copy to `out`, from the tensors that `memory` returns by name.
pub(crate) fn put<'m>(
    graph: &Graph,
    copy: &ElementCopy,
    dtype: Dtype,
    memory: &dyn Fn(&str) -> Option<&'m [u8]>,
    out: &mut [u8],
) -> Result<()> {
    let name = graph.leaf_name(copy.from);
    let (from, bytes) = match copy.from {
        Leaf::Computed(_) => return Err(not_computed(name)),
        Leaf::Fill(value) => {
            let step = |element, step: &ElementOp| step.apply(element);
            let value = copy.steps.iter().try_fold(value, step).unwrap_or(value);
            let bits = value.bits().to_le_bytes();
            let parts = loops_in_bytes(copy, dtype, dtype);
            let (_, to, loops) = parts.ok_or_else(|| part_of_a_byte(name))?;
            scatter::fill(&loops, to, &bits[..dtype.bits() / 8], out);
            return Ok(());
        }
        Leaf::Source(source) => {
            let Some(bytes) = memory(name) else {
                bail!(Invalid, "`{}` is not in memory", name.escape_debug());
            };
            let from = graph.source_dtype(source);
            let expected = bytes_of(graph.source_shape(source).iter().product(), from);
            check_size(name, expected, bytes)?;
            (from, bytes)
        }
    };
    let parts = loops_in_bytes(copy, from, dtype);
    let (start, to, loops) = parts.ok_or_else(|| part_of_a_byte(name))?;
    let part = Part {
        from: start,
        to,
        element: from.bits().div_ceil(8) as u32,
        to_element: dtype.bits().div_ceil(8) as u32,
        loops: &loops,
    };
    if copy.steps.is_empty() {
        scatter::scatter(bytes, part, out);
    } else {
        let steps = copy.steps.clone();
        scatter::scatter_converted(bytes, part, out, &Conversion { from, steps });
    }
    Ok(())
}

fn check_size(name: &str, expected: u64, memory: &[u8]) -> Result<()> {
    ensure!(
        memory.len() as u64 == expected,
        Invalid,
        "`{}` has {expected} bytes, but its memory has {}",
        name.escape_debug(),
        memory.len()
    );
    Ok(())
}

/// The error for an operation whose result would have to be computed first.
pub(crate) fn not_computed(name: &str) -> Error {
    let name = name.escape_debug();
    error!(Invalid, "the result of `{name}` is not in memory; compute it first")
}

/// The error for elements smaller than a byte, which would have to be extracted from their bytes.
pub(crate) fn part_of_a_byte(name: &str) -> Error {
    let name = name.escape_debug();
    error!(Invalid, "elements of `{name}` are smaller than a byte and cannot be copied one by one")
}

fn bytes_of(elements: u64, dtype: Dtype) -> u64 {
    (elements * dtype.bits() as u64).div_ceil(8)
}

/// Splits a tensor into regions of whole rows along dim 0, in order. Each has at most `bytes` bytes
/// or is a single row. A tensor with elements smaller than a byte is not split.
pub fn rows_per_batch(
    shape: &[u64],
    dtype: Dtype,
    bytes: u64,
) -> impl Iterator<Item = Vec<Range<u64>>> {
    let whole: Vec<Range<u64>> = shape.iter().map(|extent| 0..*extent).collect();
    let rows = shape.first().copied().unwrap_or(1);
    let row = bytes_of(shape.iter().skip(1).product(), dtype).max(1);
    let at_a_time = match dtype.bits() < 8 {
        true => rows.max(1), // rows may end inside a byte
        false => (bytes / row).clamp(1, rows.max(1)),
    };
    (0..rows).step_by(at_a_time as usize).map(move |start| {
        let mut region = whole.clone();
        if let Some(first) = region.first_mut() {
            *first = start..(start + at_a_time).min(rows);
        }
        region
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::{AllowedProblems, Mapping, TensorSpec};

    /// Applying a map and then its inverse, a few rows at a time, gives the original bytes.
    #[test]
    fn a_round_trip_through_a_map_preserves_bytes() {
        let map = "
            x = transpose(concat(a, b, shares=2:1), 0, 1)
            y = interleave(unflatten(c, 3), d)";
        let sources = [
            TensorSpec::new("a", Dtype::F32, &[40, 5]),
            TensorSpec::new("b", Dtype::F32, &[20, 5]),
            TensorSpec::new("c", Dtype::U8, &[12]),
            TensorSpec::new("d", Dtype::U8, &[3, 4]),
        ];
        let forth = Mapping::parse(map).unwrap().bind(&sources, None, &AllowedProblems::none());
        let forth = forth.unwrap_or_else(|report| panic!("{report}"));
        let bytes = |spec: &TensorSpec| -> Vec<u8> {
            let count = bytes_of(spec.shape.iter().product(), spec.dtype);
            (0..count).map(|at| (at * 31 + spec.shape[0]) as u8).collect()
        };
        let before: Vec<(String, Vec<u8>)> =
            sources.iter().map(|spec| (spec.name.clone(), bytes(spec))).collect();

        let make = |bound: &crate::mapping::Bound, from: &[(String, Vec<u8>)], at_a_time| {
            let memory = |name: &str| {
                let found = from.iter().find(|(it, _)| it == name);
                found.map(|(_, bytes)| &bytes[..])
            };
            let made = bound.outputs().map(|spec| {
                let expr = bound.expr(&spec.name).unwrap();
                let mut all = Vec::new();
                for region in rows_per_batch(&spec.shape, spec.dtype, at_a_time) {
                    let elements = region.iter().map(|it| it.end - it.start).product();
                    let mut out = vec![0; bytes_of(elements, spec.dtype) as usize];
                    gather(bound.graph(), expr, &region, &memory, &mut out).unwrap();
                    all.extend(out);
                }
                (spec.name, all)
            });
            made.collect::<Vec<_>>()
        };
        let made = make(&forth, &before, 100);
        for at_a_time in [1, 50, 1 << 20] {
            let back = forth.inverse().unwrap();
            assert_eq!(make(&back, &made, at_a_time), before);
        }
    }

    #[test]
    fn missing_tensors_are_named() {
        let mut graph = Graph::new();
        let x = graph.source("x", Dtype::F32, &[2, 3]).unwrap();
        let mean = Mapping::parse("m = mean(x, y)").unwrap();
        let specs = ["x", "y"].map(|name| TensorSpec::new(name, Dtype::F32, &[2, 3]));
        let mean = mean.bind(&specs, None, &AllowedProblems::none()).unwrap();
        let whole = [0..2, 0..3];
        let nothing = |_: &str| None;
        let little = |_: &str| Some(&[0u8; 4][..]);
        let make = |graph, expr, memory: &dyn Fn(&str) -> Option<&'static [u8]>, size| {
            let made = gather(graph, expr, &whole, memory, &mut vec![0; size]);
            made.unwrap_err().to_string()
        };
        let m = mean.expr("m").unwrap();
        assert_eq!(make(&graph, x, &nothing, 24), "`x` is not in memory");
        assert_eq!(make(&graph, x, &little, 24), "`x` has 24 bytes, but its memory has 4");
        assert_eq!(
            make(&graph, x, &little, 23),
            "`the region` has 24 bytes, but its memory has 23"
        );
        assert_eq!(
            make(mean.graph(), m, &nothing, 24),
            "the result of `mean` is not in memory; compute it first"
        );
    }
}
