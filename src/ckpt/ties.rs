//! Checks *ties*: pairs of tensors that must be equal for a map to have an inverse.

use std::collections::BTreeMap;

use anyhow::anyhow;
use indicatif::ProgressBar;
use meshgrad::ckpt::graph::Graph;
use meshgrad::ckpt::mapping::{Bound, TensorSpec};
use meshgrad::ckpt::plan::LoadRequest;
use meshgrad::ckpt::{TensorInfo, exec};
use twox_hash::XxHash3_128;

use super::source::Source;
use super::stream::{Limits, Stream, file_shape};

/// Checks that the tied tensors of a map are equal.
pub(super) fn check_ties(bound: &Bound, source: &Source, limits: &Limits) -> anyhow::Result<()> {
    if source.is_whole() {
        return Ok(exec::check_ties(bound, source.stored(), 0, 1)?);
    }
    let specs = source.specs();
    let specs: BTreeMap<&str, &TensorSpec> = specs.iter().map(|it| (&*it.name, it)).collect();
    let digest = |name: &str| match specs.get(name) {
        Some(spec) => digest(spec, source, limits),
        None => Err(anyhow!("`{name}` is not in {}", source.path().display())),
    };
    for (first, second) in bound.ties() {
        if digest(first)? != digest(second)? {
            return Err(exec::not_tied(source.path(), first, second).into());
        }
    }
    Ok(())
}

/// The dtype, the shape and a digest of a tensor that is stored in parts.
fn digest(
    spec: &TensorSpec,
    source: &Source,
    limits: &Limits,
) -> anyhow::Result<(meshgrad::ckpt::Dtype, Vec<u64>, u128)> {
    let mut graph = Graph::new();
    let expr = graph.source(&spec.name, spec.dtype, &spec.shape)?;
    let request = LoadRequest::all(&*spec.name, &graph, expr);
    let hidden = ProgressBar::hidden();
    let mut stream = Stream::new(&graph, source, vec![request], limits, &hidden)?;
    let tensor = TensorInfo {
        name: spec.name.clone(),
        dtype: spec.dtype,
        shape: file_shape(&spec.shape),
        range: 0..0,
    };
    let mut hash = XxHash3_128::new();
    stream.each_part(&tensor, |bytes| {
        hash.write(bytes);
        Ok(())
    })?;
    Ok((spec.dtype, spec.shape.clone(), hash.finish_128()))
}
