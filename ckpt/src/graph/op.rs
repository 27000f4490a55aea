//! The operations that expressions are made of.

use super::Short;
use super::compute::Computation;
use super::ids::{Expr, SourceId};
use super::scalar::{ElementOp, Scalar};

/// The origin of an expression's elements.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Op {
    Source(SourceId),
    /// Elements of a source at `offset`, with a step in elements per dim.
    View {
        of: SourceId,
        offset: u64,
        strides: Short<u64>,
    },
    /// One element, repeated.
    Fill {
        value: Scalar,
        shape: Vec<u64>,
    },
    /// An operation on each element.
    Each {
        of: Expr,
        step: ElementOp,
    },
    /// A tensor that is computed as a whole, or by rows.
    Computed {
        of: Short<Expr>,
        how: Computation,
    },
    /// Dim `i` of the result is dim `dims[i]` of the operand.
    Permute {
        of: Expr,
        dims: Vec<usize>,
    },
    Slice {
        of: Expr,
        dim: usize,
        start: u64,
        step: u64,
    },
    /// One index of a dim; the result lacks the dim.
    Select {
        of: Expr,
        dim: usize,
        index: u64,
    },
    Concat {
        of: Short<Expr>,
        dim: usize,
    },
    Stack {
        of: Short<Expr>,
        dim: usize,
    },
    /// Dim `dim` of the operand is split into two. The second has `columns` elements.
    Unflatten {
        of: Expr,
        dim: usize,
        columns: u64,
    },
    /// Dims `dim` and `dim + 1` of the operand are merged; the second has `columns` elements.
    Flatten {
        of: Expr,
        dim: usize,
        columns: u64,
    },
}

impl Op {
    pub(super) fn operands(&self) -> &[Expr] {
        match self {
            Op::Source(_) | Op::View { .. } | Op::Fill { .. } => &[],
            Op::Each { of, .. }
            | Op::Permute { of, .. }
            | Op::Slice { of, .. }
            | Op::Select { of, .. }
            | Op::Unflatten { of, .. }
            | Op::Flatten { of, .. } => std::slice::from_ref(of),
            Op::Concat { of, .. } | Op::Stack { of, .. } | Op::Computed { of, .. } => of,
        }
    }

    /// The same operation on other operands.
    pub(super) fn with_operands(&self, mut new: impl FnMut(Expr) -> Expr) -> Op {
        let mut op = self.clone();
        match &mut op {
            Op::Source(_) | Op::View { .. } | Op::Fill { .. } => {}
            Op::Each { of, .. }
            | Op::Permute { of, .. }
            | Op::Slice { of, .. }
            | Op::Select { of, .. }
            | Op::Unflatten { of, .. }
            | Op::Flatten { of, .. } => *of = new(*of),
            Op::Concat { of, .. } | Op::Stack { of, .. } | Op::Computed { of, .. } => {
                of.iter_mut().for_each(|of| *of = new(*of));
            }
        }
        op
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Op::Source(_) => "source",
            Op::View { .. } => "view",
            Op::Fill { .. } => "fill",
            Op::Each { step, .. } => step.name(),
            Op::Computed { how, .. } => how.name(),
            Op::Permute { .. } => "permute",
            Op::Slice { .. } => "slice",
            Op::Select { .. } => "select",
            Op::Concat { .. } => "concat",
            Op::Stack { .. } => "stack",
            Op::Unflatten { .. } => "unflatten",
            Op::Flatten { .. } => "flatten",
        }
    }
}
