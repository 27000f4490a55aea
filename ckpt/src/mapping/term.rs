//! The two sides of a rule: names, and operations on them.

use std::collections::BTreeSet;

use super::captures::Captures;
use super::template::Template;
use crate::Dtype;
use crate::graph::Real;

/// A tensor in a rule.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Term {
    Name(Template),
    Call(Call),
}

/// An operation on tensors.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Call {
    pub(super) action: Action,
    pub(super) of: Vec<Term>,
    /// The capture over which the only operand is repeated.
    pub(super) each: Option<String>,
}

/// The operation. Negative dims count from the last.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Action {
    /// `shares`: how the inverse splits the extent.
    Concat {
        dim: i64,
        shares: Option<Vec<u64>>,
    },
    Stack {
        dim: i64,
    },
    /// Interleaves the elements.
    Interleave {
        dim: i64,
    },
    Permute(Vec<usize>),
    Transpose(i64, i64),
    Slice {
        dim: i64,
        start: u64,
        end: u64,
        step: u64,
    },
    Select {
        dim: i64,
        index: u64,
    },
    /// One of several equal parts.
    Chunk {
        dim: i64,
        index: u64,
        count: u64,
    },
    Unflatten {
        dim: i64,
        rows: u64,
    },
    /// `rows`: the extent of the first of the two dims, for the inverse.
    Flatten {
        dim: i64,
        rows: Option<u64>,
    },
    Unsqueeze {
        dim: i64,
    },
    Squeeze {
        dim: i64,
    },
    /// Pads to an extent with a value. `from`: the extent before padding, for the inverse.
    Pad {
        dim: i64,
        to: u64,
        from: Option<u64>,
        value: Real,
    },
    Fill {
        value: Real,
        dtype: Dtype,
        shape: Vec<u64>,
    },
    Cast(Dtype),
    Scale(Real),
    Add(Real),
    /// The first operand that exists. If `tied`, all that exist must be equal.
    First {
        tied: bool,
    },
    /// The same tensor under another name; states that the old name is dropped.
    Rename,
    Mean,
    /// Weight plus scale times the product of two low-rank matrices.
    Lora {
        scale: Real,
    },
    /// Multiplies by a scale per block.
    Dequant {
        block: Vec<u64>,
        dtype: Dtype,
    },
}

/// Resolves a dim, where negative numbers count from the last.
pub(super) fn dim_of(dim: i64, rank: usize) -> usize {
    match dim {
        0.. => dim as usize,
        // Out of range: the graph rejects `usize::MAX - 1`.
        _ => (rank as i64 + dim).try_into().unwrap_or(usize::MAX - 1),
    }
}

impl Action {
    /// Its name in a map.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Action::Concat { .. } => "concat",
            Action::Stack { .. } => "stack",
            Action::Interleave { .. } => "interleave",
            Action::Permute(_) => "permute",
            Action::Transpose(..) => "transpose",
            Action::Slice { .. } => "slice",
            Action::Select { .. } => "select",
            Action::Chunk { .. } => "chunk",
            Action::Unflatten { .. } => "unflatten",
            Action::Flatten { .. } => "flatten",
            Action::Unsqueeze { .. } => "unsqueeze",
            Action::Squeeze { .. } => "squeeze",
            Action::Pad { .. } => "pad",
            Action::Fill { .. } => "fill",
            Action::Cast(_) => "cast",
            Action::Scale(_) => "scale",
            Action::Add(_) => "add",
            Action::First { tied: false } => "first",
            Action::First { tied: true } => "tied",
            Action::Rename => "rename",
            Action::Mean => "mean",
            Action::Lora { .. } => "lora",
            Action::Dequant { .. } => "dequant",
        }
    }
}

impl Term {
    /// The names in it, each with the captures that enclosing operations iterate over.
    pub(super) fn names(&self) -> Vec<(&Template, Vec<&str>)> {
        let mut names = Vec::new();
        self.collect(&mut Vec::new(), &mut names);
        names
    }

    fn collect<'t>(
        &'t self,
        around: &mut Vec<&'t str>,
        names: &mut Vec<(&'t Template, Vec<&'t str>)>,
    ) {
        match self {
            Term::Name(template) => names.push((template, around.clone())),
            Term::Call(call) => {
                around.extend(call.each.as_deref());
                call.of.iter().for_each(|of| of.collect(around, names));
                if call.each.is_some() {
                    around.pop();
                }
            }
        }
    }

    /// The name, if it is one without captures.
    pub(super) fn literal(&self) -> Option<String> {
        match self {
            Term::Name(template) => template.fill(&Captures::new()).ok(),
            Term::Call(_) => None,
        }
    }

    /// The captures that no operation in it iterates over.
    pub(super) fn free_captures(&self) -> BTreeSet<&str> {
        let names = self.names();
        let free = names.iter().flat_map(|(template, around)| {
            let captures = template.captures();
            captures.filter(|capture| !around.contains(capture))
        });
        free.collect()
    }
}
