//! From what is wanted to copies in bytes: pull each region, find its tensors, check them.

use std::collections::{BTreeMap, BTreeSet};

use super::computed::Computed;
use super::copy::{ByteLoop, Copy};
use super::fill::Fill;
use super::{Catalog, PlanError, Target, Want};
use crate::Dtype;
use crate::graph::{Expr, Graph, Leaf, Piece, SourceId, Step};
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
    pub(super) fills: Vec<Fill>,
    /// What is computed: to copies, files after those that there are.
    pub(super) computed: Vec<Computed>,
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
    let mut computed = AllComputed {
        files: catalog.files.len(),
        tensors: placed.len(),
        numbers: BTreeMap::new(),
        all: Vec::new(),
    };
    let mut fills = Vec::new();
    let mut copies = Vec::with_capacity(pieces.iter().map(Vec::len).sum());
    for (rank, index) in (0..).zip(&by_name) {
        let target = &targets[*index as usize];
        for piece in &pieces[*index as usize] {
            let from = match piece.from {
                Leaf::Source(source) => placed.get(graph.name(source)).copied(),
                Leaf::Computed(expr) => computed.place(graph, expr),
                Leaf::Fill(value) => {
                    fills.push(Fill::new(piece, value, target, *index));
                    continue;
                }
            };
            // Every name was found just now, and what is computed can be.
            let Some(from) = from else {
                continue;
            };
            let mut copy = copy(piece, &from, target, rank, graph.leaf_name(piece.from))?;
            copy.conversion = conversion(&mut conversions, from.dtype, &piece.steps);
            copies.push(copy);
        }
    }
    copies.sort_unstable();
    for copy in &mut copies {
        copy.target = by_name[copy.target as usize];
    }
    let read = placed.keys().map(|name| (*name).to_owned());
    let made = computed.all.iter().map(|it| it.how.name().to_owned());
    Ok(Gathered {
        targets,
        by_name,
        tensors: read.chain(made).collect(),
        copies,
        conversions,
        fills,
        computed: computed.all,
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

/// A tensor whose bytes copies are made of.
#[derive(Clone, Copy)]
struct Placed {
    /// Its name's place in the plan.
    number: u32,
    file: u32,
    /// Its first byte in the file.
    start: u64,
    dtype: Dtype,
}

/// What is computed, each once.
struct AllComputed {
    /// How many files there are besides.
    files: usize,
    /// How many tensors are read from them.
    tensors: usize,
    numbers: BTreeMap<Expr, usize>,
    all: Vec<Computed>,
}

impl AllComputed {
    fn place(&mut self, graph: &Graph, expr: Expr) -> Option<Placed> {
        let number = match self.numbers.get(&expr) {
            Some(number) => *number,
            None => {
                self.all.push(Computed::new(graph, expr)?);
                self.numbers.insert(expr, self.all.len() - 1);
                self.all.len() - 1
            }
        };
        Some(Placed {
            number: (self.tensors + number) as u32,
            file: (self.files + number) as u32,
            start: 0,
            dtype: graph.dtype(expr),
        })
    }
}

/// Finds the tensors of all pieces and checks that they are what the graph takes them for.
fn place<'g>(
    graph: &'g Graph,
    catalog: &Catalog<'_>,
    pieces: impl Iterator<Item = &'g Piece>,
) -> Result<BTreeMap<&'g str, Placed>, PlanError> {
    let sources = pieces.filter_map(|piece| match piece.from {
        Leaf::Source(source) => Some(source),
        Leaf::Computed(_) | Leaf::Fill(_) => None,
    });
    let used: BTreeSet<SourceId> = sources.collect();
    let names: BTreeSet<&str> = used.into_iter().map(|source| graph.name(source)).collect();

    let (mut found, mut missing) = (BTreeMap::new(), Vec::new());
    for name in names {
        match catalog.get(name) {
            Some(entry) => drop(found.insert(name, entry)),
            None => missing.push(name.to_owned()),
        }
    }
    if !missing.is_empty() {
        return Err(PlanError::Missing { names: missing });
    }

    for (name, expr) in graph.sources() {
        if let Some(entry) = found.get(name) {
            check(graph, name, expr, entry)?;
        }
    }
    let placed = found.into_iter().zip(0..).map(|((name, entry), number)| {
        let placed = Placed {
            number,
            file: entry.file,
            start: entry.tensor.range.start,
            dtype: entry.tensor.dtype,
        };
        (name, placed)
    });
    Ok(placed.collect())
}

/// That a tensor of a file is what the graph takes it for.
fn check(graph: &Graph, name: &str, expr: Expr, entry: &Entry<'_>) -> Result<(), PlanError> {
    let (tensor, dtype, shape) = (entry.tensor, graph.dtype(expr), graph.shape(expr));
    let found = || tensor.shape.iter().map(|extent| *extent as u64);
    match tensor.dtype == dtype && found().eq(shape.iter().copied()) {
        true => Ok(()),
        false => Err(PlanError::Differs {
            name: name.to_owned(),
            dtype,
            shape: shape.to_vec(),
            found_dtype: tensor.dtype,
            found: found().collect(),
        }),
    }
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

/// A piece in bytes, of the target of this rank, as yet without conversion.
fn copy(
    piece: &Piece,
    tensor: &Placed,
    target: &Target,
    rank: u32,
    name: &str,
) -> Result<Copy, PlanError> {
    let bytes = piece_in_bytes(piece, tensor.dtype, target.dtype);
    let (from, to, loops) =
        bytes.ok_or_else(|| part_of_a_byte(&target.name, name, tensor.dtype))?;
    Ok(Copy {
        file: tensor.file,
        from: tensor.start + from,
        target: rank,
        to,
        element: tensor.dtype.bits().div_ceil(8) as u32,
        to_element: target.dtype.bits().div_ceil(8) as u32,
        loops,
        conversion: None,
        tensor: tensor.number,
    })
}

/// The first byte in the source, the first in the target, and the loops around an element. Elements
/// smaller than a byte move as bytes, if they fill them; `None` if they do not.
pub(crate) fn piece_in_bytes(
    piece: &Piece,
    from: Dtype,
    to: Dtype,
) -> Option<(u64, u64, Vec<ByteLoop>)> {
    let (bits, to_bits) = (from.bits() as u64, to.bits() as u64);
    let bytes_of = |elements: u64, bits: u64| {
        let all = elements * bits;
        all.is_multiple_of(8).then_some(all / 8)
    };

    let mut loops = Vec::with_capacity(piece.loops.len());
    let mut outer = &piece.loops[..];
    if bits < 8 {
        // Such elements have no conversion: both sides are alike.
        loops.push(ByteLoop {
            count: bytes_of(piece.run(), bits)?,
            from: 1,
            to: 1,
        });
        outer = &outer[usize::from(piece.run() > 1)..];
    }
    for it in outer {
        loops.push(ByteLoop {
            count: it.count,
            from: bytes_of(it.source_stride, bits)?,
            to: bytes_of(it.destination_stride, to_bits)?,
        });
    }
    let from = bytes_of(piece.source_offset, bits)?;
    Some((from, bytes_of(piece.destination_offset, to_bits)?, loops))
}

fn part_of_a_byte(target: &str, source_tensor: &str, dtype: Dtype) -> PlanError {
    PlanError::PartOfAByte {
        target: target.to_owned(),
        source_tensor: source_tensor.to_owned(),
        dtype,
    }
}
