//! Propagation over all axes of a mesh, one axis at a time, outer axes first.

use meshgrad_error::{Error, Result, bail, ensure, error};

use super::bound::{Bound, DimId};
use super::derived::DerivedSharding;
use super::one_axis::propagate;
use super::sharding_rule::{ShardingRule, check_count};
use crate::{Mesh, Placement, Sharding};

impl ShardingRule {
    /// The shardings of the results, given those of the operands. `shapes` are the local shapes of
    /// the results on any rank; global extents that no operand determines are taken from them.
    ///
    /// # Errors
    /// As [`ShardingRule::derive`]; for shapes that do not fit the signature; when the placements
    /// of a result do not combine.
    pub fn propagate(&self, operands: &[&Sharding], shapes: &[&[usize]]) -> Result<Vec<Sharding>> {
        check_count(&self.op, "results", &self.results, shapes.len())?;
        let operands: Vec<_> = operands.iter().copied().map(Some).collect();
        let results = self.derive(&operands)?.into_iter().zip(shapes);
        results.map(|(result, shape)| result.sharding(shape)).collect()
    }

    /// The placements of the results, given the shardings of the operands. One operand that is
    /// modified in place may have no sharding: it takes that of its result.
    ///
    /// # Errors
    /// With an [`Incompatible`](super::Incompatible) for the outermost axis without a strategy;
    /// when two operands shard a dim over the same axes in different orders, are on different
    /// meshes or do not fit the signature; for other operands without a sharding.
    pub fn derive(&self, operands: &[Option<&Sharding>]) -> Result<Vec<DerivedSharding>> {
        self.derive_with(operands, None)
    }

    /// As [`ShardingRule::derive`], where the last operand is modified in place and its sharding,
    /// if it has one, states only its shards: it takes the partial values of its result.
    ///
    /// # Errors
    /// As [`ShardingRule::derive`].
    pub fn derive_into(&self, operands: &[Option<&Sharding>]) -> Result<Vec<DerivedSharding>> {
        self.derive_with(operands, operands.len().checked_sub(1))
    }

    fn derive_with(
        &self,
        operands: &[Option<&Sharding>],
        open: Option<usize>,
    ) -> Result<Vec<DerivedSharding>> {
        let shapes: Vec<_> = operands.iter().map(|it| it.map(Sharding::shape)).collect();
        let mut bound = Bound::new(self, &shapes)?;
        bound.open = bound.open.or(open);
        let mesh = self.one_mesh(operands)?;
        self.check_orders(&bound, operands)?;
        let mut results = self.without_placements(&bound, mesh);

        for axis in self.outermost_first(mesh, operands) {
            let ranks = mesh.size(axis)?;
            let given = operands.iter().map(|sharding| match sharding {
                Some(sharding) => sharding.placement(axis),
                None => Ok(Placement::Replicate),
            });
            let given: Vec<Placement> = given.collect::<Result<_, _>>()?;
            let strategy = propagate(&bound, axis, ranks, &given)?;
            for (result, placement) in results.iter_mut().zip(strategy.results) {
                result.placements.push((axis.to_owned(), placement));
            }
            for sharded in strategy.sharded {
                bound.shard(sharded, ranks);
            }
        }
        Ok(results)
    }

    /// The mesh of the operands. An operand without a sharding must take that of its result.
    fn one_mesh<'a>(&self, operands: &[Option<&'a Sharding>]) -> Result<&'a Mesh> {
        let mut first: Option<(usize, &Mesh)> = None;
        let mut open = 0;
        for (at, sharding) in operands.iter().enumerate() {
            let Some(sharding) = sharding else {
                open += 1;
                match self.in_place(at) {
                    Some(_) if open == 1 => continue,
                    _ => return Err(self.no_sharding(at)),
                }
            };
            let (other, mesh) = *first.get_or_insert((at, sharding.mesh()));
            if sharding.mesh() != mesh {
                let [operand, other] = [at, other].map(|at| &self.operands[at].name);
                bail!(
                    Invalid,
                    "{}: `{operand}` is on the mesh {} and `{other}` on {mesh}: put them on one mesh",
                    self.op,
                    sharding.mesh()
                );
            }
        }
        first.map(|(_, mesh)| mesh).ok_or_else(|| self.no_sharding(0))
    }

    fn no_sharding(&self, operand: usize) -> Error {
        let operand = self.operands.get(operand).map_or("", |it| &it.name);
        error!(Invalid, "{}: `{operand}` has no sharding", self.op)
    }

    /// The results with their global extents, before any axis.
    fn without_placements(&self, bound: &Bound<'_>, mesh: &Mesh) -> Vec<DerivedSharding> {
        let results = self.results.iter().zip(&bound.results);
        let results = results.map(|(result, dims)| DerivedSharding {
            op: self.op.clone(),
            result: result.name.clone(),
            mesh: mesh.clone(),
            placements: Vec::new(),
            extents: dims.as_ref().map(|dims| {
                let extents = dims.iter().map(|dim| dim.is_known.then_some(dim.extent));
                extents.collect()
            }),
        });
        results.collect()
    }

    fn check_orders(&self, bound: &Bound<'_>, operands: &[Option<&Sharding>]) -> Result<()> {
        for id in bound.ids() {
            let operands_with_dim = self.operands_with_dim(bound, operands, id);
            for (at, first) in operands_with_dim.iter().enumerate() {
                for other in &operands_with_dim[at + 1..] {
                    self.check_order(first, other)?;
                }
            }
        }
        Ok(())
    }

    /// The operands that have a dim, its position in each, and the axes that shard it there.
    fn operands_with_dim<'a>(
        &self,
        bound: &Bound<'_>,
        operands: &[Option<&'a Sharding>],
        id: DimId,
    ) -> Vec<OperandDim<'a>> {
        let shardings = operands.iter().zip(&bound.operands).enumerate();
        let with_dim = shardings.filter_map(|(operand, (sharding, dims))| {
            let sharding = (*sharding)?;
            let (dim, _) = Bound::position(dims, id)?;
            Some(OperandDim { operand, dim, sharding })
        });
        with_dim.collect()
    }

    fn check_order(&self, one: &OperandDim<'_>, other: &OperandDim<'_>) -> Result<()> {
        let (axes, other_axes) = (one.axes(), other.axes());
        // An axis that shards only one of them is checked by the propagation along that axis.
        let both = axes.iter().filter(|axis| other_axes.contains(axis));
        let other_both = other_axes.iter().filter(|axis| axes.contains(axis));
        ensure!(
            both.eq(other_both),
            Invalid,
            "{}: the same axes shard dim {} of `{}` ({}) and dim {} of `{}` ({}) in different orders: \
             redistribute one of them",
            self.op,
            one.dim,
            self.operands[one.operand].name,
            one.sharding,
            other.dim,
            self.operands[other.operand].name,
            other.sharding
        );
        Ok(())
    }

    /// The axes of a mesh. Of the axes that shard one dim, or dims that a reshape merges, the outer
    /// ones come first.
    fn outermost_first<'a>(&self, mesh: &'a Mesh, operands: &[Option<&Sharding>]) -> Vec<&'a str> {
        let mut waiting: Vec<&str> = mesh.axes().iter().map(|axis| axis.name()).collect();
        let mut ordered = Vec::with_capacity(waiting.len());
        while !waiting.is_empty() {
            let is_inner = |axis: &str| {
                let mut outer =
                    operands.iter().flatten().flat_map(|sharding| self.outer_axes(sharding, axis));
                outer.any(|other| waiting.contains(&other))
            };
            // No axis qualifies if unrelated dims are sharded in opposite orders: take any.
            let next = waiting.iter().position(|axis| !is_inner(axis)).unwrap_or(0);
            ordered.push(waiting.remove(next));
        }
        ordered
    }

    /// The axes outside of the shards of `axis`.
    fn outer_axes<'a>(&self, sharding: &'a Sharding, axis: &str) -> Vec<&'a str> {
        let placement = sharding.placement(axis).ok();
        let Some(dim) = placement.and_then(|placement| placement.dim()) else {
            return Vec::new();
        };
        let merged = self.dims_merged_before(dim);
        let merged = merged.flat_map(|dim| sharding.axes_of_dim(dim));
        let own = sharding.axes_of_dim(dim).into_iter();
        merged.chain(own.take_while(|other| *other != axis)).collect()
    }
}

/// A dim of an operand.
struct OperandDim<'a> {
    operand: usize,
    dim: usize,
    sharding: &'a Sharding,
}

impl<'a> OperandDim<'a> {
    fn axes(&self) -> Vec<&'a str> {
        self.sharding.axes_of_dim(self.dim)
    }
}
