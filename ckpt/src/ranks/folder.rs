//! A folder that ranks write together: its files, and each stored tensor as an expression over the
//! regions that the ranks own.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::RanksError;
use super::owners::{HeldTensor, HeldTensors, positions};
use super::runs::{self, Run};
use super::shard::Indices;
use crate::exec::{MemoryError, split};
use crate::graph::{ElementCopy, Expr, Graph, GraphError, Leaf};
use crate::mapping::{Mapping, TensorSpec};
use crate::{Error, FolderLayout, FolderWriter, PlannedFile, Result, TensorInfo};

/// The most bytes of a tensor that are traced and copied at once.
const CHUNK: u64 = 1 << 20;

/// The rank that writes headers and constants.
pub(super) const COORDINATOR: usize = 0;

/// A folder with the owner of every byte.
pub(super) struct OwnedFolder {
    pub(super) layout: FolderLayout,
    graph: Graph,
    /// The owned regions, in the order of the graph's sources.
    sources: Vec<OwnedRegion>,
    stored: BTreeMap<String, Expr>,
}

/// A source of the graph: a region of a tensor of the model.
pub(super) struct OwnedRegion {
    pub(super) tensor: String,
    pub(super) owner: usize,
}

/// Consecutive bytes of a stored tensor.
pub(super) struct Chunk {
    region: Vec<Range<u64>>,
    /// Offsets in the file.
    pub(super) bytes: Range<u64>,
}

impl OwnedFolder {
    /// # Errors
    /// [`RanksError::Unwritable`], [`RanksError::Graph`], [`RanksError::Memory`];
    /// [`Error::TensorName`] and other errors of the layout.
    pub(super) fn new(
        path: &str,
        tensors: &HeldTensors,
        mapping: &Mapping,
        mut files: FolderWriter,
    ) -> Result<OwnedFolder> {
        let specs: Vec<TensorSpec> = tensors.iter().map(|(name, it)| it.spec(name)).collect();
        let bound = mapping.bind_to_store(&specs);
        let bound = bound.map_err(RanksError::Unwritable)?;

        let (mut graph, mut sources) = (Graph::new(), Vec::new());
        let mut grids = BTreeMap::new();
        for (name, tensor) in tensors {
            let grid = Grid { name, tensor }.assemble(&mut graph, &mut sources);
            grids.insert(
                name.as_str(),
                grid.map_err(|error| untraceable(name, error))?,
            );
        }
        let imported = graph.import(bound.graph(), &|name| grids.get(name).copied());
        let exprs = imported.map_err(|error| untraceable(path, error))?;

        let mut stored = BTreeMap::new();
        for request in bound.requests() {
            let expr = exprs[request.expr.index()];
            check(&graph, &request.target, expr)?;
            let shape = graph.shape(expr).iter().map(|extent| *extent as usize);
            let shape: Vec<usize> = shape.collect();
            files.add(&request.target, graph.dtype(expr), &shape)?;
            stored.insert(request.target.to_string(), expr);
        }
        Ok(OwnedFolder {
            layout: files.layout(path)?,
            graph,
            sources,
            stored,
        })
    }

    /// The names of the tensors of the model that `rank` needs to write its part of each stored
    /// tensor; absent for a stored tensor of which it writes nothing.
    pub(super) fn needed(&self, rank: usize) -> Result<BTreeMap<&str, BTreeSet<&str>>, RanksError> {
        let mut needed = BTreeMap::new();
        for (name, expr) in &self.stored {
            let copies = self.graph.copies_of_all(*expr);
            let copies = copies.map_err(|error| untraceable(name, error))?;
            let own: Vec<&ElementCopy> =
                copies.iter().filter(|it| self.owner(it) == rank).collect();
            if !own.is_empty() {
                let tensors = own.into_iter().filter_map(|copy| self.source(copy));
                let tensors = tensors.map(|region| region.tensor.as_str());
                needed.insert(name.as_str(), tensors.collect());
            }
        }
        Ok(needed)
    }

    /// The chunks of a stored tensor, in the order of the file.
    pub(super) fn chunks(&self, tensor: &TensorInfo) -> impl Iterator<Item = Chunk> + use<> {
        let element = tensor.dtype.bits() as u64 / 8;
        let whole: Vec<Range<u64>> = tensor.shape.iter().map(|it| 0..*it as u64).collect();
        let mut start = tensor.range.start;
        split(&whole, CHUNK / element)
            .into_iter()
            .map(move |region| {
                let elements: u64 = region.iter().map(|it| it.end - it.start).product();
                let end = start + elements * element;
                let bytes = std::mem::replace(&mut start, end)..end;
                Chunk { region, bytes }
            })
    }

    /// The copies that produce a chunk, and their runs in elements of the chunk.
    pub(super) fn trace(
        &self,
        tensor: &TensorInfo,
        chunk: &Chunk,
    ) -> Result<(Vec<ElementCopy>, Vec<Run>), RanksError> {
        let Some(expr) = self.stored.get(&tensor.name) else {
            return Ok(Default::default()); // the layout has the stored tensors only
        };
        let copies = self.graph.copies(*expr, &chunk.region);
        let copies = copies.map_err(|error| untraceable(&tensor.name, error))?;
        let owned = copies.iter().map(|copy| (copy, self.owner(copy)));
        let runs = runs::of_copies(owned);
        Ok((copies, runs))
    }

    /// The runs of bytes of `planned` in `range`, ascending, each with its owner.
    pub(super) fn owners_of(
        &self,
        planned: &PlannedFile,
        range: &Range<u64>,
    ) -> Result<Vec<(Range<u64>, usize)>, RanksError> {
        let mut owners = Vec::new();
        let mut add = |bytes: Range<u64>, owner| {
            let clipped = bytes.start.max(range.start)..bytes.end.min(range.end);
            if !clipped.is_empty() {
                owners.push((clipped, owner));
            }
        };
        add(0..planned.start.len() as u64, COORDINATOR);
        for tensor in planned
            .tensors
            .iter()
            .filter(|it| overlap(&it.range, range))
        {
            let element = tensor.dtype.bits() as u64 / 8;
            for chunk in self.chunks(tensor).filter(|it| overlap(&it.bytes, range)) {
                for run in self.trace(tensor, &chunk)?.1 {
                    let at = |element_index| chunk.bytes.start + element_index * element;
                    add(at(run.start)..at(run.end), run.owner);
                }
            }
        }
        Ok(owners)
    }

    pub(super) fn graph(&self) -> &Graph {
        &self.graph
    }

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
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

fn untraceable(tensor: &str, error: GraphError) -> RanksError {
    RanksError::Graph {
        tensor: tensor.to_owned(),
        error,
    }
}

/// Checks that a stored tensor consists of copies of whole bytes.
fn check(graph: &Graph, name: &str, expr: Expr) -> Result<()> {
    let refuse = |error| {
        let tensor = name.to_owned();
        Error::Ranks(RanksError::Memory { tensor, error })
    };
    if graph.dtype(expr).bits() < 8 {
        return Err(refuse(MemoryError::PartOfAByte(name.to_owned())));
    }
    let copies = graph.copies_of_all(expr);
    let copies = copies.map_err(|error| untraceable(name, error))?;
    match { copies.iter() }.find(|copy| matches!(copy.from, Leaf::Computed(_))) {
        Some(copy) => {
            let operation = graph.leaf_name(copy.from).to_owned();
            Err(refuse(MemoryError::NotComputed(operation)))
        }
        None => Ok(()),
    }
}

/// A tensor of the model as a grid of owned regions.
struct Grid<'t> {
    name: &'t str,
    tensor: &'t HeldTensor,
}

impl Grid<'_> {
    fn assemble(
        &self,
        graph: &mut Graph,
        sources: &mut Vec<OwnedRegion>,
    ) -> Result<Expr, GraphError> {
        if self.tensor.owners.is_empty() {
            sources.push(OwnedRegion {
                tensor: self.name.to_owned(),
                owner: COORDINATOR,
            });
            return graph.source(self.name, self.tensor.dtype, &self.tensor.shape);
        }
        let mut whole = self.join(graph, sources, &mut Vec::new())?;
        // Each set of indices is contiguous in `whole`: restore the order of the tensor.
        for (dim, sets) in self.tensor.sets.iter().enumerate() {
            let ranges = positions(sets).into_iter().map(|[start, end]| start..end);
            whole = graph.take(whole, dim, &ranges.collect::<Vec<_>>())?;
        }
        Ok(whole)
    }

    /// Concatenates the regions with these first index sets, along the other dims.
    fn join(
        &self,
        graph: &mut Graph,
        sources: &mut Vec<OwnedRegion>,
        chosen: &mut Vec<usize>,
    ) -> Result<Expr, GraphError> {
        let dim = chosen.len();
        let Some(sets) = self.tensor.sets.get(dim) else {
            return self.region(graph, sources, chosen);
        };
        let mut parts = Vec::with_capacity(sets.len());
        for set in 0..sets.len() {
            chosen.push(set);
            parts.push(self.join(graph, sources, chosen)?);
            chosen.pop();
        }
        match parts[..] {
            [only] => Ok(only),
            _ => graph.concat(&parts, dim),
        }
    }

    fn region(
        &self,
        graph: &mut Graph,
        sources: &mut Vec<OwnedRegion>,
        chosen: &[usize],
    ) -> Result<Expr, GraphError> {
        let sets = chosen.iter().zip(&self.tensor.sets);
        let region = Indices(sets.map(|(set, sets)| sets[*set].clone()).collect());
        let owner = self.tensor.owners.get(&region).copied();
        let owner = owner.unwrap_or(COORDINATOR); // complete tensors have all regions
        sources.push(OwnedRegion {
            tensor: self.name.to_owned(),
            owner,
        });
        let name = format!("{} (rank {owner})", self.name);
        graph.source(&name, self.tensor.dtype, &region.extents())
    }
}
