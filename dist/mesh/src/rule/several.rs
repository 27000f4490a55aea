//! Several axes: each by itself, where the axes that cut one dim cut it in one order.

use super::axis::infer;
use super::bound::{Bound, Label};
use super::{Rule, RuleError};
use crate::{Mesh, Place, Placement};

impl Rule {
    /// Where the results are, from where the operands are. What no operand says about the results'
    /// global shapes is taken from `shapes`, those of the results on any rank.
    ///
    /// # Errors
    /// [`RuleError::Misplaced`] for the outermost axis that the op cannot compute along, with what
    /// would help; [`RuleError::Order`] where axes cut a dim of one operand in another order than
    /// that of another; [`RuleError::Meshes`]; [`RuleError::Place`], as for a sum of parts along
    /// one axis and a maximum along another; [`RuleError::Count`], [`RuleError::Dims`],
    /// [`RuleError::Extents`] for operands and shapes that are not the op's.
    pub fn places(
        &self,
        operands: &[&Place],
        shapes: &[&[usize]],
    ) -> Result<Vec<Place>, RuleError> {
        let operand_shapes: Vec<&[usize]> = operands.iter().map(|place| place.shape()).collect();
        let mut bound = Bound::new(self, &operand_shapes)?;
        let result_shapes = self.result_shapes(&bound, shapes)?;
        let mesh = self.one_mesh(operands)?;
        self.check_orders(&bound, operands)?;

        let mut results = vec![Vec::new(); result_shapes.len()];
        for axis in outermost_first(mesh, operands) {
            let ranks = mesh.size(axis)?;
            let given = operands.iter().map(|place| place.placement(axis));
            let given: Vec<Placement> = given.collect::<Result<_, _>>()?;
            let way = infer(&bound, axis, ranks, &given)?;
            for (result, placement) in results.iter_mut().zip(way.results) {
                result.push((axis, placement));
            }
            if let Some(cut) = way.cut {
                bound.cut(cut, ranks);
            }
        }
        let places = results.iter().zip(&result_shapes);
        let places = places.map(|(placements, shape)| Place::new(mesh, placements, shape));
        Ok(places.collect::<Result<_, _>>()?)
    }

    fn one_mesh<'a>(&self, operands: &[&'a Place]) -> Result<&'a Mesh, RuleError> {
        let first = operands[0].mesh();
        let Some(at) = operands.iter().position(|place| place.mesh() != first) else {
            return Ok(first);
        };
        Err(RuleError::Meshes {
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
            return Err(RuleError::Count {
                op: self.op.clone(),
                what: "results",
                names: self.results().map(str::to_owned).collect(),
                given: shapes.len(),
            });
        }
        let results = self.results.iter().zip(&bound.results).zip(shapes);
        let results = results.map(|((result, slots), shape)| {
            let Some(slots) = slots else {
                return Ok(shape.to_vec());
            };
            if slots.len() != shape.len() {
                return Err(RuleError::Dims {
                    op: self.op.clone(),
                    tensor: result.name.clone(),
                    needed: slots.len(),
                    shape: shape.to_vec(),
                });
            }
            let extents = slots.iter().zip(*shape);
            Ok(extents
                .map(|(slot, extent)| slot.label.map_or(*extent, |_| slot.extent))
                .collect())
        });
        results.collect()
    }

    fn check_orders(&self, bound: &Bound<'_>, operands: &[&Place]) -> Result<(), RuleError> {
        for label in bound.labels() {
            let cut = self.cut_operands(bound, operands, label);
            for (at, first) in cut.iter().enumerate() {
                for other in &cut[at + 1..] {
                    self.check_order(operands, first, other)?;
                }
            }
        }
        Ok(())
    }

    /// The operands that have a dim, where they have it, and the axes that cut it.
    fn cut_operands<'a>(
        &self,
        bound: &Bound<'_>,
        operands: &[&'a Place],
        label: Label,
    ) -> Vec<(usize, usize, Vec<&'a str>)> {
        let places = operands.iter().zip(&bound.operands).enumerate();
        let cut = places.filter_map(|(at, (place, slots))| {
            let (dim, _) = Bound::position(slots, label)?;
            Some((at, dim, place.cuts(dim)))
        });
        cut.collect()
    }

    fn check_order(
        &self,
        operands: &[&Place],
        (at, dim, axes): &(usize, usize, Vec<&str>),
        (other, other_dim, other_axes): &(usize, usize, Vec<&str>),
    ) -> Result<(), RuleError> {
        // An axis that cuts one of them only is what the rule along that axis is about.
        let both = axes.iter().filter(|axis| other_axes.contains(axis));
        let other_both = other_axes.iter().filter(|axis| axes.contains(axis));
        match both.eq(other_both) {
            true => Ok(()),
            false => Err(RuleError::Order {
                op: self.op.clone(),
                operand: self.operands[*at].name.clone(),
                dim: *dim,
                place: operands[*at].to_string(),
                other: self.operands[*other].name.clone(),
                other_dim: *other_dim,
                other_place: operands[*other].to_string(),
            }),
        }
    }
}

/// The axes of a mesh, those that cut a dim before the others that cut it.
fn outermost_first<'a>(mesh: &'a Mesh, operands: &[&Place]) -> Vec<&'a str> {
    let mut waiting: Vec<&str> = mesh.axes().iter().map(|axis| axis.name()).collect();
    let mut ordered = Vec::with_capacity(waiting.len());
    while !waiting.is_empty() {
        let is_inner = |axis: &str| {
            operands.iter().any(|place| {
                let dim = place
                    .placement(axis)
                    .ok()
                    .and_then(|placement| placement.dim());
                let cuts = dim.map_or(Vec::new(), |dim| place.cuts(dim));
                let outer = cuts.iter().take_while(|cut| **cut != axis);
                outer.into_iter().any(|cut| waiting.contains(cut))
            })
        };
        // Only operands that disagree on the order, of dims that are not one, let all wait.
        let next = waiting.iter().position(|axis| !is_inner(axis)).unwrap_or(0);
        ordered.push(waiting.remove(next));
    }
    ordered
}
