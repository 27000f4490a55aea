//! Propagation over all axes of a mesh, one axis at a time, outer axes first.

use super::bound::{Bound, DimId};
use super::one_axis::propagate;
use super::{RuleError, ShardingRule};
use crate::{Mesh, Placement, Sharding};

impl ShardingRule {
    /// The shardings of the results, given those of the operands. `shapes` are the results' shapes on
    /// any rank: they provide the global extents that no operand determines.
    ///
    /// # Errors
    /// [`RuleError::Incompatible`] for the outermost axis without a strategy, with remedies;
    /// [`RuleError::ShardOrder`] if two operands shard a dim over the same axes in different orders;
    /// [`RuleError::MeshMismatch`]; [`RuleError::Sharding`], for example when a result would be a
    /// partial sum along one axis and a partial maximum along another; [`RuleError::TensorCount`],
    /// [`RuleError::DimCount`], [`RuleError::Extents`] for tensors that do not fit the signature.
    pub fn propagate(
        &self,
        operands: &[&Sharding],
        shapes: &[&[usize]],
    ) -> Result<Vec<Sharding>, RuleError> {
        let operand_shapes: Vec<&[usize]> =
            operands.iter().map(|sharding| sharding.shape()).collect();
        let mut bound = Bound::new(self, &operand_shapes)?;
        let result_shapes = self.result_shapes(&bound, shapes)?;
        let mesh = self.one_mesh(operands)?;
        self.check_orders(&bound, operands)?;

        let mut results = vec![Vec::new(); result_shapes.len()];
        for axis in outermost_first(mesh, operands) {
            let ranks = mesh.size(axis)?;
            let given = operands.iter().map(|sharding| sharding.placement(axis));
            let given: Vec<Placement> = given.collect::<Result<_, _>>()?;
            let strategy = propagate(&bound, axis, ranks, &given)?;
            for (result, placement) in results.iter_mut().zip(strategy.results) {
                result.push((axis, placement));
            }
            if let Some(sharded) = strategy.sharded {
                bound.shard(sharded, ranks);
            }
        }
        let shardings = results.iter().zip(&result_shapes);
        let shardings = shardings.map(|(placements, shape)| Sharding::new(mesh, placements, shape));
        Ok(shardings.collect::<Result<_, _>>()?)
    }

    fn one_mesh<'a>(&self, operands: &[&'a Sharding]) -> Result<&'a Mesh, RuleError> {
        let first = operands[0].mesh();
        let Some(at) = operands
            .iter()
            .position(|sharding| sharding.mesh() != first)
        else {
            return Ok(first);
        };
        Err(RuleError::MeshMismatch {
            op: self.op.clone(),
            operand: self.operands[at].name.clone(),
            mesh: operands[at].mesh().to_string(),
            other: self.operands[0].name.clone(),
            other_mesh: first.to_string(),
        })
    }

    /// The global shapes of the results.
    fn result_shapes(
        &self,
        bound: &Bound<'_>,
        shapes: &[&[usize]],
    ) -> Result<Vec<Vec<usize>>, RuleError> {
        if shapes.len() != self.results.len() {
            return Err(RuleError::TensorCount {
                op: self.op.clone(),
                what: "results",
                names: self.results().map(str::to_owned).collect(),
                given: shapes.len(),
            });
        }
        let results = self.results.iter().zip(&bound.results).zip(shapes);
        let results = results.map(|((result, dims), shape)| {
            let Some(dims) = dims else {
                return Ok(shape.to_vec());
            };
            if dims.len() != shape.len() {
                return Err(RuleError::DimCount {
                    op: self.op.clone(),
                    tensor: result.name.clone(),
                    needed: dims.len(),
                    shape: shape.to_vec(),
                });
            }
            let extents = dims.iter().zip(*shape);
            Ok(extents
                .map(|(dim, extent)| dim.id.map_or(*extent, |_| dim.extent))
                .collect())
        });
        results.collect()
    }

    fn check_orders(&self, bound: &Bound<'_>, operands: &[&Sharding]) -> Result<(), RuleError> {
        for id in bound.ids() {
            let operands_with_dim = self.operands_with_dim(bound, operands, id);
            for (at, first) in operands_with_dim.iter().enumerate() {
                for other in &operands_with_dim[at + 1..] {
                    self.check_order(operands, first, other)?;
                }
            }
        }
        Ok(())
    }

    /// The operands that have a dim, its position in each, and the axes that shard it there.
    fn operands_with_dim<'a>(
        &self,
        bound: &Bound<'_>,
        operands: &[&'a Sharding],
        id: DimId,
    ) -> Vec<(usize, usize, Vec<&'a str>)> {
        let shardings = operands.iter().zip(&bound.operands).enumerate();
        let with_dim = shardings.filter_map(|(at, (sharding, dims))| {
            let (dim, _) = Bound::position(dims, id)?;
            Some((at, dim, sharding.axes_of_dim(dim)))
        });
        with_dim.collect()
    }

    fn check_order(
        &self,
        operands: &[&Sharding],
        (at, dim, axes): &(usize, usize, Vec<&str>),
        (other, other_dim, other_axes): &(usize, usize, Vec<&str>),
    ) -> Result<(), RuleError> {
        // An axis that shards only one of them is checked by the propagation along that axis.
        let both = axes.iter().filter(|axis| other_axes.contains(axis));
        let other_both = other_axes.iter().filter(|axis| axes.contains(axis));
        match both.eq(other_both) {
            true => Ok(()),
            false => Err(RuleError::ShardOrder {
                op: self.op.clone(),
                operand: self.operands[*at].name.clone(),
                dim: *dim,
                sharding: operands[*at].to_string(),
                other: self.operands[*other].name.clone(),
                other_dim: *other_dim,
                other_sharding: operands[*other].to_string(),
            }),
        }
    }
}

/// The axes of a mesh. Of the axes that shard one dim, the outer ones come first.
fn outermost_first<'a>(mesh: &'a Mesh, operands: &[&Sharding]) -> Vec<&'a str> {
    let mut waiting: Vec<&str> = mesh.axes().iter().map(|axis| axis.name()).collect();
    let mut ordered = Vec::with_capacity(waiting.len());
    while !waiting.is_empty() {
        let is_inner = |axis: &str| {
            operands.iter().any(|sharding| {
                let dim = sharding
                    .placement(axis)
                    .ok()
                    .and_then(|placement| placement.dim());
                let axes = dim.map_or(Vec::new(), |dim| sharding.axes_of_dim(dim));
                let outer = axes.iter().take_while(|other| **other != axis);
                outer.into_iter().any(|other| waiting.contains(other))
            })
        };
        // No axis qualifies if unrelated dims are sharded in opposite orders: take any.
        let next = waiting.iter().position(|axis| !is_inner(axis)).unwrap_or(0);
        ordered.push(waiting.remove(next));
    }
    ordered
}
