//! Placements that an op does not support.

use std::fmt;

use super::remedy::{Remedy, first_as_code};
use crate::Placement;

/// Placements along one axis that an op has no strategy for, and the remedies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Incompatible {
    /// The op.
    pub op: String,
    /// The axis.
    pub axis: String,
    /// The reason.
    pub problem: Problem,
    /// Redistributions that lead to supported placements, the cheapest first.
    pub remedies: Vec<Remedy>,
}

impl fmt::Display for Incompatible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Incompatible { op, axis, problem, remedies } = self;
        let texts: Vec<String> = remedies.iter().map(Remedy::to_string).collect();
        let (remedies, code) = (texts.join(", or "), first_as_code(remedies));
        write!(f, "{op} on axis `{axis}`: {problem}; {remedies}{code}")
    }
}

/// The reason why an op has no strategy for its operands' placements along an axis.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// A dim is sharded that the op needs whole.
    NotWhole {
        /// The operand.
        operand: String,
        /// Its placement.
        has: Placement,
        /// The dim.
        dim: usize,
        /// The dim's name in the signature.
        name: Option<String>,
    },
    /// The op supports sharding this dim, but not with these shard sizes.
    UnequalShards {
        /// The operand.
        operand: String,
        /// The dim.
        dim: usize,
        /// The dim's name in the signature.
        name: Option<String>,
        /// The extents of the shards.
        sizes: Vec<usize>,
        /// The dim whose shards must be in proportion; `None` if all shards must be equal.
        in_proportion_to: Option<String>,
    },
    /// The operand of a reshape has a shard that no placement of the result describes.
    NoPlacement {
        /// The operand.
        operand: String,
        /// Its placement.
        has: Placement,
    },
    /// An operand is partial, and the op is not linear in it.
    NotLinear {
        /// The operand.
        operand: String,
        /// Its placement.
        has: Placement,
    },
    /// The placements of two operands conflict.
    Conflict {
        /// The operand.
        operand: String,
        /// Its placement.
        has: Placement,
        /// The placement that it needs.
        needs: Placement,
        /// The operand that requires it.
        because: String,
        /// That operand's placement.
        because_has: Placement,
        /// The name in the signature of the dim that the other operand shards.
        dim: Option<String>,
        /// The operand is modified in place, so it must have the result's placement.
        in_place: bool,
    },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::NotWhole { operand, has, dim, name } => {
                let dim = dim_text(*dim, name);
                write!(f, "`{operand}` is {has}, but the op needs {dim} whole")
            }
            Problem::UnequalShards { operand, dim, name, sizes, in_proportion_to } => {
                let (dim, sizes) = (dim_text(*dim, name), sizes_text(sizes));
                write!(f, "`{operand}` shards {dim} into {sizes}, but the op needs ")?;
                match in_proportion_to {
                    Some(other) => write!(f, "shards in proportion to those of `{other}`"),
                    None => f.write_str("equal shards"),
                }
            }
            Problem::NoPlacement { operand, has } => {
                write!(f, "`{operand}` is {has}, which no placement of the result can express")
            }
            Problem::NotLinear { operand, has } => {
                write!(f, "`{operand}` is {has}, but the op is not linear in it")
            }
            Problem::Conflict { operand, has, needs, because, because_has, dim, in_place } => {
                write!(f, "`{because}` is {because_has}")?;
                if let Some(dim) = dim {
                    write!(f, " (`{dim}`)")?;
                }
                write!(f, ", so `{operand}` must be {needs}, but is {has}")?;
                match needs {
                    Placement::Partial(_) if *in_place => {
                        f.write_str(" (accumulate into a partial buffer and reduce it later)")
                    }
                    _ => Ok(()),
                }
            }
        }
    }
}

/// ``its dim 1 (`d`)``.
fn dim_text(dim: usize, name: &Option<String>) -> String {
    match name {
        Some(name) => format!("its dim {dim} (`{name}`)"),
        None => format!("its dim {dim}"),
    }
}

fn sizes_text(sizes: &[usize]) -> String {
    let sizes: Vec<String> = sizes.iter().map(usize::to_string).collect();
    sizes.join(" + ")
}
