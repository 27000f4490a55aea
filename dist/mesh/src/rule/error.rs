//! Errors of sharding rules.

use std::fmt;

use super::Remedy;
use super::remedy::first_as_code;
use crate::{MeshError, Placement, ShardingError, SignatureError};

/// An error of a sharding rule, or of the operands passed to it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RuleError {
    /// The signature is malformed.
    #[error(transparent)]
    Signature(#[from] SignatureError),

    /// An argument of the op is invalid, such as a dim that is out of range.
    #[error("{op}: {problem}")]
    Argument {
        /// The op.
        op: String,
        /// What is wrong.
        problem: String,
    },

    /// No operand has this name.
    #[error("{op}: unknown operand `{name}` (operands: {})", .operands.join(", "))]
    UnknownOperand {
        /// The op.
        op: String,
        /// The name.
        name: String,
        /// The op's operands.
        operands: Vec<String>,
    },

    /// No dim has this name.
    #[error("{op}: unknown dim `{name}` (dims: {})", .dims.join(", "))]
    UnknownDim {
        /// The op.
        op: String,
        /// The name.
        name: String,
        /// The op's dims.
        dims: Vec<String>,
    },

    /// The number of operands or results differs from the signature's.
    #[error("{op}: expected {} {what} ({}), got {given}", .names.len(), .names.join(", "))]
    TensorCount {
        /// The op.
        op: String,
        /// `operands` or `results`.
        what: &'static str,
        /// The names in the signature.
        names: Vec<String>,
        /// How many were given.
        given: usize,
    },

    /// An operand or result has the wrong number of dims.
    #[error("{op}: `{tensor}` needs {needed} dims, but its shape is {shape:?}")]
    DimCount {
        /// The op.
        op: String,
        /// The operand or result.
        tensor: String,
        /// How many it needs.
        needed: usize,
        /// Its shape.
        shape: Vec<usize>,
    },

    /// Two operands disagree on an extent.
    #[error("{op}: `{operand}` has {has}, but `{other}` needs {other_has}")]
    Extents {
        /// The op.
        op: String,
        /// An operand.
        operand: String,
        /// What it has.
        has: String,
        /// An operand before it.
        other: String,
        /// What that one has.
        other_has: String,
    },

    /// A placement shards a dim that the operand does not have.
    #[error("{op}: `{operand}` is {placement} on axis `{axis}`, but has {dims} dims")]
    NoSuchDim {
        /// The op.
        op: String,
        /// The operand.
        operand: String,
        /// Its placement.
        placement: Placement,
        /// The axis.
        axis: String,
        /// How many dims it has.
        dims: usize,
    },

    /// The op has no strategy for these placements.
    #[error(transparent)]
    Incompatible(Box<Incompatible>),

    /// Two operands shard one dim over the same axes in different orders.
    #[error(
        "{op}: the same axes shard dim {dim} of `{operand}` ({sharding}) and dim {other_dim} of \
         `{other}` ({other_sharding}) in different orders: redistribute one of them"
    )]
    ShardOrder {
        /// The op.
        op: String,
        /// An operand.
        operand: String,
        /// Its dim.
        dim: usize,
        /// Its sharding.
        sharding: String,
        /// Another operand.
        other: String,
        /// The same dim of that operand.
        other_dim: usize,
        /// Its sharding.
        other_sharding: String,
    },

    /// An error of the mesh.
    #[error(transparent)]
    Mesh(#[from] MeshError),

    /// The placements of a result do not combine.
    #[error(transparent)]
    Sharding(#[from] ShardingError),

    /// An operand that is not modified in place has no sharding.
    #[error("{op}: `{operand}` has no sharding")]
    NoSharding {
        /// The op.
        op: String,
        /// The operand.
        operand: String,
    },

    /// Operands are on different meshes.
    #[error(
        "{op}: `{operand}` is on the mesh {mesh} and `{other}` on {other_mesh}: put them on one mesh"
    )]
    MeshMismatch {
        /// The op.
        op: String,
        /// An operand.
        operand: String,
        /// Its mesh.
        mesh: String,
        /// Another operand.
        other: String,
        /// Its mesh.
        other_mesh: String,
    },
}

/// Placements along one axis that an op has no strategy for, and the remedies.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{op} on axis `{axis}`: {problem}; {}{}", join(.remedies), first_as_code(.remedies))]
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

fn join(remedies: &[Remedy]) -> String {
    let remedies: Vec<String> = remedies.iter().map(Remedy::to_string).collect();
    remedies.join(", or ")
}
