//! Elementwise expressions with every function and every kind of layout.

use super::Family;
use meshgrad_kernels::elementwise::{Element, Elementwise, Layout};
use meshgrad_kernels::expression::{Binary, Comparison, Expression, Node, Unary};
use meshgrad_kernels::{Dtype, Result, Variant};

const F32: Element = Element::Float(Dtype::F32);
const BF16: Element = Element::Float(Dtype::Bf16);

pub(super) fn elementwise() -> Family {
    let variants = elementwise_variants().into_iter();
    variants.map(|it| Ok(it?.ptx())).collect()
}

/// The elementwise variants of the catalogue.
pub fn elementwise_variants() -> Vec<Result<Elementwise>> {
    use Element::Bool;
    let contiguous = Layout::Contiguous;
    let strided = |dims, wide| Layout::Strided { dims, wide };
    let (x, y) = (Expression::operand(0), Expression::operand(1));
    let kernel = |expression: &Expression, operands: &[Element], result, layout| {
        Elementwise::new(expression.clone(), operands, result, layout)
    };

    let unary = Unary::ALL.iter().map(|function| {
        let expression = Expression::from(Node::Unary(*function, x.clone()));
        kernel(&expression, &[BF16], BF16, contiguous)
    });
    let binary = Binary::ALL.iter().map(|function| {
        let expression = Expression::from(Node::Binary(*function, x.clone(), y.clone()));
        kernel(&expression, &[F32, F32], F32, contiguous)
    });
    let comparisons = Comparison::ALL.iter().map(|comparison| {
        let expression = Expression::from(Node::Compare(*comparison, x.clone(), y.clone()));
        kernel(&expression, &[BF16, BF16], Bool, strided(2, false))
    });

    let swiglu = &x * x.sigmoid() * &y;
    let select = x.select(&y, Expression::operand(2));
    let affine = &x * Expression::scalar(0) + Expression::scalar(1);
    let inverse_root = Expression::constant(1.0) / x.sqrt();
    let sum = &x + &y;
    let everything = (0..6).map(Expression::operand).reduce(|a, b| a + b);
    let everything = everything.unwrap_or_else(|| x.clone());
    let more = [
        kernel(&swiglu, &[BF16, BF16], BF16, contiguous),
        kernel(&swiglu, &[F32, F32], F32, contiguous),
        kernel(&swiglu, &[BF16, BF16], BF16, strided(3, false)),
        kernel(&select, &[Bool, F32, F32], F32, contiguous),
        kernel(&select, &[Bool, BF16, BF16], BF16, contiguous),
        kernel(&x.lt(&y), &[F32, F32], Bool, contiguous),
        kernel(&affine, &[F32], BF16, contiguous),
        kernel(&inverse_root, &[F32], F32, contiguous),
        kernel(&sum, &[BF16, F32], F32, contiguous),
        kernel(&sum, &[F32, F32], F32, strided(1, false)),
        kernel(&sum, &[F32, F32], F32, strided(6, true)),
        kernel(&everything, &[BF16; 6], BF16, strided(6, true)),
        kernel(&Expression::constant(1.0), &[], F32, contiguous),
        kernel(&x, &[F32], BF16, contiguous),
        kernel(&x, &[BF16], BF16, strided(4, false)),
    ];
    unary.chain(binary).chain(comparisons).chain(more).collect()
}
