//! Evaluation of an expression in registers.

use crate::assembler::{F32, Kernel, Pred};
use crate::elementary::{cos, erf, exp, ln, sigmoid, sin, tanh};
use crate::expression::{Binary, Comparison, Expression, Node, Unary};

/// Emits the instructions of `expression` for one element. Common subexpressions are computed once.
#[track_caller]
pub(crate) fn evaluate<'k>(
    k: &'k Kernel,
    expression: &Expression,
    operands: &[F32<'k>],
    scalars: &[F32<'k>],
) -> F32<'k> {
    let known = Vec::new();
    let mut evaluation = Evaluation { k, operands, scalars, known };
    evaluation.value(expression)
}

struct Evaluation<'a, 'k> {
    k: &'k Kernel,
    operands: &'a [F32<'k>],
    scalars: &'a [F32<'k>],
    known: Vec<(Expression, F32<'k>)>,
}

impl<'k> Evaluation<'_, 'k> {
    fn value(&mut self, expression: &Expression) -> F32<'k> {
        let known = self.known.iter().find(|(known, _)| known == expression);
        if let Some((_, value)) = known {
            return *value;
        }

        let value = match expression.node() {
            Node::Operand(index) => self.operands[usize::from(*index)],
            Node::Constant(bits) => self.k.constant(f32::from_bits(*bits)),
            Node::Scalar(index) => self.scalars[usize::from(*index)],
            Node::Unary(function, x) => unary(*function, self.value(x)),
            // The same bits as a division, but faster.
            Node::Binary(Binary::Div, one, x) if is_one(one) => self.value(x).reciprocal(),
            Node::Binary(function, a, b) => binary(*function, self.value(a), self.value(b)),
            Node::Compare(comparison, a, b) => {
                compare(*comparison, self.value(a), self.value(b)).select(1.0, 0.0)
            }
            Node::Select(condition, a, b) => {
                let condition = self.holds(condition);
                condition.select(self.value(a), self.value(b))
            }
        };
        self.known.push((expression.clone(), value));
        value
    }

    /// Whether a value is nonzero. For a comparison this is its predicate, without the conversion
    /// to a number and back.
    fn holds(&mut self, condition: &Expression) -> Pred<'k> {
        match condition.node() {
            Node::Compare(comparison, a, b) => compare(*comparison, self.value(a), self.value(b)),
            _ => self.value(condition).differs(0.0),
        }
    }
}

fn is_one(expression: &Expression) -> bool {
    *expression.node() == Node::Constant(1.0f32.to_bits())
}

fn unary<'k>(function: Unary, x: F32<'k>) -> F32<'k> {
    match function {
        Unary::Neg => -x,
        Unary::Abs => x.abs(),
        Unary::Sqrt => x.sqrt(),
        Unary::Exp => exp(x),
        Unary::Ln => ln(x),
        Unary::Sin => sin(x),
        Unary::Cos => cos(x),
        Unary::Tanh => tanh(x),
        Unary::Sigmoid => sigmoid(x),
        Unary::Erf => erf(x),
    }
}

fn binary<'k>(function: Binary, a: F32<'k>, b: F32<'k>) -> F32<'k> {
    match function {
        Binary::Add => a + b,
        Binary::Sub => a - b,
        Binary::Mul => a * b,
        Binary::Div => a / b,
    }
}

fn compare<'k>(comparison: Comparison, a: F32<'k>, b: F32<'k>) -> Pred<'k> {
    match comparison {
        Comparison::Eq => a.equals(b),
        Comparison::Ne => a.differs(b),
        Comparison::Lt => a.lt(b),
        Comparison::Le => a.le(b),
        Comparison::Gt => a.gt(b),
        Comparison::Ge => a.ge(b),
    }
}
