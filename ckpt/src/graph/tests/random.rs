//! The copies of random expressions, compared with their evaluation element by element.

use std::collections::HashMap;
use std::ops::Range;

use meshgrad_ckpt_crash::SplitMix64;
use proptest::prelude::*;

use super::super::*;
use super::Opaque;
use super::evaluation::{Dense, Evaluation};
use crate::Dtype;

/// A random expression of a shape, with at most `depth` nested operations.
fn expression(graph: &mut Graph, rng: &mut SplitMix64, shape: &[u64], depth: u32) -> Expr {
    if depth == 0 || shape.is_empty() {
        return leaf(graph, rng, shape);
    }
    let (dim, rank, depth) = (rng.below(shape.len() as u64) as usize, shape.len(), depth - 1);
    let with = |at: Range<usize>, new: &[u64]| {
        let mut other = shape.to_vec();
        other.splice(at, new.iter().copied());
        other
    };
    match rng.below(11) {
        0 => {
            let mut dims: Vec<usize> = (0..rank).collect();
            (1..rank).for_each(|at| dims.swap(at, rng.below(at as u64 + 1) as usize));
            let mut of = vec![0; rank];
            dims.iter().zip(shape).for_each(|(dim, extent)| of[*dim] = *extent);
            let of = expression(graph, rng, &of, depth);
            graph.permute(of, &dims).unwrap()
        }
        1 => {
            let (start, step) = (rng.below(3), 1 + rng.below(3));
            let extent = start + (shape[dim] - 1) * step + 1 + rng.below(3);
            let of = expression(graph, rng, &with(dim..dim + 1, &[extent]), depth);
            graph.slice(of, dim, (start, shape[dim], step)).unwrap()
        }
        2 if shape[dim] > 1 => {
            let first = 1 + rng.below(shape[dim] - 1);
            let parts = [first, shape[dim] - first];
            let of =
                parts.map(|extent| expression(graph, rng, &with(dim..dim + 1, &[extent]), depth));
            graph.concat(&of, dim).unwrap()
        }
        3 if shape[dim] <= 4 => {
            let one = with(dim..dim + 1, &[]);
            let of: Vec<Expr> =
                (0..shape[dim]).map(|_| expression(graph, rng, &one, depth)).collect();
            graph.stack(&of, dim).unwrap()
        }
        4 if dim + 1 < rank => {
            let extent = shape[dim] * shape[dim + 1];
            let of = expression(graph, rng, &with(dim..dim + 2, &[extent]), depth);
            graph.unflatten(of, dim, shape[dim]).unwrap()
        }
        5 => {
            let divisors: Vec<u64> =
                (1..=shape[dim]).filter(|it| shape[dim].is_multiple_of(*it)).collect();
            let rows = divisors[rng.below(divisors.len() as u64) as usize];
            let of = with(dim..dim + 1, &[rows, shape[dim] / rows]);
            let of = expression(graph, rng, &of, depth);
            graph.flatten(of, dim).unwrap()
        }
        6 => {
            let extent = 1 + rng.below(3);
            let of = expression(graph, rng, &with(dim..dim, &[extent]), depth);
            graph.select(of, dim, rng.below(extent)).unwrap()
        }
        7 => {
            let of = expression(graph, rng, shape, depth);
            graph.scale(of, 0.1).unwrap()
        }
        8 => {
            let of = expression(graph, rng, shape, depth);
            graph.add_number(of, -3.0).unwrap()
        }
        9 => {
            let of = expression(graph, rng, shape, depth);
            let narrow = graph.cast(of, Dtype::BF16).unwrap();
            graph.cast(narrow, Dtype::F32).unwrap()
        }
        _ => expression(graph, rng, shape, depth),
    }
}

/// A new source, an earlier one, a constant, or a computed tensor.
fn leaf(graph: &mut Graph, rng: &mut SplitMix64, shape: &[u64]) -> Expr {
    match rng.below(8) {
        0 => graph.fill(Dtype::F32, 0.5, shape).unwrap(),
        1 => {
            let of = graph.source(&format!("{shape:?}"), Dtype::F32, shape);
            let of = of.unwrap();
            graph.compute(&[of], &Computation::new(Opaque)).unwrap()
        }
        2 => graph.source(&format!("{shape:?}"), Dtype::F32, shape).unwrap(),
        _ => {
            let name = format!("{}", graph.sources().len());
            graph.source(&name, Dtype::F32, shape).unwrap()
        }
    }
}

/// Performs the copies; every element of the destination is written once.
fn carry_out(copies: &[ElementCopy], leaves: &HashMap<Leaf, Dense>, count: u64) -> Vec<u64> {
    let mut out = vec![None; count as usize];
    for copy in copies {
        for iteration in 0..copy.elements() {
            let (mut rest, mut from, mut to) =
                (iteration, copy.source_offset, copy.destination_offset);
            for it in &copy.loops {
                from += rest % it.count * it.source_stride;
                to += rest % it.count * it.destination_stride;
                rest /= it.count;
            }
            assert_eq!(out[to as usize], None, "written twice: {copy:?}");
            let element = match copy.from {
                Leaf::Fill(value) => value,
                leaf => Scalar::from_bits(Dtype::F32, leaves[&leaf].elements[from as usize]),
            };
            let step = |element, step: &ElementOp| step.apply(element).unwrap();
            out[to as usize] = Some(copy.steps.iter().fold(element, step).bits());
        }
    }
    out.into_iter().map(Option::unwrap).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Copies of a region match the region of the fully evaluated expression.
    #[test]
    fn copies_match_evaluation(
        seed in any::<u64>(),
        depth in 1..9u32,
        shape in proptest::collection::vec(1..9u64, 1..4),
    ) {
        let (mut graph, mut rng) = (Graph::new(), SplitMix64::new(seed));
        let expr = expression(&mut graph, &mut rng, &shape, depth);
        prop_assert_eq!(graph.shape(expr), &shape);
        let region: Vec<Range<u64>> = shape
            .iter()
            .map(|extent| {
                let start = rng.below(*extent);
                start..start + 1 + rng.below(extent - start)
            })
            .collect();

        let mut evaluation = Evaluation::new(&graph);
        let all = evaluation.of(expr);
        let extents: Vec<u64> = region.iter().map(|range| range.end - range.start).collect();
        let expected = Dense::of(&extents, |at| {
            let at: Vec<u64> = at.iter().zip(&region).map(|(at, range)| at + range.start).collect();
            all.at(&at)
        });
        let copies = graph.copies(expr, &region).unwrap();
        let count = expected.elements.len() as u64;
        let found = carry_out(&copies, &evaluation.leaves, count);
        prop_assert_eq!(found, expected.elements);
        prop_assert_eq!(copies.iter().map(ElementCopy::elements).sum::<u64>(), count);
    }
}
