//! From what is wanted to copies in bytes: pull each region, find its tensors, check them.

use std::collections::{BTreeMap, BTreeSet};

use super::copy::{ByteLoop, Copy};
use super::{Catalog, PlanError, Target, Want};
use crate::Dtype;
use crate::graph::{Graph, Piece, SourceId};
use crate::plan::catalog::Entry;

/// Targets in the order of the wants; the rest is the same in whatever order things were wanted:
/// the tensors that targets are made of sorted by name, the copies by file, place and target name.
pub(super) struct Gathered {
    pub(super) targets: Vec<Target>,
    /// The targets, sorted by name.
    pub(super) by_name: Vec<u32>,
    pub(super) tensors: Vec<String>,
    pub(super) copies: Vec<Copy>,
}

pub(super) fn gather(
    graph: &Graph,
    catalog: &Catalog<'_>,
    wants: &[Want],
) -> Result<Gathered, PlanError> {
    let mut by_name: Vec<u32> = (0..wants.len() as u32).collect();
    let name = |want: u32| &wants[want as usize].target;
    by_name.sort_by_key(|want| name(*want));
    if let Some(pair) = by_name.windows(2).find(|it| name(it[0]) == name(it[1])) {
        return Err(PlanError::DuplicateTarget {
            target: name(pair[0]).clone(),
        });
    }

    let mut targets = Vec::with_capacity(wants.len());
    let mut pieces = Vec::with_capacity(wants.len());
    for (index, want) in wants.iter().enumerate() {
        let (target, found) = pull(graph, want, index)?;
        targets.push(target);
        pieces.push(found);
    }

    let placed = place(graph, catalog, pieces.iter().flatten())?;
    let mut copies = Vec::with_capacity(pieces.iter().map(Vec::len).sum());
    for (rank, index) in (0..).zip(&by_name) {
        let target = &targets[*index as usize];
        for piece in &pieces[*index as usize] {
            let name = graph.name(piece.source);
            // Every name was found just now.
            let Some(tensor) = placed.get(name) else {
                continue;
            };
            copies.push(copy(piece, tensor, target, rank, name)?);
        }
    }
    copies.sort_unstable();
    for copy in &mut copies {
        copy.target = by_name[copy.target as usize];
    }
    Ok(Gathered {
        targets,
        by_name,
        tensors: placed.keys().map(|name| (*name).to_owned()).collect(),
        copies,
    })
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

/// A tensor of a file.
struct Placed<'f> {
    number: u32,
    entry: Entry<'f>,
}

/// Finds the tensors of all pieces and checks that they are what the graph takes them for.
fn place<'g, 'f>(
    graph: &'g Graph,
    catalog: &Catalog<'f>,
    pieces: impl Iterator<Item = &'g Piece>,
) -> Result<BTreeMap<&'g str, Placed<'f>>, PlanError> {
    let used: BTreeSet<SourceId> = pieces.map(|piece| piece.source).collect();
    let names: BTreeSet<&str> = used.into_iter().map(|source| graph.name(source)).collect();

    let (mut placed, mut missing) = (BTreeMap::new(), Vec::new());
    for name in names {
        let number = placed.len() as u32;
        match catalog.get(name) {
            Some(entry) => drop(placed.insert(name, Placed { number, entry })),
            None => missing.push(name.to_owned()),
        }
    }
    if !missing.is_empty() {
        return Err(PlanError::Missing { names: missing });
    }

    for (name, expr) in graph.sources() {
        let Some(Placed { entry, .. }) = placed.get(name) else {
            continue;
        };
        let (tensor, dtype, shape) = (entry.tensor, graph.dtype(expr), graph.shape(expr));
        let found = || tensor.shape.iter().map(|extent| *extent as u64);
        if tensor.dtype != dtype || !found().eq(shape.iter().copied()) {
            return Err(PlanError::Differs {
                name: name.to_owned(),
                dtype,
                shape: shape.to_vec(),
                found_dtype: tensor.dtype,
                found: found().collect(),
            });
        }
    }
    Ok(placed)
}

/// A piece in bytes, of the target of this rank. Elements smaller than a byte move as bytes, if they fill them.
fn copy(
    piece: &Piece,
    tensor: &Placed<'_>,
    target: &Target,
    rank: u32,
    name: &str,
) -> Result<Copy, PlanError> {
    let dtype = tensor.entry.tensor.dtype;
    let bits = dtype.bits() as u64;
    let element = bits.div_ceil(8);
    let mut whole = true;
    let mut bytes = |elements: u64| {
        whole &= (elements * bits).is_multiple_of(8);
        elements * bits / 8
    };

    let from = tensor.entry.tensor.range.start + bytes(piece.source_offset);
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
        return Err(part_of_a_byte(&target.name, name, dtype));
    }
    Ok(Copy {
        file: tensor.entry.file,
        from,
        target: rank,
        to,
        element: element as u32,
        loops,
        tensor: tensor.number,
    })
}

fn part_of_a_byte(target: &str, source_tensor: &str, dtype: Dtype) -> PlanError {
    PlanError::PartOfAByte {
        target: target.to_owned(),
        source_tensor: source_tensor.to_owned(),
        dtype,
    }
}
