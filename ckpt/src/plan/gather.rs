//! From what is wanted to copies in bytes: pull each region, find its tensors, check them.

use std::collections::{BTreeMap, BTreeSet};

use super::copy::{ByteLoop, Copy};
use super::{Catalog, PlanError, Target, Want};
use crate::Dtype;
use crate::graph::{Graph, Leaf, Piece, SourceId, Step};
use crate::plan::catalog::Entry;

/// Targets in the order of the wants; the rest is the same in whatever order things were wanted:
/// the tensors that targets are made of sorted by name, the copies by file, place and target name.
pub(super) struct Gathered {
    pub(super) targets: Vec<Target>,
    /// The targets, sorted by name.
    pub(super) by_name: Vec<u32>,
    pub(super) tensors: Vec<String>,
    pub(super) copies: Vec<Copy>,
    pub(super) conversions: Vec<Conversion>,
}

/// What is done to each element of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Conversion {
    /// The dtype in the file.
    pub(crate) from: Dtype,
    pub(crate) steps: Vec<Step>,
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

    let mut conversions = Vec::new();
    let placed = place(graph, catalog, pieces.iter().flatten())?;
    let mut copies = Vec::with_capacity(pieces.iter().map(Vec::len).sum());
    for (rank, index) in (0..).zip(&by_name) {
        let target = &targets[*index as usize];
        for piece in &pieces[*index as usize] {
            let Leaf::Source(source) = piece.from else {
                continue;
            };
            let name = graph.name(source);
            // Every name was found just now.
            let Some(tensor) = placed.get(name) else {
                continue;
            };
            let mut copy = copy(piece, tensor, target, rank, name)?;
            copy.conversion = conversion(&mut conversions, tensor.entry.tensor.dtype, &piece.steps);
            copies.push(copy);
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
        conversions,
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
        let source_tensor = graph.leaf_name(piece.from);
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
    let sources = pieces.filter_map(|piece| match piece.from {
        Leaf::Source(source) => Some(source),
        Leaf::Computed(_) | Leaf::Fill(_) => None,
    });
    let used: BTreeSet<SourceId> = sources.collect();
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

/// The number of a conversion; `None` for none.
fn conversion(known: &mut Vec<Conversion>, from: Dtype, steps: &[Step]) -> Option<u32> {
    if steps.is_empty() {
        return None;
    }
    let wanted = Conversion {
        from,
        steps: steps.to_vec(),
    };
    let at = known.iter().position(|it| *it == wanted);
    let at = at.unwrap_or_else(|| {
        known.push(wanted);
        known.len() - 1
    });
    Some(at as u32)
}

/// A piece in bytes, of the target of this rank, as yet without conversion. Elements smaller than a byte move as bytes, if they
/// fill them.
fn copy(
    piece: &Piece,
    tensor: &Placed<'_>,
    target: &Target,
    rank: u32,
    name: &str,
) -> Result<Copy, PlanError> {
    let dtype = tensor.entry.tensor.dtype;
    let (bits, to_bits) = (dtype.bits() as u64, target.dtype.bits() as u64);
    let mut whole = true;
    let mut bytes_of = |elements: u64, bits: u64| {
        whole &= (elements * bits).is_multiple_of(8);
        elements * bits / 8
    };

    let from = tensor.entry.tensor.range.start + bytes_of(piece.source_offset, bits);
    let to = bytes_of(piece.destination_offset, to_bits);
    let mut loops = Vec::with_capacity(piece.loops.len());
    let mut outer = &piece.loops[..];
    if bits < 8 {
        // Such elements have no conversion: both sides are alike.
        loops.push(ByteLoop {
            count: bytes_of(piece.run(), bits),
            from: 1,
            to: 1,
        });
        outer = &outer[usize::from(piece.run() > 1)..];
    }
    loops.extend(outer.iter().map(|it| ByteLoop {
        count: it.count,
        from: bytes_of(it.source_stride, bits),
        to: bytes_of(it.destination_stride, to_bits),
    }));
    if !whole {
        return Err(part_of_a_byte(&target.name, name, dtype));
    }
    Ok(Copy {
        file: tensor.entry.file,
        from,
        target: rank,
        to,
        element: bits.div_ceil(8) as u32,
        to_element: to_bits.div_ceil(8) as u32,
        loops,
        conversion: None,
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
