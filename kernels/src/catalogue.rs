//! A representative list of kernels: what checks and goldens are made of.

use crate::elementwise::{Element, Elementwise, Layout};
use crate::expression::{Binary, Comparison, Expression, Node, Unary};
use crate::gemm::{GemmBf16, GemmF32, Order, Output, Tile};
use crate::rms_norm::{RmsNorm, RmsNormGradInput, RmsNormGradWeight, SumPartials};
use crate::{Dtype, Ptx, Result, Variant};

/// One kernel of every kind that matters: each function, format, layout and tile.
pub fn catalogue() -> Vec<Ptx> {
    let families = families().into_iter();
    families.flat_map(|(_, kernels)| kernels).collect()
}

/// The same, family by family.
pub fn families() -> Vec<(&'static str, Vec<Ptx>)> {
    // All constructors are called with extents that they take; a test holds that none is left out.
    let built = |(name, kernels): &NamedFamily| (*name, kernels().into_iter().flatten().collect());
    FAMILIES.iter().map(built).collect()
}

const FAMILIES: &[NamedFamily] = &[
    ("elementwise", elementwise),
    ("rms_norm", rms_norm),
    ("gemm_f32", gemm_f32),
    ("gemm_bf16", gemm_bf16),
];

type NamedFamily = (&'static str, fn() -> Family);

/// The kernels of one family, or why there is no such kernel.
type Family = Vec<Result<Ptx>>;

const F32: Element = Element::Float(Dtype::F32);
const BF16: Element = Element::Float(Dtype::Bf16);

fn elementwise() -> Family {
    let variants = elementwise_variants().into_iter();
    variants.map(|it| Ok(it?.ptx())).collect()
}

/// What the list has of expressions, which no other list can repeat.
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

/// Features of rows: from a few lanes to a whole CTA a row, with and without a ragged end; any
/// length.
pub const ROW_FEATURES: [usize; 9] = [8, 64, 128, 136, 1024, 2000, 4096, 8192, 1025];

/// Features of what is summed down columns: of few, many, and any.
pub const COLUMN_FEATURES: [usize; 4] = [8, 128, 4096, 1025];

fn rms_norm() -> Family {
    let mut kernels = vec![SumPartials::new(false).ptx(), SumPartials::new(true).ptx()];
    for dtype in Dtype::ALL {
        for features in ROW_FEATURES {
            kernels.push(RmsNorm::new(dtype, features, true).ptx());
            kernels.push(RmsNormGradInput::new(dtype, features, true).ptx());
        }
        for features in COLUMN_FEATURES {
            kernels.push(RmsNormGradWeight::new(dtype, features, true).ptx());
        }
    }
    kernels.into_iter().map(Ok).collect()
}

fn gemm_f32() -> Family {
    let mut kernels = Vec::new();
    for a in Order::ALL {
        for b in Order::ALL {
            for tile in Tile::ALL {
                for accumulate in [false, true] {
                    let variant = GemmF32 {
                        a,
                        b,
                        tile,
                        accumulate,
                    };
                    kernels.push(Ok(variant.ptx()));
                }
            }
        }
    }
    kernels
}

fn gemm_bf16() -> Family {
    let mut kernels = Vec::new();
    for a in Order::ALL {
        for b in Order::ALL {
            for tile in Tile::ALL {
                for output in Output::ALL {
                    for aligned in [true, false] {
                        let variant = GemmBf16 {
                            a,
                            b,
                            tile,
                            output,
                            aligned,
                        };
                        kernels.push(Ok(variant.ptx()));
                    }
                }
            }
        }
    }
    kernels
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_kernel_of_the_list_can_be_built() {
        let kernels = FAMILIES.iter().flat_map(|(_, kernels)| kernels());
        let errors: Vec<_> = kernels.filter_map(Result::err).collect();
        assert!(errors.is_empty(), "{errors:?}");
    }

    #[test]
    fn names_tell_variants_apart() {
        let kernels = catalogue();
        let names: HashSet<_> = kernels.iter().map(|ptx| &ptx.entry).collect();
        let texts: HashSet<_> = kernels.iter().map(|ptx| &ptx.text).collect();
        assert_eq!(names.len(), kernels.len());
        assert_eq!(texts.len(), kernels.len());
    }
}
