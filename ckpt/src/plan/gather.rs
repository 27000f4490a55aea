//! From what is wanted to copies in bytes: pull each region, find its tensors, check them.

use std::collections::{BTreeSet, HashMap};

use xxhash_rust::xxh3::xxh3_64;

use super::copy::{ByteLoop, Copy};
use super::{Catalog, PlanError, Target, Want};
use crate::Dtype;
use crate::graph::{Expr, Graph, Piece, SourceId};
use crate::plan::catalog::Entry;

/// Targets in the order of the wants, and the copies in an order that does not depend on it: by
/// file, place and target.
pub(super) struct Gathered {
    pub(super) targets: Vec<Target>,
    /// The rank of each target in an order that depends on names only.
    pub(super) ranks: Vec<u32>,
    /// The tensors that they are made of.
    pub(super) tensors: Vec<String>,
    pub(super) copies: Vec<Copy>,
}

pub(super) fn gather(
    graph: &Graph,
    catalog: &Catalog<'_>,
    wants: &[Want],
) -> Result<Gathered, PlanError> {
    let ranks = ranks(wants)?;
    let mut tensors = Tensors::new(graph, catalog);
    let mut targets = Vec::with_capacity(wants.len());
    let mut copies = Vec::with_capacity(wants.len());
    for ((want, index), rank) in wants.iter().zip(0..).zip(&ranks) {
        let (target, pieces) = pull(graph, want, index)?;
        for piece in &pieces {
            if let Some(tensor) = tensors.find(piece.source)? {
                copies.push((*rank, copy(piece, tensor, &target)?));
            }
        }
        targets.push(target);
    }
    let tensors = tensors.finish()?;

    copies.sort_unstable_by(|(rank, a), (other, b)| {
        let places = (a.file, a.from, rank).cmp(&(b.file, b.from, other));
        places.then_with(|| a.cmp(b))
    });
    Ok(Gathered {
        targets,
        ranks,
        tensors,
        copies: copies.into_iter().map(|(_, copy)| copy).collect(),
    })
}

/// The ranks of the wants in an order that depends on their names only: by hash, as long names that
/// begin alike are slow to compare.
fn ranks(wants: &[Want]) -> Result<Vec<u32>, PlanError> {
    let hash = |want: &Want| xxh3_64(want.target.as_bytes());
    let mut hashed: Vec<(u64, u32)> = wants.iter().map(hash).zip(0..).collect();
    let name = |index: u32| wants[index as usize].target.as_str();
    hashed.sort_unstable_by(|a, b| a.0.cmp(&b.0).then_with(|| name(a.1).cmp(name(b.1))));

    let same = |a: (u64, u32), b: (u64, u32)| a.0 == b.0 && name(a.1) == name(b.1);
    if let Some(pair) = hashed.windows(2).find(|pair| same(pair[0], pair[1])) {
        return Err(PlanError::DuplicateTarget {
            target: name(pair[0].1).to_owned(),
        });
    }
    let mut ranks = vec![0; wants.len()];
    for ((_, index), rank) in hashed.into_iter().zip(0..) {
        ranks[index as usize] = rank;
    }
    Ok(ranks)
}

fn pull(graph: &Graph, want: &Want, index: usize) -> Result<(Target, Vec<Piece>), PlanError> {
    let pieces = graph.pull(want.expr, &want.region);
    let pieces = pieces.map_err(|error| PlanError::Graph {
        target: want.target.clone(),
        error,
    })?;
    let shape: Vec<u64> = want.region.iter().map(|it| it.end - it.start).collect();
    let dtype = graph.dtype(want.expr);
    let bits = shape
        .iter()
        .try_fold(dtype.bits() as u64, |bits, it| bits.checked_mul(*it));
    let bits = bits.ok_or_else(|| PlanError::TooLarge {
        target: want.target.clone(),
        shape: shape.clone(),
    })?;
    if let (false, Some(piece)) = (bits.is_multiple_of(8), pieces.first()) {
        let source_tensor = graph.name(piece.source);
        return Err(part_of_a_byte(&want.target, source_tensor, dtype));
    }
    let target = Target {
        name: want.target.clone(),
        index,
        dtype,
        shape,
        bytes: bits / 8,
    };
    Ok((target, pieces))
}

/// The tensors of the pieces, found and checked as they come.
struct Tensors<'a, 'f> {
    graph: &'a Graph,
    catalog: &'a Catalog<'f>,
    /// By source; `None` for one that is in no file. Looked up only, never walked.
    known: HashMap<SourceId, Option<(u32, Entry<'f>)>>,
    names: Vec<String>,
    missing: BTreeSet<String>,
}

impl<'a, 'f> Tensors<'a, 'f> {
    fn new(graph: &'a Graph, catalog: &'a Catalog<'f>) -> Tensors<'a, 'f> {
        Tensors {
            graph,
            catalog,
            known: HashMap::new(),
            names: Vec::new(),
            missing: BTreeSet::new(),
        }
    }

    /// A tensor with its number; `None` if it is missing, for [`Tensors::finish`] to tell.
    fn find(&mut self, source: SourceId) -> Result<Option<(u32, Entry<'f>)>, PlanError> {
        if let Some(known) = self.known.get(&source) {
            return Ok(*known);
        }
        let name = self.graph.name(source);
        let found = self.catalog.get(name);
        let numbered = found.map(|entry| (self.names.len() as u32, entry));
        match found {
            Some(entry) => {
                check(self.graph, self.graph.expr(source), entry)?;
                self.names.push(name.to_owned());
            }
            None => drop(self.missing.insert(name.to_owned())),
        }
        self.known.insert(source, numbered);
        Ok(numbered)
    }

    /// Their names, by number.
    fn finish(self) -> Result<Vec<String>, PlanError> {
        match self.missing.is_empty() {
            true => Ok(self.names),
            false => Err(PlanError::Missing {
                names: self.missing.into_iter().collect(),
            }),
        }
    }
}

/// That a tensor is what the graph takes it for.
fn check(graph: &Graph, expr: Expr, entry: Entry<'_>) -> Result<(), PlanError> {
    let (dtype, shape) = (graph.dtype(expr), graph.shape(expr));
    let tensor = entry.tensor;
    let found = || tensor.shape.iter().map(|extent| *extent as u64);
    if tensor.dtype == dtype && found().eq(shape.iter().copied()) {
        return Ok(());
    }
    Err(PlanError::Differs {
        name: tensor.name.clone(),
        dtype,
        shape: shape.to_vec(),
        found_dtype: tensor.dtype,
        found: found().collect(),
    })
}

/// A piece of a numbered tensor in bytes. Elements smaller than a byte move as bytes, if they fill
/// them.
fn copy(
    piece: &Piece,
    (number, entry): (u32, Entry<'_>),
    target: &Target,
) -> Result<Copy, PlanError> {
    let dtype = entry.tensor.dtype;
    let bits = dtype.bits() as u64;
    let element = bits.div_ceil(8);
    let mut whole = true;
    let mut bytes = |elements: u64| {
        whole &= (elements * bits).is_multiple_of(8);
        elements * bits / 8
    };

    let from = entry.tensor.range.start + bytes(piece.source_offset);
    let to = bytes(piece.destination_offset);
    let mut loops = Vec::with_capacity(piece.loops.len());
    let mut outer = &piece.loops[..];
    if bits < 8 {
        loops.push(ByteLoop {
            count: bytes(piece.run()),
            from: 1,
            to: 1,
        });
        outer = &outer[usize::from(piece.run() > 1)..];
    }
    loops.extend(outer.iter().map(|it| ByteLoop {
        count: it.count,
        from: bytes(it.source_stride),
        to: bytes(it.destination_stride),
    }));
    if !whole {
        return Err(part_of_a_byte(&target.name, &entry.tensor.name, dtype));
    }
    Ok(Copy {
        file: entry.file,
        from,
        target: target.index as u32,
        to,
        element: element as u32,
        loops,
        tensor: number,
    })
}

fn part_of_a_byte(target: &str, source_tensor: &str, dtype: Dtype) -> PlanError {
    PlanError::PartOfAByte {
        target: target.to_owned(),
        source_tensor: source_tensor.to_owned(),
        dtype,
    }
}
