//! The sum of the squares of tensors with any shardings.

use meshgrad_mesh::{Placement, Reduction, Sharding, ShardingRule};

use super::global_norm;
use crate::core::sharding::error::ShardedTensorError;
use crate::core::sharding::gate::Gate;
use crate::core::sharding::tag::Tag;
use crate::{DType, Error, Kind, Result, Shape, Tensor, ops};

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
/// Tensors of any shape, layout and float dtype; returns f32 \[\]. It is infinite for norms above
/// 1.8e19.
///
/// # Errors
/// As [`global_norm`]; [`Error::Sharding`] for a partial tensor, or for tensors of which some have
/// no sharding or one on another mesh.
pub fn sum_of_squares(tensors: &[&Tensor]) -> Result<Tensor> {
    let Some((first, others)) = tensors.split_first() else {
        let problem = "needs at least one tensor".into();
        return Err(Error::Argument {
            op: SUM_OF_SQUARES,
            problem,
        });
    };
    for other in others {
        check_mesh(first, other)?;
    }
    let Some(tag) = first.tag() else {
        return ops::square(&global_norm(tensors)?);
    };

    let mut axes: Vec<String> = Vec::new();
    for tensor in tensors {
        let of_tensor = sharding_axes(tensor)?.into_iter();
        axes.extend(
            of_tensor
                .filter(|axis| !axes.contains(axis))
                .collect::<Vec<_>>(),
        );
    }
    let counted = tensors.iter().filter(|tensor| counts(tensor, &axes));
    let counted: Vec<Tensor> = counted.map(|tensor| tensor.local()).collect();
    let sum = match counted.is_empty() {
        true => Tensor::zeros(first.device(), &[], DType::F32, Kind::Value)?.local(),
        false => ops::square(&global_norm(&counted.iter().collect::<Vec<_>>())?)?,
    };
    let partial = Placement::Partial(Reduction::Sum);
    let placements: Vec<_> = axes.iter().map(|axis| (axis, partial.clone())).collect();
    let sharding = Sharding::new(tag.sharding().mesh(), placements, &[]);
    sum.with_sharding(&sharding.map_err(ShardedTensorError::from)?, tag.rank())
}

/// The axes that shard `x`.
///
/// # Errors
/// [`Error::Sharding`] for partial values, because the square of a sum is not a sum of squares.
fn sharding_axes(x: &Tensor) -> Result<Vec<String>> {
    let gate = Gate {
        op: SUM_OF_SQUARES,
        id: std::ptr::from_ref(&SUM_OF_SQUARES) as usize,
        operands: &[x.tag()],
        name: &|_| "x".to_owned(),
        last_is_open: false,
        arguments: &[1],
    };
    let results = gate.results(|| ShardingRule::new(SUM_OF_SQUARES, "x[..] -> sum[]"))?;
    let Some(results) = results else {
        return Ok(Vec::new());
    };
    let sum = results.of_shape(0, &Shape::default())?;
    let partials = sum.sharding().partials().into_iter();
    Ok(partials.map(|(axis, _)| axis.to_owned()).collect())
}

/// Checks that `first` and `other` have shardings on one mesh, of one rank, or none.
fn check_mesh(first: &Tensor, other: &Tensor) -> Result<()> {
    let anchor = |x: &Tensor| -> Result<Option<Tag>> {
        let Some(tag) = x.tag() else {
            return Ok(None);
        };
        let anchor = Sharding::replicated(tag.sharding().mesh(), &[]);
        Tag::new(anchor.map_err(ShardedTensorError::from)?, tag.rank()).map(Some)
    };
    let (first, other) = (anchor(first)?, anchor(other)?);
    let gate = Gate {
        op: SUM_OF_SQUARES,
        id: std::ptr::from_ref(&SUM_OF_SQUARES) as usize,
        operands: &[first.as_ref(), other.as_ref()],
        name: &|at| ["first", "other"][at].to_owned(),
        last_is_open: false,
        arguments: &[2],
    };
    let rule = "first[], other[] -> sum[]";
    gate.results(|| ShardingRule::new(SUM_OF_SQUARES, rule))?;
    Ok(())
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
