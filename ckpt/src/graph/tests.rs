//! Random expressions compared with their evaluation element by element, and rejected expressions.

use std::collections::HashMap;
use std::ops::Range;

use proptest::prelude::*;

use super::op::Op;
use super::*;
use crate::Dtype;
use meshgrad_ckpt_crash::SplitMix64;

/// A dense tensor of numbers.
#[derive(Clone, Debug, PartialEq)]
struct Dense {
    shape: Vec<u64>,
    elements: Vec<u64>,
}

impl Dense {
    /// The tensor with the elements `f(coordinate)`.
    fn of(shape: &[u64], mut f: impl FnMut(&[u64]) -> u64) -> Dense {
        let mut at = vec![0; shape.len()];
        let count: u64 = shape.iter().product();
        let elements = (0..count).map(|_| {
            let element = f(&at);
            for dim in (0..shape.len()).rev() {
                at[dim] += 1;
                if at[dim] < shape[dim] {
                    break;
                }
                at[dim] = 0;
            }
            element
        });
        let elements = elements.collect();
        Dense {
            shape: shape.to_vec(),
            elements,
        }
    }

    fn at(&self, at: &[u64]) -> u64 {
        let index = at
            .iter()
            .zip(&self.shape)
            .fold(0, |index, (at, extent)| index * extent + at);
        self.elements[index as usize]
    }
}

/// The reference evaluation of expressions, as the bits of their elements. Sources and computed
/// tensors contain small consecutive numbers.
struct Evaluation<'g> {
    graph: &'g Graph,
    leaves: HashMap<Leaf, Dense>,
    next: u32,
}

impl Evaluation<'_> {
    fn new(graph: &Graph) -> Evaluation<'_> {
        Evaluation {
            graph,
            leaves: HashMap::new(),
            next: 0,
        }
    }

    /// The tensor of a leaf, the same on every call.
    fn leaf(&mut self, leaf: Leaf, shape: &[u64]) -> Dense {
        let next = &mut self.next;
        let made = || {
            Dense::of(shape, |_| {
                *next += 1;
                u64::from((*next as f32).to_bits())
            })
        };
        self.leaves.entry(leaf).or_insert_with(made).clone()
    }

    fn of(&mut self, expr: Expr) -> Dense {
        let graph = self.graph;
        let shape = graph.shape(expr).to_vec();
        match &graph.node(expr).op {
            Op::Source(id) => self.leaf(Leaf::Source(*id), &shape),
            Op::View {
                of,
                offset,
                strides,
            } => {
                let of = self.leaf(Leaf::Source(*of), graph.source_shape(*of));
                Dense::of(&shape, |at| {
                    let terms = at.iter().zip(strides).map(|(at, stride)| at * stride);
                    of.elements[(offset + terms.sum::<u64>()) as usize]
                })
            }
            Op::Computed { .. } => self.leaf(Leaf::Computed(expr), &shape),
            Op::Fill { value, shape } => Dense::of(shape, |_| value.bits()),
            Op::Each { of, step } => {
                let (dtype, mut of) = (graph.dtype(*of), self.of(*of));
                for element in &mut of.elements {
                    let before = Scalar::from_bits(dtype, *element);
                    *element = step.apply(before).unwrap().bits();
                }
                of
            }
            Op::Permute { of, dims } => {
                let of = self.of(*of);
                Dense::of(&shape, |at| {
                    let mut from = vec![0; at.len()];
                    dims.iter().zip(at).for_each(|(dim, at)| from[*dim] = *at);
                    of.at(&from)
                })
            }
            Op::Slice {
                of,
                dim,
                start,
                step,
            } => {
                let of = self.of(*of);
                Dense::of(&shape, |at| {
                    let mut from = at.to_vec();
                    from[*dim] = start + step * at[*dim];
                    of.at(&from)
                })
            }
            Op::Select { of, dim, index } => {
                let of = self.of(*of);
                Dense::of(&shape, |at| {
                    let mut from = at.to_vec();
                    from.insert(*dim, *index);
                    of.at(&from)
                })
            }
            Op::Concat { of, dim } => {
                let of: Vec<Dense> = of.iter().map(|it| self.of(*it)).collect();
                Dense::of(&shape, |at| {
                    let (mut from, mut which) = (at.to_vec(), 0);
                    while from[*dim] >= of[which].shape[*dim] {
                        from[*dim] -= of[which].shape[*dim];
                        which += 1;
                    }
                    of[which].at(&from)
                })
            }
            Op::Stack { of, dim } => {
                let of: Vec<Dense> = of.iter().map(|it| self.of(*it)).collect();
                Dense::of(&shape, |at| {
                    let mut from = at.to_vec();
                    let which = from.remove(*dim);
                    of[which as usize].at(&from)
                })
            }
            Op::Unflatten { of, .. } | Op::Flatten { of, .. } => Dense {
                shape,
                elements: self.of(*of).elements,
            },
        }
    }
}

/// A random expression of a shape, with at most `depth` nested operations.
fn expression(graph: &mut Graph, rng: &mut SplitMix64, shape: &[u64], depth: u32) -> Expr {
    if depth == 0 || shape.is_empty() {
        return leaf(graph, rng, shape);
    }
    let (dim, rank, depth) = (
        rng.below(shape.len() as u64) as usize,
        shape.len(),
        depth - 1,
    );
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
            dims.iter()
                .zip(shape)
                .for_each(|(dim, extent)| of[*dim] = *extent);
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
            let of: Vec<Expr> = (0..shape[dim])
                .map(|_| expression(graph, rng, &one, depth))
                .collect();
            graph.stack(&of, dim).unwrap()
        }
        4 if dim + 1 < rank => {
            let extent = shape[dim] * shape[dim + 1];
            let of = expression(graph, rng, &with(dim..dim + 2, &[extent]), depth);
            graph.unflatten(of, dim, shape[dim]).unwrap()
        }
        5 => {
            let divisors: Vec<u64> = (1..=shape[dim])
                .filter(|it| shape[dim].is_multiple_of(*it))
                .collect();
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
        2 => graph
            .source(&format!("{shape:?}"), Dtype::F32, shape)
            .unwrap(),
        _ => {
            let name = format!("{}", graph.sources().len());
            graph.source(&name, Dtype::F32, shape).unwrap()
        }
    }
}

/// A computation on one tensor that keeps its type; its values are irrelevant here.
#[derive(Debug)]
struct Opaque;

impl Compute for Opaque {
    fn name(&self) -> &'static str {
        "opaque"
    }

    fn result(&self, operands: &[TensorType]) -> Result<TensorType, String> {
        match operands {
            [one] => Ok(one.clone()),
            _ => Err(format!("it takes 1 operand, not {}", operands.len())),
        }
    }

    fn rows_of_operands(&self, rows: Range<u64>, _: &[TensorType]) -> Vec<Range<u64>> {
        vec![rows]
    }

    fn compute(&self, _: Range<u64>, operands: &[Operand<'_>], out: &mut [u8]) {
        out.copy_from_slice(operands[0].bytes);
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

/// Fuses the experts of a layer. Of 8 expert-parallel x 2 tensor-parallel ranks, rank 0 reads one
/// sixteenth of the elements, in whole rows.
#[test]
fn a_rank_reads_only_its_share() {
    let (experts, features, hidden) = (128, 768, 2048);
    let mut graph = Graph::new();
    let gates_and_ups: Vec<Expr> = (0..experts)
        .map(|expert| {
            let both = ["gate", "up"].map(|half| {
                let name = format!("{half}.{expert}");
                let one = graph.source(&name, Dtype::BF16, &[features, hidden]);
                graph.unsqueeze(one.unwrap(), 0).unwrap()
            });
            graph.concat(&both, 0).unwrap()
        })
        .collect();
    // [experts, 2, features, hidden]: a rank keeps half of the features of both gate and up.
    let fused = graph.stack(&gates_and_ups, 0).unwrap();
    let region = [0..experts / 8, 0..2, 0..features / 2, 0..hidden];
    let copies = graph.copies(fused, &region).unwrap();
    assert_eq!(copies.len() as u64, experts / 8 * 2);
    let read: u64 = copies.iter().map(ElementCopy::elements).sum();
    assert_eq!(read * 16, experts * 2 * features * hidden);
    assert!(copies.iter().all(|it| it.run() == features / 2 * hidden));
}

/// A contiguous copy is one range, however it was sliced and concatenated.
#[test]
fn contiguous_copies_are_merged() {
    let mut graph = Graph::new();
    let x = graph.source("x", Dtype::F32, &[6, 4]).unwrap();
    let cut = [0, 3].map(|start| graph.slice(x, 0, (start, 3, 1)).unwrap());
    let joined = graph.concat(&cut, 0).unwrap();
    let flat = graph.flatten(joined, 0).unwrap();
    let rows = graph.unflatten(flat, 0, 2).unwrap();
    let copies = graph.copies(rows, &[0..2, 0..12]).unwrap();
    assert!(copies.iter().all(|it| it.run() == it.elements()));
    assert_eq!(copies.len(), 2);

    let transposed = graph.transpose(x, 0, 1).unwrap();
    let [copy] = &graph.copies(transposed, &[0..4, 0..6]).unwrap()[..] else {
        panic!("one copy");
    };
    assert_eq!((copy.elements(), copy.run()), (24, 1));
    assert_eq!(graph.copies(x, &[2..2, 0..4]), Ok(Vec::new()));
}

#[test]
fn invalid_expressions_are_rejected() {
    let mut graph = Graph::new();
    let x = graph.source("x", Dtype::F32, &[6, 4]).unwrap();
    let y = graph.source("y", Dtype::F32, &[6, 5]).unwrap();
    let z = graph.source("z", Dtype::BF16, &[6, 4]).unwrap();
    let whole = graph.source("whole", Dtype::I64, &[6]).unwrap();
    let errors = [
        graph.permute(x, &[0, 0]).unwrap_err(),
        graph.slice(x, 2, (0, 1, 1)).unwrap_err(),
        graph.slice(x, 1, (1, 2, 3)).unwrap_err(),
        graph.slice(x, 1, (0, 2, 0)).unwrap_err(),
        graph.slice(x, 0, (u64::MAX, 2, u64::MAX)).unwrap_err(),
        graph.concat(&[x, y], 0).unwrap_err(),
        graph.stack(&[x, z], 1).unwrap_err(),
        graph.concat(&[], 0).unwrap_err(),
        graph.unflatten(x, 0, 4).unwrap_err(),
        graph.flatten(x, 1).unwrap_err(),
        graph.select(x, 1, 4).unwrap_err(),
        graph
            .source("huge", Dtype::F32, &[1 << 40, 1 << 40])
            .unwrap_err(),
        graph.copies(x, &[0..7, 0..4]).unwrap_err(),
        graph.source("x", Dtype::F32, &[24]).unwrap_err(),
        graph.cast(whole, Dtype::F32).unwrap_err(),
        graph.cast(x, Dtype::F8E4M3).unwrap_err(),
        graph
            .compute(&[x, y], &Computation::new(Opaque))
            .unwrap_err(),
        graph.squeeze(x, 1).unwrap_err(),
        graph.pad(x, 0, 5, 0.0).unwrap_err(),
        graph.fill(Dtype::I64, 0.0, &[2]).unwrap_err(),
    ];
    let words: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert_eq!(
        words,
        [
            "permute: [0, 0] is not an order of the dims of shape [6, 4]: name each dim once",
            "slice: dim 2 is out of range for shape [6, 4]",
            "slice: 2 elements from index 1 with step 3 exceed dim 1 of extent 4: the step must be at \
             least 1 and the last element inside",
            "slice: 2 elements from index 0 with step 0 exceed dim 1 of extent 4: the step must be at \
             least 1 and the last element inside",
            "slice: 2 elements from index 18446744073709551615 with step 18446744073709551615 exceed \
             dim 0 of extent 6: the step must be at least 1 and the last element inside",
            "concat along dim 0: operand 0 has shape [6, 4] and operand 1 has [6, 5]",
            "stack: operand 0 is F32 and operand 1 is BF16: cast one of them",
            "concat: no operands: pass at least one",
            "unflatten: 6 elements of dim 0 cannot be split into 4 rows",
            "flatten: dim 2 is out of range for shape [6, 4]",
            "slice: 1 elements from index 4 with step 1 exceed dim 1 of extent 4: the step must be at \
             least 1 and the last element inside",
            "source: a tensor of shape [1099511627776, 1099511627776] has more elements than fit \
             into 63 bits",
            "[0..7, 0..4] is not a region of shape [6, 4]: pass a range inside each dim",
            "`x` is F32 [6, 4] in one place and F32 [24] in another: use a name for one tensor only",
            "cast: cannot convert I64 to F32: operands must be F64, F32, F16, BF16, F8_E4M3, F8_E5M2 or \
             F8_E8M0, results must be one of the first four",
            "cast: cannot convert F32 to F8_E4M3: operands must be F64, F32, F16, BF16, F8_E4M3, F8_E5M2 \
             or F8_E8M0, results must be one of the first four",
            "opaque: it takes 1 operand, not 2",
            "squeeze: dim 1 has 4 elements, not 1",
            "pad: dim 0 has 6 elements, more than the target extent 5",
            "fill: cannot convert I64 to I64: operands must be F64, F32, F16, BF16, F8_E4M3, F8_E5M2 or \
             F8_E8M0, results must be one of the first four",
        ]
    );
}

/// Too many scattered elements are an error instead of a very long list of copies.
#[test]
fn a_fragmented_layout_is_rejected() {
    let mut graph = Graph::new();
    let x = graph.source("x", Dtype::F32, &[1 << 10, 1000]).unwrap();
    let flat = graph.flatten(x, 0).unwrap();
    let torn = graph.slice(flat, 0, (0, 1 << 17, 7)).unwrap();
    let all = 0..1 << 17;
    let error = graph.copies(torn, std::slice::from_ref(&all)).unwrap_err();
    assert!(
        matches!(error, GraphError::Fragmented { op: "flatten", .. }),
        "{error}"
    );
}

/// Equal expressions are deduplicated, and casts to a wider dtype and back cancel.
#[test]
fn equal_expressions_are_stored_once() {
    let mut graph = Graph::new();
    let x = graph.source("x", Dtype::BF16, &[6, 4]).unwrap();
    assert_eq!(graph.source("x", Dtype::BF16, &[6, 4]), Ok(x));
    assert_eq!(graph.transpose(x, 0, 1), graph.permute(x, &[1, 0]));
    assert_ne!(graph.scale(x, 0.0), graph.scale(x, -0.0));

    let wide = graph.cast(x, Dtype::F32).unwrap();
    assert_eq!(graph.cast(wide, Dtype::BF16), Ok(x));
    assert_ne!(graph.cast(wide, Dtype::F16), Ok(x));
    let narrow = graph.cast(wide, Dtype::F16).unwrap();
    assert_ne!(graph.cast(narrow, Dtype::F32), Ok(wide));
}

/// The time to trace a region does not depend on its extents.
#[test]
fn huge_extents_are_traced_quickly() {
    let mut graph = Graph::new();
    let x = graph.source("x", Dtype::F32, &[8, 4]).unwrap();
    let padded = graph.pad(x, 0, 1 << 50, 0.0).unwrap();
    let copies = graph.copies(padded, &[3..1 << 50, 0..4]).unwrap();
    let elements: Vec<u64> = copies.iter().map(ElementCopy::elements).collect();
    assert_eq!(elements, [5 * 4, ((1 << 50) - 8) * 4]);
}

/// Expressions with different shapes are not deduplicated.
#[test]
fn slices_of_different_lengths_differ() {
    let mut graph = Graph::new();
    let x = graph.source("x", Dtype::F32, &[6]).unwrap();
    let lengths = [2, 5, 0, 2].map(|count| graph.slice(x, 0, (0, count, 1)).unwrap());
    assert_eq!(lengths.map(|it| graph.shape(it)[0]), [2, 5, 0, 2]);
    assert_eq!(lengths[0], lengths[3]);
}

/// A view of a source selects the same elements as slices and permutations of it.
#[test]
fn views_equal_slices_and_permutations() {
    let mut graph = Graph::new();
    let matrix = graph.source("matrix", Dtype::F32, &[5, 7]).unwrap();
    let flat = graph.source("flat", Dtype::F32, &[35]).unwrap();

    let whole = graph.view(flat, 0, &[5, 7], &[7, 1]).unwrap();
    let transposed = graph.view(matrix, 0, &[7, 5], &[1, 7]).unwrap();
    let steps = graph.view(matrix, 8, &[2, 3], &[14, 2]).unwrap();
    let unflattened = graph.unflatten(flat, 0, 5).unwrap();
    let other_transposed = graph.transpose(matrix, 0, 1).unwrap();
    let rows = graph.slice(matrix, 0, (1, 2, 2)).unwrap();
    let other_steps = graph.slice(rows, 1, (1, 3, 2)).unwrap();
    for (view, other) in [
        (whole, unflattened),
        (transposed, other_transposed),
        (steps, other_steps),
    ] {
        assert_eq!(graph.shape(view), graph.shape(other));
        let all = |of: Expr| graph.copies_of_all(of).unwrap();
        assert_eq!(all(view), all(other));
    }
}

/// A view neither leaves its source nor visits an element twice.
#[test]
fn views_outside_of_their_source_are_errors() {
    let mut graph = Graph::new();
    let flat = graph.source("flat", Dtype::F32, &[12]).unwrap();
    let permuted = graph.unflatten(flat, 0, 3).unwrap();
    assert!(graph.view(flat, 9, &[0, 5], &[1, 1]).is_ok());
    for (of, offset, shape, strides) in [
        (flat, 0, &[13][..], &[1][..]),
        (flat, 1, &[3, 4], &[4, 1]),
        (flat, 12, &[1], &[1]),
        (flat, 0, &[2, 2], &[1, 1]),
        (flat, 0, &[2], &[0]),
        (flat, 0, &[2], &[1, 1]),
        (flat, u64::MAX, &[2], &[1]),
        (flat, 0, &[u64::MAX, 3], &[u64::MAX, 1]),
        (permuted, 0, &[2], &[1]),
    ] {
        let made = graph.view(of, offset, shape, strides);
        assert!(
            matches!(made, Err(GraphError::View { .. })),
            "{shape:?} {strides:?}"
        );
    }
}

/// A view keeps its source when a graph is imported into one with other sources; a source that
/// becomes several is an error that names it.
#[test]
fn views_are_imported_with_their_source() {
    let mut other = Graph::new();
    let [_, b] = ["a", "b"].map(|name| other.source(name, Dtype::F32, &[6]).unwrap());
    let view = other.view(b, 1, &[2], &[3]).unwrap();

    let mut graph = Graph::new();
    for name in ["x", "y", "stored"] {
        graph.source(name, Dtype::F32, &[6]).unwrap();
    }
    let stored = graph.source("stored", Dtype::F32, &[6]).unwrap();
    let is_b = |name: &str| (name == "b").then_some(stored);
    let made = graph.import(&other, &is_b).unwrap();
    let made = made[view.index()];
    assert_eq!(graph.sources_of(made), ["stored"].into());
    let copies = |graph: &Graph, of| {
        let copies = graph.copies_of_all(of).unwrap().into_iter();
        copies
            .map(|it| (it.source_offset, it.loops))
            .collect::<Vec<_>>()
    };
    assert_eq!(copies(&graph, made), copies(&other, view));

    let [first, second] = [0, 3].map(|at| graph.slice(stored, 0, (at, 3, 1)).unwrap());
    let joined = graph.concat(&[second, first], 0).unwrap();
    let error = graph.import(&other, &|name| (name == "b").then_some(joined));
    let error = error.unwrap_err();
    assert_eq!(
        error,
        GraphError::NoSource {
            name: "b".to_owned()
        }
    );
}
