//! Imports the expressions of one graph into another.

use meshgrad_error::{Result, bail};

use super::op::Op;
use super::{Expr, Graph};

impl Graph {
    /// Adds all expressions of another graph. Its sources are replaced by expressions of this graph
    /// that have the same dtypes and shapes. Returns the new expressions, indexed by the [`Expr`]s
    /// of the other graph.
    ///
    /// # Errors
    /// For a name with another dtype or shape, and for a view of a source that is replaced by an
    /// expression over several tensors.
    pub(crate) fn import(
        &mut self,
        other: &Graph,
        source: &dyn Fn(&str) -> Option<Expr>,
    ) -> Result<Vec<Expr>> {
        let mut made: Vec<Expr> = Vec::with_capacity(other.nodes().len());
        for node in other.nodes() {
            let expr = match &node.op {
                Op::Source(id) => {
                    let name = other.name(*id);
                    let (dtype, shape) = (other.source_dtype(*id), other.source_shape(*id));
                    match source(name) {
                        Some(expr) => self.check_type(name, expr, dtype, shape)?,
                        None => self.source(name, dtype, shape)?,
                    }
                }
                Op::View { of, offset, strides } => {
                    let replaced = made[other.expr_of(*of).index()];
                    let Op::Source(_) = self.node(replaced).op else {
                        bail!(
                            Invalid,
                            "view: `{}` is made of several stored tensors, but a view needs one: \
                             use slices and permutations",
                            other.name(*of).escape_debug()
                        );
                    };
                    self.view(replaced, *offset, &node.shape, strides)?
                }
                op => {
                    let op = op.with_operands(|of| made[of.index()]);
                    self.add(op, node.shape.clone(), other.dtype(Expr(made.len() as u32)))?
                }
            };
            made.push(expr);
        }
        Ok(made)
    }
}
