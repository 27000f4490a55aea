//! The inverse direction: derives the names on one side of a rule from the value of that side.
//!
//! `concat(q, k, v) = qkv` determines q, k and v, because concatenation loses nothing. Operations
//! whose result does not determine their operands cannot be on the side that is solved for.

use meshgrad_error::Error;

use super::term::{Action, dim_of};
use crate::graph::{Expr, Graph, TensorType};

/// Why an operation cannot be inverted.
#[derive(Debug)]
pub(super) enum Unsolved {
    /// It can never be inverted, or needs more information.
    Because(String),
    Graph(Error),
}

impl From<Error> for Unsolved {
    fn from(error: Error) -> Unsolved {
        Unsolved::Graph(error)
    }
}

/// Derives the `count` operands of an operation from its result `whole`. `types` are the operands'
/// types, if they are known.
pub(super) fn operands(
    graph: &mut Graph,
    action: &Action,
    whole: Expr,
    count: usize,
    types: Option<&[TensorType]>,
) -> Result<Vec<Expr>, Unsolved> {
    let rank = graph.shape(whole).len();
    let one = |operand: Result<Expr, Error>| Ok(vec![operand?]);
    match action {
        Action::Concat { dim, shares } => {
            let dim = dim_of(*dim, rank);
            let extents = extents(graph, whole, dim, count, shares.as_deref(), types)?;
            cut(graph, whole, dim, &extents)
        }
        Action::Stack { dim } => {
            let dim = dim_of(*dim, rank);
            check_count(graph, whole, dim, count)?;
            let operand = |index| graph.select(whole, dim, index);
            Ok((0..count as u64).map(operand).collect::<Result<_, _>>()?)
        }
        Action::Interleave { dim } => {
            let dim = dim_of(*dim, rank);
            let extent = graph.shape(whole).get(dim).copied().unwrap_or(0);
            let rows = extent / count as u64;
            let apart = graph.unflatten(whole, dim, rows)?;
            check_count(graph, apart, dim + 1, count)?;
            let operand = |index| graph.select(apart, dim + 1, index);
            Ok((0..count as u64).map(operand).collect::<Result<_, _>>()?)
        }
        Action::Permute(dims) => {
            let mut back: Vec<usize> = (0..dims.len()).collect();
            back.sort_by_key(|at| dims[*at]);
            one(graph.permute(whole, &back))
        }
        Action::Transpose(a, b) => {
            let (a, b) = (dim_of(*a, rank), dim_of(*b, rank));
            one(graph.transpose(whole, a, b))
        }
        Action::Unflatten { dim, rows } => {
            // Negative dims count from the last dim of the operand, which has one dim less.
            let dim = dim_of(*dim, rank.saturating_sub(1));
            match graph.shape(whole).get(dim) {
                Some(found) if found != rows => {
                    Err(Unsolved::Because(format!("dim {dim} has {found} rows, not {rows}")))
                }
                _ => one(graph.flatten(whole, dim)),
            }
        }
        Action::Flatten { dim, rows } => {
            let dim = dim_of(*dim, rank + 1);
            let known = types.and_then(|types| types[0].1.get(dim).copied());
            let rows = known.or(*rows).ok_or_else(|| more("rows="))?;
            one(graph.unflatten(whole, dim, rows))
        }
        Action::Unsqueeze { dim } => one(graph.squeeze(whole, dim_of(*dim, rank))),
        Action::Squeeze { dim } => one(graph.unsqueeze(whole, dim_of(*dim, rank + 1))),
        Action::Pad { dim, from, .. } => {
            let dim = dim_of(*dim, rank);
            let known = types.and_then(|types| types[0].1.get(dim).copied());
            let from = known.or(*from).ok_or_else(|| more("from="))?;
            one(graph.slice(whole, dim, (0, from, 1)))
        }
        Action::Cast(_) => match types {
            Some(types) => one(graph.cast(whole, types[0].0)),
            None => Err(Unsolved::Because(
                "the dtype before the cast is unknown: specify the targets".into(),
            )),
        },
        Action::Scale(by) if by.0 == 0.0 => {
            Err(Unsolved::Because("a multiplication by 0 has no inverse".into()))
        }
        Action::Scale(by) => one(graph.scale(whole, 1.0 / by.0)),
        Action::Add(what) => one(graph.add_number(whole, -what.0)),
        // The first operand is written; the caller checks that the others are equal.
        Action::First { .. } | Action::Rename => Ok(vec![whole]),
        Action::Slice { .. }
        | Action::Select { .. }
        | Action::Chunk { .. }
        | Action::Fill { .. }
        | Action::Mean
        | Action::Lora { .. }
        | Action::Dequant { .. } => {
            Err(Unsolved::Because("its result does not determine its operands".into()))
        }
    }
}

fn more(argument: &str) -> Unsolved {
    Unsolved::Because(format!("its operands cannot be derived: specify {argument}, or the targets"))
}

/// The extents of concatenated operands: the extents in `types` if they are known, otherwise in
/// proportion to the shares. A single operand has the whole extent.
fn extents(
    graph: &Graph,
    whole: Expr,
    dim: usize,
    count: usize,
    shares: Option<&[u64]>,
    types: Option<&[TensorType]>,
) -> Result<Vec<u64>, Unsolved> {
    let extent = graph.shape(whole).get(dim).copied().unwrap_or(0);
    if let Some(types) = types {
        let extents = types.iter().map(|(_, shape)| shape.get(dim).copied());
        let extents: Option<Vec<u64>> = extents.collect();
        if let Some(extents) = extents.filter(|it| it.iter().sum::<u64>() == extent) {
            return Ok(extents);
        }
    }
    let shares = match shares {
        Some(shares) if shares.len() == count => shares.to_vec(),
        Some(shares) => {
            let message = format!("{} shares for {count} tensors", shares.len());
            return Err(Unsolved::Because(message));
        }
        None if count == 1 => vec![1],
        None => return Err(more("shares=")),
    };
    let total = shares.iter().try_fold(0u64, |sum, share| sum.checked_add(*share));
    match total.filter(|total| extent.is_multiple_of(*total)) {
        Some(total) => Ok(shares.iter().map(|share| extent / total * share).collect()),
        None => Err(Unsolved::Because(format!(
            "{extent} elements of dim {dim} cannot be divided into shares {shares:?}"
        ))),
    }
}

fn cut(graph: &mut Graph, whole: Expr, dim: usize, extents: &[u64]) -> Result<Vec<Expr>, Unsolved> {
    let mut start = 0;
    let mut parts = Vec::with_capacity(extents.len());
    for extent in extents {
        parts.push(graph.slice(whole, dim, (start, *extent, 1))?);
        start += extent;
    }
    Ok(parts)
}

/// Checks that a dim has an index per operand.
fn check_count(graph: &Graph, whole: Expr, dim: usize, count: usize) -> Result<(), Unsolved> {
    match graph.shape(whole).get(dim) {
        Some(extent) if *extent != count as u64 => Err(Unsolved::Because(format!(
            "dim {dim} has {extent} elements, but there are {count} names"
        ))),
        _ => Ok(()),
    }
}
