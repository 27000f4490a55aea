//! Why an op cannot compute on operands as they lie, and the way out.

use std::fmt;

use super::Remedy;
use crate::{MeshError, PlaceError, Placement};

/// What can be wrong with a rule, or with operands that it is asked about.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RuleError {
    /// A text that is no signature.
    #[error("`{text}` is no signature: {problem}")]
    Text {
        /// The text.
        text: String,
        /// What is wrong with it.
        problem: String,
    },

    /// A name that no operand has.
    #[error("{op}: `{name}` is no operand (operands: {})", .operands.join(", "))]
    UnknownOperand {
        /// The op.
        op: String,
        /// The name.
        name: String,
        /// What there is.
        operands: Vec<String>,
    },

    /// A name that no dim has.
    #[error("{op}: no dim is called `{name}` (dims: {})", .dims.join(", "))]
    UnknownDim {
        /// The op.
        op: String,
        /// The name.
        name: String,
        /// What there is.
        dims: Vec<String>,
    },

    /// More or fewer operands or results than the op has.
    #[error("{op}: {given} {what} were given for {} ({})", .names.len(), .names.join(", "))]
    Count {
        /// The op.
        op: String,
        /// Operands or results.
        what: &'static str,
        /// Those of the op.
        names: Vec<String>,
        /// How many were given.
        given: usize,
    },

    /// An operand or result with another number of dims.
    #[error("{op}: `{tensor}` needs {needed} dims, but its shape is {shape:?}")]
    Dims {
        /// The op.
        op: String,
        /// The operand or result.
        tensor: String,
        /// How many it needs.
        needed: usize,
        /// Its shape.
        shape: Vec<usize>,
    },

    /// Operands whose shapes do not belong together.
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

    /// A cut of a dim that an operand does not have.
    #[error("{op}: `{operand}` is {placement} on axis `{axis}`, but has {dims} dims")]
    NoDim {
        /// The op.
        op: String,
        /// The operand.
        operand: String,
        /// How it lies.
        placement: Placement,
        /// The axis.
        axis: String,
        /// How many dims it has.
        dims: usize,
    },

    /// Operands that the op cannot compute on as they lie.
    #[error(transparent)]
    Misplaced(Box<Misplaced>),

    /// One dim, cut by the same axes in another order.
    #[error(
        "{op}: dim {dim} of `{operand}` ({place}) and dim {other_dim} of `{other}` ({other_place}) \
         are cut by the same axes in another order: bring one into the order of the other"
    )]
    Order {
        /// The op.
        op: String,
        /// An operand.
        operand: String,
        /// Its dim.
        dim: usize,
        /// How it lies.
        place: String,
        /// Another operand.
        other: String,
        /// The same dim of it.
        other_dim: usize,
        /// How that lies.
        other_place: String,
    },

    /// What is wrong with a mesh.
    #[error(transparent)]
    Mesh(#[from] MeshError),

    /// Placements of a result that do not go together.
    #[error(transparent)]
    Place(#[from] PlaceError),

    /// Operands on several meshes.
    #[error(
        "{op}: `{operand}` is on the mesh {mesh} and `{other}` on {other_mesh}: bring them to one"
    )]
    Meshes {
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

/// An op that cannot compute on its operands as they lie along an axis, and what would help.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{op} on axis `{axis}`: {problem}; {}", ways_out(.remedies))]
pub struct Misplaced {
    /// The op.
    pub op: String,
    /// The axis.
    pub axis: String,
    /// Why not.
    pub problem: Problem,
    /// What leads to places that it can compute on, the cheapest first.
    pub remedies: Vec<Remedy>,
}

/// Why an op cannot compute on operands as they lie along an axis.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// A dim is cut that the op needs whole.
    Whole {
        /// The operand.
        operand: String,
        /// How it lies.
        has: Placement,
        /// The dim.
        dim: usize,
        /// The dim's name in the signature.
        name: Option<String>,
    },
    /// A dim is cut that the op can have cut, but not into these parts.
    Parts {
        /// The operand.
        operand: String,
        /// The dim.
        dim: usize,
        /// The dim's name in the signature.
        name: Option<String>,
        /// The parts.
        parts: Vec<usize>,
        /// The name of the dim whose parts must be in proportion; none where all must be equal.
        beside: Option<String>,
    },
    /// Parts of a sum, or the like, are given to what cannot pass them on.
    NotLinear {
        /// The operand.
        operand: String,
        /// How it lies.
        has: Placement,
    },
    /// Operands do not lie as they must together.
    Disagrees {
        /// The operand.
        operand: String,
        /// How it lies.
        has: Placement,
        /// How it must.
        needs: Placement,
        /// The operand that says so.
        because: String,
        /// How that one lies.
        because_has: Placement,
        /// The name in the signature of the dim where that one is cut.
        dim: Option<String>,
        /// It is changed in place, so it must lie as the result does.
        in_place: bool,
    },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::Whole {
                operand,
                has,
                dim,
                name,
            } => {
                let dim = dim_text(*dim, name);
                write!(f, "`{operand}` is {has}, and the op needs {dim} whole")
            }
            Problem::Parts {
                operand,
                dim,
                name,
                parts,
                beside,
            } => {
                let (dim, parts) = (dim_text(*dim, name), parts_text(parts));
                write!(
                    f,
                    "`{operand}` is cut along {dim} into {parts}, and the op needs "
                )?;
                match beside {
                    Some(other) => write!(f, "parts in proportion to those of `{other}`"),
                    None => f.write_str("equal parts"),
                }
            }
            Problem::NotLinear { operand, has } => {
                write!(f, "`{operand}` is {has}, and the op does not pass that on")
            }
            Problem::Disagrees {
                operand,
                has,
                needs,
                because,
                because_has,
                dim,
                in_place,
            } => {
                write!(f, "`{because}` is {because_has}")?;
                if let Some(dim) = dim {
                    write!(f, " (`{dim}`)")?;
                }
                write!(f, ", so `{operand}` must be {needs}, but is {has}")?;
                match needs {
                    Placement::Partial(_) if *in_place => {
                        f.write_str(" (add into a buffer that is reduced later)")
                    }
                    _ => Ok(()),
                }
            }
        }
    }
}

/// ``dim 1 (`d`)``.
fn dim_text(dim: usize, name: &Option<String>) -> String {
    match name {
        Some(name) => format!("its dim {dim} (`{name}`)"),
        None => format!("its dim {dim}"),
    }
}

fn parts_text(parts: &[usize]) -> String {
    let parts: Vec<String> = parts.iter().map(usize::to_string).collect();
    parts.join(" + ")
}

fn ways_out(remedies: &[Remedy]) -> String {
    let ways: Vec<String> = remedies.iter().map(Remedy::to_string).collect();
    ways.join(", or ")
}
