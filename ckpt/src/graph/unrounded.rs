//! Expressions without the rounding of their casts, to find what a cast has lost.

use meshgrad_error::Result;

use super::op::Op;
use super::{Expr, Graph};
use crate::Dtype;

impl Graph {
    /// The same expressions, in which casts and other operations on elements have F64 results. The
    /// operands of computed tensors are not changed. Returns the new expressions, indexed by the
    /// [`Expr`]s of this graph.
    ///
    /// # Errors
    /// For too many nested operations.
    pub fn unrounded(&self) -> Result<(Graph, Vec<Expr>)> {
        let mut graph = Graph::new();
        let rounded = graph.import(self, &|_| None)?;
        let mut exact: Vec<Expr> = Vec::with_capacity(rounded.len());
        for (node, rounded) in self.nodes().iter().zip(&rounded) {
            let made = match &node.op {
                Op::Source(_) | Op::View { .. } | Op::Fill { .. } | Op::Computed { .. } => *rounded,
                Op::Each { of, step } => {
                    let wide = graph.cast(exact[of.index()], Dtype::F64)?;
                    graph.step(wide, *step)?
                }
                op => {
                    let exact = graph.of_one_dtype(op.operands(), &exact)?;
                    let mut operands = exact.iter().copied();
                    let dtype = exact.first().map_or(Dtype::F64, |first| graph.dtype(*first));
                    let op = op.with_operands(|old| operands.next().unwrap_or(old));
                    graph.add(op, node.shape.clone(), dtype)?
                }
            };
            exact.push(made);
        }
        Ok((graph, exact))
    }

    /// The new operands, as F64 if their dtypes differ.
    fn of_one_dtype(&mut self, old: &[Expr], new: &[Expr]) -> Result<Vec<Expr>> {
        let operands: Vec<Expr> = old.iter().map(|old| new[old.index()]).collect();
        let mut dtypes = operands.iter().map(|it| self.dtype(*it));
        let first = dtypes.next();
        if dtypes.all(|it| Some(it) == first) {
            return Ok(operands);
        }
        let wide = operands.iter().map(|it| self.cast(*it, Dtype::F64));
        wide.collect()
    }
}
