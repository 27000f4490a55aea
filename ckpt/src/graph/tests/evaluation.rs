//! The reference evaluation of expressions, element by element.

use std::collections::HashMap;

use super::super::op::Op;
use super::super::*;

/// A dense tensor of numbers.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Dense {
    pub(super) shape: Vec<u64>,
    pub(super) elements: Vec<u64>,
}

impl Dense {
    /// The tensor with the elements `f(coordinate)`.
    pub(super) fn of(shape: &[u64], mut f: impl FnMut(&[u64]) -> u64) -> Dense {
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
        Dense { shape: shape.to_vec(), elements }
    }

    pub(super) fn at(&self, at: &[u64]) -> u64 {
        let index = at.iter().zip(&self.shape).fold(0, |index, (at, extent)| index * extent + at);
        self.elements[index as usize]
    }
}

/// The reference evaluation of expressions, as the bits of their elements. Sources and computed
/// tensors contain small consecutive numbers.
pub(super) struct Evaluation<'g> {
    graph: &'g Graph,
    pub(super) leaves: HashMap<Leaf, Dense>,
    next: u32,
}

impl Evaluation<'_> {
    pub(super) fn new(graph: &Graph) -> Evaluation<'_> {
        Evaluation { graph, leaves: HashMap::new(), next: 0 }
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

    pub(super) fn of(&mut self, expr: Expr) -> Dense {
        let graph = self.graph;
        let shape = graph.shape(expr).to_vec();
        match &graph.node(expr).op {
            Op::Source(id) => self.leaf(Leaf::Source(*id), &shape),
            Op::View { of, offset, strides } => {
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
            Op::Slice { of, dim, start, step } => {
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
            Op::Unflatten { of, .. } | Op::Flatten { of, .. } => {
                Dense { shape, elements: self.of(*of).elements }
            }
        }
    }
}
