//! The sum of the squares of tensors with any shardings.

use meshgrad_error::bail;
use meshgrad_mesh::{Placement, Reduction, Sharding, ShardingRule};

use super::global_norm;
use crate::core::sharding::gate::Gate;
use crate::core::sharding::tag::Tag;
use crate::{DType, Kind, Result, Shape, Tensor, ops};

static SUM_OF_SQUARES: &str = "sum_of_squares";

/// The sum of the squares of all elements of all `tensors`, which may have different shardings on
/// one mesh. Each element counts once: a tensor that an axis replicates counts on its first rank
/// only, if the axis shards another tensor. The result is a partial sum over the axes that shard a
/// tensor, and replicated over the others.
///
/// The square root of the sum, redistributed to replicate, is the norm of all tensors;
/// `meshgrad_autograd::ops::global_norm` computes it.
///
/// # Shapes
/// Tensors of any shape, layout and float dtype; returns f64 \[\] on a CPU. On a GPU, whose kernels
/// do not compute in f64, it returns f32 \[\]: 0 if the norm of this rank's elements is below
/// 2.6e-23, less precise below 1.1e-19, and infinite above 1.8e19.
///
/// # Errors
/// As [`global_norm`]; for a partial tensor, or for tensors of which some have no sharding or one
/// on another mesh.
pub fn sum_of_squares(tensors: &[&Tensor]) -> Result<Tensor> {
    let Some(first) = tensors.first() else {
        bail!(Invalid, "{SUM_OF_SQUARES}: needs at least one tensor");
    };
    let mut axes: Vec<String> = Vec::new();
    for tensor in tensors {
        for axis in sharding_axes(first, tensor)? {
            if !axes.contains(&axis) {
                axes.push(axis);
            }
        }
    }
    let counted = tensors.iter().filter(|tensor| counts(tensor, &axes));
    let counted: Vec<Tensor> = counted.map(|tensor| tensor.local()).collect();
    let sum = match counted.is_empty() {
        true => Tensor::zeros(first.device(), &[], dtype(first), Kind::Value)?,
        false => {
            let norm = global_norm(&counted.iter().collect::<Vec<_>>())?;
            ops::square(&ops::cast(&norm, dtype(first))?)?
        }
    };
    let Some(tag) = first.tag() else {
        return Ok(sum);
    };
    let partial = Placement::Partial(Reduction::Sum);
    let placements: Vec<_> = axes.iter().map(|axis| (axis, partial.clone())).collect();
    let sharding = Sharding::new(tag.sharding().mesh(), placements, &[]);
    sum.with_sharding(&sharding?, tag.rank())
}

/// The dtype of the sum. f64 holds the square of any f32, but GPU ops do not take it.
fn dtype(x: &Tensor) -> DType {
    match x.device().is_gpu() {
        true => DType::F32,
        false => DType::F64,
    }
}

/// The axes that shard `x`, which must be on the mesh of `first` and of the same rank.
///
/// # Errors
/// When the shardings do not fit, also for partial values, because the square of a sum is not a sum
/// of squares.
fn sharding_axes(first: &Tensor, x: &Tensor) -> Result<Vec<String>> {
    // An operand on the mesh of `first` that has no dims to shard.
    let anchor = first.tag().map(|tag| {
        let anchor = Sharding::replicated(tag.sharding().mesh(), &[]);
        Tag::new(anchor?, tag.rank())
    });
    let anchor = anchor.transpose()?;
    let gate = Gate {
        op: SUM_OF_SQUARES,
        id: std::ptr::from_ref(&SUM_OF_SQUARES) as usize,
        operands: &[anchor.as_ref(), x.tag()],
        name: &|at| ["first", "x"][at].to_owned(),
        last_is_open: false,
        arguments: &[],
    };
    let rule = "first[], x[..] -> sum[]";
    let Some(results) = gate.results(&|| ShardingRule::new(SUM_OF_SQUARES, rule))? else {
        return Ok(Vec::new());
    };
    let sum = results.of_shape(0, &Shape::default())?;
    let partials = sum.sharding().partials().into_iter();
    Ok(partials.map(|(axis, _)| axis.to_owned()).collect())
}

/// Whether this rank counts its part of `x`: it is the first rank along each of `axes` that
/// replicates `x`.
fn counts(x: &Tensor, axes: &[String]) -> bool {
    let Some(tag) = x.tag() else {
        return true;
    };
    let mesh = tag.sharding().mesh();
    let coordinate = mesh.coordinate(tag.rank()).unwrap_or_default();
    let mut places = mesh.axes().iter().zip(coordinate);
    places.all(|(axis, at)| {
        let is_replicated = tag.sharding().placement(axis.name()) == Ok(Placement::Replicate);
        at == 0 || !is_replicated || !axes.iter().any(|other| other == axis.name())
    })
}
