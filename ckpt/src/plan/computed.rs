//! Tensors that are computed during the load. A plan treats them as files whose bytes are computed
//! on request, in whole rows.
//!
//! The operands of some rows are loaded by a nested plan, created together with the plan that needs
//! it. So their reads and memory are also known in advance, and computed tensors can depend on each
//! other.

use std::ops::Range;

use super::chunk::{Chunk, Origin};
use super::request::LoadRequest;
use crate::graph::{Computation, Expr, Graph, TensorType};

/// A computed tensor that copies read from.
#[derive(Clone, Debug)]
pub(crate) struct ComputedTensor {
    pub(crate) computation: Computation,
    /// Dtypes and shapes of the operands.
    pub(crate) types: Vec<TensorType>,
    operands: Vec<Expr>,
    row_bytes: u64,
    bytes: u64,
}

impl ComputedTensor {
    /// The computed tensor of an expression; `None` unless the expression is
    /// [`Leaf::Computed`](crate::graph::Leaf::Computed).
    pub(super) fn new(graph: &Graph, expr: Expr) -> Option<ComputedTensor> {
        let (operands, computation) = graph.computation(expr)?;
        let (dtype, shape) = graph.tensor_type(expr);
        let element = dtype.bits() as u64 / 8; // floats are whole bytes
        let row: u64 = shape.iter().skip(1).product();
        let rows = shape.first().copied().unwrap_or(1);
        Some(ComputedTensor {
            computation: computation.clone(),
            types: operands.iter().map(|it| graph.tensor_type(*it)).collect(),
            operands: operands.to_vec(),
            row_bytes: (row * element).max(1),
            bytes: rows * row * element,
        })
    }

    pub(super) fn origin(&self) -> Origin {
        Origin { bytes: self.bytes, alignment: self.row_bytes, is_computed: true }
    }

    /// The rows of the tensor in a chunk.
    pub(super) fn rows(&self, chunk: &Chunk) -> Range<u64> {
        chunk.read.start / self.row_bytes..chunk.read.end / self.row_bytes
    }

    /// The rows of each operand that these rows depend on.
    pub(super) fn operand_rows(&self, rows: Range<u64>) -> Vec<Range<u64>> {
        self.computation.rows_of_operands(rows, &self.types)
    }

    /// A request for these rows of each operand.
    pub(super) fn requests(&self, operand_rows: &[Range<u64>]) -> Vec<LoadRequest> {
        let operands = self.operands.iter().zip(&self.types).zip(operand_rows);
        let requests = operands.zip(0..).map(|(((expr, (_, shape)), rows), number)| {
            let mut region: Vec<Range<u64>> = shape.iter().map(|extent| 0..*extent).collect();
            if let Some(first) = region.first_mut() {
                *first = rows.clone();
            }
            LoadRequest::new(format!("{} {number}", self.computation.name()), *expr, region)
        });
        requests.collect()
    }
}
