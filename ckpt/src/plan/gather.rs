//! From what is wanted to copies in bytes: pull each region, find its tensors, check them.

use std::collections::{BTreeMap, BTreeSet};

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
    /// The targets in an order that depends on their names only.
    pub(super) by_name: Vec<u32>,
    /// The tensors that they are made of.
    pub(super) tensors: Vec<String>,
    pub(super) copies: Vec<Copy>,
}

pub(super) fn gather(
    graph: &Graph,
    catalog: &Catalog<'_>,
    wants: &[Want],
) -> Result<Gathered, PlanError> {
    let by_name = by_name(wants)?;
    let mut targets = Vec::with_capacity(wants.len());
    let mut pieces = Vec::with_capacity(wants.len());
    for (index, want) in wants.iter().enumerate() {
        let (target, found) = pull(graph, want, index)?;
        targets.push(target);
        pieces.push(found);
    }

    let tensors = find(graph, catalog, pieces.iter().flatten())?;
    let mut copies = Vec::with_capacity(pieces.iter().map(Vec::len).sum());
    for (rank, index) in (0..).zip(&by_name) {
        let target = &targets[*index as usize];
        for piece in &pieces[*index as usize] {
            // Every source was found just now.
            if let Ok(at) = tensors.binary_search_by_key(&piece.source, |it| it.0) {
                let tensor = (at as u32, tensors[at].1);
                copies.push(copy(piece, tensor, (rank, target))?);
            }
        }
    }
    copies.sort_unstable();
    for copy in &mut copies {
        copy.target = by_name[copy.target as usize];
    }
    Ok(Gathered {
        targets,
        by_name,
        tensors: tensors.iter().map(|it| it.1.tensor.name.clone()).collect(),
        copies,
    })
}

/// An order of the wants that depends on their names only: by hash, as long names that begin alike
/// are slow to compare.
fn by_name(wants: &[Want]) -> Result<Vec<u32>, PlanError> {
    let hashed = wants.iter().zip(0..).map(|(want, index)| {
        let name = want.target.as_str();
        (xxh3_64(name.as_bytes()), name, index)
    });
    let mut hashed: Vec<(u64, &str, u32)> = hashed.collect();
    hashed.sort_unstable();
    match hashed.windows(2).find(|pair| pair[0].1 == pair[1].1) {
        Some(pair) => Err(PlanError::DuplicateTarget {
            target: pair[0].1.to_owned(),
        }),
        None => Ok(hashed.into_iter().map(|(_, _, index)| index).collect()),
    }
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

/// Finds the tensors of all pieces, by source, and checks that they are what the graph takes them
/// for.
fn find<'g, 'f>(
    graph: &'g Graph,
    catalog: &Catalog<'f>,
    pieces: impl Iterator<Item = &'g Piece>,
) -> Result<Vec<(SourceId, Entry<'f>)>, PlanError> {
    let mut sources: Vec<SourceId> = pieces.map(|piece| piece.source).collect();
    sources.sort_unstable();
    sources.dedup();

    let (mut found, mut missing) = (Vec::with_capacity(sources.len()), BTreeSet::new());
    for source in sources {
        match catalog.get(graph.name(source)) {
            Some(entry) => found.push((source, entry)),
            None => drop(missing.insert(graph.name(source).to_owned())),
        }
    }
    if !missing.is_empty() {
        let names = missing.into_iter().collect();
        return Err(PlanError::Missing { names });
    }

    let differing = differing(graph, catalog);
    let used = found.iter().map(|(_, entry)| entry.tensor.name.as_str());
    match used.filter_map(|name| differing.get(name)).next() {
        Some(differs) => Err(differs.clone()),
        None => Ok(found),
    }
}

/// The sources that are not what the graph takes them for, used or not.
fn differing<'g>(graph: &'g Graph, catalog: &Catalog<'_>) -> BTreeMap<&'g str, PlanError> {
    let differs = |(name, expr): (&'g str, Expr)| {
        let (dtype, shape) = (graph.dtype(expr), graph.shape(expr));
        let tensor = catalog.get(name)?.tensor;
        let found = || tensor.shape.iter().map(|extent| *extent as u64);
        if tensor.dtype == dtype && found().eq(shape.iter().copied()) {
            return None;
        }
        let error = PlanError::Differs {
            name: name.to_owned(),
            dtype,
            shape: shape.to_vec(),
            found_dtype: tensor.dtype,
            found: found().collect(),
        };
        Some((name, error))
    };
    graph.sources().filter_map(differs).collect()
}

/// A piece in bytes: of a numbered tensor, for the target of this rank. Elements smaller than a byte
/// move as bytes, if they fill them.
fn copy(
    piece: &Piece,
    (number, entry): (u32, Entry<'_>),
    (rank, target): (u32, &Target),
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
        target: rank,
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
