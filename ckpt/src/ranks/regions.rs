//! The regions that ranks own, as sources of a graph.

use std::collections::BTreeSet;

use meshgrad_error::Result;

use super::owners::{COORDINATOR, HeldTensor, positions};
use super::shard::Indices;
use crate::exec;
use crate::graph::{ElementCopy, Expr, Graph, Leaf};

/// A graph whose sources are owned regions.
#[derive(Default)]
pub(super) struct Regions {
    pub(super) graph: Graph,
    /// The region of each source.
    sources: Vec<OwnedRegion>,
}

/// A region of a tensor of the model.
pub(super) struct OwnedRegion {
    pub(super) tensor: String,
    pub(super) owner: usize,
}

impl Regions {
    pub(super) fn owner(&self, copy: &ElementCopy) -> usize {
        self.source(copy).map_or(COORDINATOR, |region| region.owner)
    }

    /// The region that a copy reads; `None` for a constant.
    pub(super) fn source(&self, copy: &ElementCopy) -> Option<&OwnedRegion> {
        match copy.from {
            Leaf::Source(source) => self.sources.get(source.index()),
            Leaf::Fill(_) | Leaf::Computed(_) => None,
        }
    }

    /// The tensors of the model that `rank` needs to write its part of the stored tensor `name`;
    /// `None` if it has no part.
    ///
    /// # Errors
    /// When the stored tensor does not consist of copies of whole bytes.
    pub(super) fn needed(
        &self,
        name: &str,
        expr: Expr,
        rank: usize,
    ) -> Result<Option<BTreeSet<String>>> {
        if self.graph.dtype(expr).bits() < 8 {
            return Err(exec::part_of_a_byte(name));
        }
        let mut copies = self.graph.copies_of_all(expr)?;
        let is_computed = |copy: &&ElementCopy| matches!(copy.from, Leaf::Computed(_));
        if let Some(copy) = copies.iter().find(is_computed) {
            return Err(exec::not_computed(self.graph.leaf_name(copy.from)));
        }
        copies.retain(|copy| self.owner(copy) == rank);
        let sources = copies.iter().filter_map(|copy| self.source(copy));
        let tensors = sources.map(|region| region.tensor.clone());
        Ok((!copies.is_empty()).then(|| tensors.collect()))
    }

    /// A tensor of the model as an expression over its regions, which are new sources.
    pub(super) fn join(&mut self, tensor: &HeldTensor) -> Result<Expr> {
        if tensor.regions.is_empty() {
            return self.add(tensor, COORDINATOR, &tensor.spec.shape);
        }
        let mut joined = self.concat(tensor, &mut Indices(Vec::new()))?;
        // Each set of indices is contiguous in it: restore the order of the tensor.
        for (dim, sets) in tensor.sets.iter().enumerate() {
            let ranges = positions(sets).into_iter().map(|[start, end]| start..end);
            joined = self.graph.take(joined, dim, &ranges.collect::<Vec<_>>())?;
        }
        Ok(joined)
    }

    /// Concatenates the regions that have these index sets in the first dims, along the other dims.
    fn concat(&mut self, tensor: &HeldTensor, chosen: &mut Indices) -> Result<Expr> {
        let dim = chosen.0.len();
        let Some(sets) = tensor.sets.get(dim) else {
            return self.region(tensor, chosen);
        };
        let mut parts = Vec::with_capacity(sets.len());
        for set in sets {
            chosen.0.push(set.clone());
            parts.push(self.concat(tensor, chosen)?);
            chosen.0.pop();
        }
        match parts[..] {
            [only] => Ok(only),
            _ => self.graph.concat(&parts, dim),
        }
    }

    /// A region as the concatenation of its ranges of rows.
    fn region(&mut self, tensor: &HeldTensor, region: &Indices) -> Result<Expr> {
        let (held, extents) = (&tensor.regions[region], region.extents());
        if let [(_, rows)] = held.iter().collect::<Vec<_>>()[..] {
            return self.add(tensor, rows.owner, &extents);
        }
        let mut parts = Vec::with_capacity(held.len());
        for ([start, end], rows) in held {
            let shape = [end - start, region.row_elements()];
            parts.push(self.add(tensor, rows.owner, &shape)?);
        }
        let mut joined = self.graph.concat(&parts, 0)?;
        let outer = extents.len() - 1; // a region with fewer than two dims is one row
        for (dim, extent) in extents[..outer - 1].iter().enumerate() {
            joined = self.graph.unflatten(joined, dim, *extent)?;
        }
        Ok(joined)
    }

    fn add(&mut self, of: &HeldTensor, owner: usize, shape: &[u64]) -> Result<Expr> {
        let tensor = of.spec.name.clone();
        let name = format!("{tensor} (rank {owner})");
        self.sources.push(OwnedRegion { tensor, owner });
        self.graph.source(&name, of.spec.dtype, shape)
    }
}
