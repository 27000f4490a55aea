//! A model whose tensors are stored in parts: shards of ranks, chunks, views of storages.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use meshgrad_error::{Error, Kind, Result, error};

use crate::error::duplicate_tensor;
use crate::graph::{Expr, Graph};
use crate::mapping::TensorSpec;
use crate::plan::LoadRequest;
use crate::{Dtype, Folder};

/// Tensors as expressions over the stored tensors of a folder.
///
/// A map knows only the assembled tensors. [`Assembly::inline`] replaces them by their parts, so
/// that a plan reads the parts directly.
#[derive(Debug)]
pub struct Assembly {
    folder: Folder,
    graph: Graph,
    tensors: BTreeMap<Arc<str>, Expr>,
}

/// A stored part of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its region in the tensor.
    pub region: Vec<Range<u64>>,
    /// The stored tensor, as an expression of [`Assembly::graph_mut`].
    pub expr: Expr,
}

impl Assembly {
    /// An assembly over the stored tensors of a folder, without tensors yet.
    pub fn new(folder: Folder) -> Assembly {
        Assembly { folder, graph: Graph::new(), tensors: BTreeMap::new() }
    }

    /// The stored tensors.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// The graph that parts are expressions of. Its sources have the names of stored tensors.
    pub fn graph_mut(&mut self) -> &mut Graph {
        &mut self.graph
    }

    /// Adds a tensor that is a grid of parts, which must cover it exactly once.
    ///
    /// # Errors
    /// For overlaps and gaps, a second tensor of this name, and parts that cannot be concatenated.
    pub fn add(&mut self, name: &str, shape: &[u64], parts: Vec<Part>) -> Result<()> {
        let mut grid = Grid { graph: &mut self.graph, name, shape };
        let made = grid.join(parts, 0)?;
        match self.tensors.insert(name.into(), made) {
            None => Ok(()),
            Some(_) => Err(duplicate_tensor(Kind::Malformed, name)),
        }
    }

    /// The assembled tensors, sorted by name.
    pub fn specs(&self) -> Vec<TensorSpec> {
        let spec = |(name, expr): (&Arc<str>, &Expr)| {
            TensorSpec::new(name, self.graph.dtype(*expr), self.graph.shape(*expr))
        };
        self.tensors.iter().map(spec).collect()
    }

    /// Rewrites a graph over the assembled tensors, and its requests, to use the stored tensors.
    ///
    /// # Errors
    /// For a source that is not an assembled tensor.
    pub fn inline(
        &self,
        graph: &Graph,
        requests: Vec<LoadRequest>,
    ) -> Result<(Graph, Vec<LoadRequest>)> {
        let mut stored = self.graph.clone();
        let made = stored.import(graph, &|name| self.tensors.get(name).copied())?;
        let moved = requests
            .into_iter()
            .map(|request| LoadRequest { expr: made[request.expr.index()], ..request });
        Ok((stored, moved.collect()))
    }
}

/// Joins the parts of a tensor dim by dim.
struct Grid<'a> {
    graph: &'a mut Graph,
    name: &'a str,
    shape: &'a [u64],
}

impl Grid<'_> {
    fn join(&mut self, parts: Vec<Part>, dim: usize) -> Result<Expr> {
        let Some(&extent) = self.shape.get(dim) else {
            return match &parts[..] {
                [part] => Ok(part.expr),
                // The parts have no dims, or the same range in every dim.
                _ => Err(self.uneven(dim.saturating_sub(1), 0, 0)),
            };
        };
        let mut slabs: BTreeMap<u64, Vec<Part>> = BTreeMap::new();
        for part in parts {
            let start = part.region.get(dim).map_or(0, |range| range.start);
            slabs.entry(start).or_default().push(part);
        }
        let (mut end, mut joined) = (0, Vec::with_capacity(slabs.len()));
        for (start, slab) in slabs {
            if start != end {
                return Err(self.uneven(dim, end, start));
            }
            let ends = slab.iter().map(|part| part.region.get(dim).map(|it| it.end));
            let ends: Vec<u64> = ends.flatten().collect();
            end = ends.iter().copied().max().unwrap_or(start);
            if let Some(other) = ends.into_iter().find(|it| *it != end) {
                return Err(self.uneven(dim, other, end));
            }
            joined.push(self.join(slab, dim + 1)?);
        }
        if end != extent || joined.is_empty() {
            return Err(self.uneven(dim, end, extent));
        }
        let whole = match joined[..] {
            [alone] => Ok(alone),
            _ => self.graph.concat(&joined, dim),
        };
        whole.map_err(|problem| not_assembled(self.name, problem))
    }

    fn uneven(&self, dim: usize, end: u64, start: u64) -> Error {
        error!(
            Malformed,
            "the parts of `{}` of shape {:?} do not cover it exactly once: in dim {dim}, parts end \
             at {end} and the next one starts at {start}",
            self.name.escape_debug(),
            self.shape
        )
    }
}

/// The error for a tensor that cannot be assembled from its parts: a limit of expressions, such as
/// the number of copies.
pub(crate) fn not_assembled(name: &str, problem: Error) -> Error {
    error!(Unsupported, "`{}` cannot be assembled: {problem}", name.escape_debug())
}

impl Part {
    /// A whole stored tensor as a part.
    ///
    /// # Errors
    /// For a stored tensor that was already added with another dtype or shape.
    pub fn stored(
        assembly: &mut Assembly,
        stored: &str,
        dtype: Dtype,
        region: Vec<Range<u64>>,
    ) -> Result<Part> {
        let shape: Vec<u64> = region.iter().map(|range| range.end - range.start).collect();
        let made = assembly.graph.source(stored, dtype, &shape);
        let expr = made.map_err(|problem| not_assembled(stored, problem))?;
        Ok(Part { region, expr })
    }
}
