//! A folder that ranks write together: its files, and each stored tensor as an expression over the
//! regions that the ranks own.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use meshgrad_error::{Error, Kind, Result};

use super::not_stored;
use super::owners::{COORDINATOR, HeldTensor};
use super::regions::Regions;
use super::runs::{self, Run};
use crate::exec::split;
use crate::graph::{ElementCopy, Expr};
use crate::mapping::{Mapping, TensorSpec};
use crate::{FolderLayout, FolderWriter, PlannedFile, TensorInfo};

/// The most bytes of a tensor that are traced and copied at once.
const CHUNK: u64 = 1 << 20;

/// A folder with the owner of every byte.
pub(super) struct OwnedFolder {
    pub(super) layout: FolderLayout,
    pub(super) regions: Regions,
    pub(super) stored: BTreeMap<String, Stored>,
}

pub(super) struct Stored {
    expr: Expr,
    /// The tensors of the model that this rank needs to write its part; `None` if it has none.
    pub(super) needed: Option<BTreeSet<String>>,
}

/// Consecutive bytes of a stored tensor.
pub(super) struct Chunk {
    region: Vec<Range<u64>>,
    /// Offsets in the file.
    pub(super) bytes: Range<u64>,
}

impl OwnedFolder {
    /// The folder as `rank` writes it.
    ///
    /// # Errors
    /// When the tensors cannot be stored under the mapping (the details are a
    /// [`Report`](crate::mapping::Report)); errors of the layout.
    pub(super) fn new(
        path: &str,
        tensors: &[&HeldTensor],
        mapping: &Mapping,
        mut writer: FolderWriter,
        rank: usize,
    ) -> Result<OwnedFolder> {
        let specs: Vec<TensorSpec> = tensors.iter().map(|tensor| tensor.spec.clone()).collect();
        let bound = mapping.bind_to_store(&specs);
        let bound = bound.map_err(|report| {
            let unwritable = Error::with_details(Kind::Mismatch, report);
            unwritable.context("the tensors cannot be stored as the mapping requires")
        })?;

        let mut regions = Regions::default();
        let mut joined = BTreeMap::new();
        for tensor in tensors {
            let name = tensor.spec.name.as_str();
            let expr = regions.join(tensor);
            joined.insert(name, expr.map_err(|error| not_stored(name, error))?);
        }
        let imported =
            { &mut regions.graph }.import(bound.graph(), &|name| joined.get(name).copied());
        let exprs = imported.map_err(|error| not_stored(path, error))?;

        let mut stored = BTreeMap::new();
        for request in bound.requests() {
            let (name, expr) = (&request.target, exprs[request.expr.index()]);
            let needed = regions.needed(name, expr, rank);
            let needed = needed.map_err(|error| not_stored(name, error))?;
            let shape = regions.graph.shape(expr).iter();
            let shape: Vec<usize> = shape.map(|extent| *extent as usize).collect();
            writer.add(name, regions.graph.dtype(expr), &shape)?;
            stored.insert(name.to_string(), Stored { expr, needed });
        }
        Ok(OwnedFolder { layout: writer.layout(path)?, regions, stored })
    }

    /// The chunks of a stored tensor, in the order of the file.
    pub(super) fn chunks(&self, tensor: &TensorInfo) -> impl Iterator<Item = Chunk> + use<> {
        let element = tensor.dtype.bits() as u64 / 8;
        let whole: Vec<Range<u64>> = tensor.shape.iter().map(|it| 0..*it as u64).collect();
        let mut start = tensor.range.start;
        let regions = split(&whole, CHUNK / element).into_iter();
        regions.map(move |region| {
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
    ) -> Result<(Vec<ElementCopy>, Vec<Run>)> {
        let expr = self.stored[&tensor.name].expr; // the layout has the stored tensors only
        let copies = self.regions.graph.copies(expr, &chunk.region);
        let copies = copies.map_err(|error| not_stored(&tensor.name, error))?;
        let runs = runs::of_copies(copies.iter().map(|copy| (copy, self.regions.owner(copy))));
        Ok((copies, runs))
    }

    /// The runs of bytes of `planned` in `range`, ascending, each with its owner.
    pub(super) fn owners_of(
        &self,
        planned: &PlannedFile,
        range: &Range<u64>,
    ) -> Result<Vec<(Range<u64>, usize)>> {
        let is_in_range = |bytes: &Range<u64>| bytes.start < range.end && range.start < bytes.end;
        let mut owners = vec![(0..planned.start.len() as u64, COORDINATOR)];
        for tensor in planned.tensors.iter().filter(|it| is_in_range(&it.range)) {
            let element = tensor.dtype.bits() as u64 / 8;
            for chunk in self.chunks(tensor).filter(|it| is_in_range(&it.bytes)) {
                for run in self.trace(tensor, &chunk)?.1 {
                    let [start, end] =
                        [run.start, run.end].map(|it| chunk.bytes.start + it * element);
                    owners.push((start..end, run.owner));
                }
            }
        }
        owners.retain(|(bytes, _)| is_in_range(bytes));
        for (bytes, _) in &mut owners {
            *bytes = bytes.start.max(range.start)..bytes.end.min(range.end);
        }
        Ok(owners)
    }
}
