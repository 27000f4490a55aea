//! The flat buffer of some parameters, and its division over ranks.

use std::ops::Range;

use meshgrad_autograd::{Param, ParamId};
use meshgrad_runtime::{DType, ShardedShape};

/// Parameters start at multiples of this many elements, so that kernels can load 16 bytes at a time
/// and the tensor memory accelerator can read them.
const ALIGNMENT: usize = 64;

/// Parameters of one dtype, sharded by the same axes, in one flat buffer. Member i of the group
/// keeps the elements `bounds[i]..bounds[i + 1]`, which are whole rows.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) params: Vec<Placed>,
    pub(crate) dtype: DType,
    pub(crate) bounds: Vec<usize>,
    /// This rank's index in the group.
    pub(crate) index: usize,
}

/// A parameter in the flat buffer.
#[derive(Clone, Debug)]
pub(crate) struct Placed {
    pub(crate) id: ParamId,
    pub(crate) name: String,
    pub(crate) shape: ShardedShape,
    /// Its first element.
    pub(crate) start: usize,
}

impl Placed {
    /// Its elements.
    pub(crate) fn range(&self) -> Range<usize> {
        self.start..self.start + self.shape.local().elements()
    }

    pub(crate) fn row_elements(&self) -> usize {
        self.shape.local().last().copied().unwrap_or(1)
    }

    /// The rows of a range of elements of the flat buffer.
    pub(crate) fn rows(&self, of: &Range<usize>) -> Range<usize> {
        let own = intersection(&self.range(), of);
        let row = self.row_elements().max(1);
        (own.start - self.start) / row..(own.end - self.start) / row
    }
}

impl Layout {
    /// Divides `params`, of one dtype, over `members` ranks at ends of rows, or of matrices, as
    /// evenly as they allow.
    pub(crate) fn new(of: &[&Param], whole_matrices: bool, members: usize, index: usize) -> Layout {
        let placed = of.iter().map(|param| Placed {
            id: param.id(),
            name: param.name().to_owned(),
            shape: param.sharded_shape(),
            start: 0,
        });
        let (params, len) = consecutive(placed);
        let dtype = |param: &&Param| param.spec().dtype;
        let mut layout = Layout {
            dtype: of.first().map_or(DType::F32, dtype),
            params,
            bounds: Vec::new(),
            index,
        };
        let elements: usize = layout.params.iter().map(|it| it.range().len()).sum();
        layout.bounds = (0..=members)
            .map(|member| match member == members {
                true => len,
                false => layout.boundary(elements * member / members, whole_matrices),
            })
            .collect();
        layout
    }

    /// The layout of some of the parameters, in which each member keeps the same rows of them.
    pub(crate) fn subset(&self, kept: &[usize], dtype: DType) -> Layout {
        let chosen = kept.iter().map(|at| self.params[*at].clone());
        let (params, len) = consecutive(chosen);
        let bound = |old: &usize| {
            let mut pairs = kept.iter().zip(&params).rev();
            let before = pairs.find(|(at, _)| self.params[**at].start < *old);
            let Some((at, new)) = before else {
                return 0;
            };
            let inside = *old - self.params[*at].start;
            match inside < new.range().len() {
                true => new.start + inside,
                false => new.range().end.next_multiple_of(ALIGNMENT).min(len),
            }
        };
        Layout { bounds: self.bounds.iter().map(bound).collect(), params, dtype, index: self.index }
    }

    /// The end of a row, or of a matrix, that is nearest to element `at` of the parameters without
    /// padding. Padding belongs to the rank of the elements before it.
    fn boundary(&self, at: usize, whole_matrices: bool) -> usize {
        let mut before = 0;
        for placed in &self.params {
            let len = placed.range().len();
            if at - before < len {
                let step = match (whole_matrices, &placed.shape.local()[..]) {
                    (true, [.., rows, columns]) => rows * columns,
                    _ => placed.row_elements(),
                };
                let inside = at - before;
                let (down, up) = (inside / step * step, inside.next_multiple_of(step));
                let nearest = match inside - down <= up - inside {
                    true => down,
                    false => up,
                };
                return match nearest < len {
                    true => placed.start + nearest,
                    false => placed.range().end.next_multiple_of(ALIGNMENT),
                };
            }
            before += len;
        }
        self.params.last().map_or(0, |last| last.range().end.next_multiple_of(ALIGNMENT))
    }

    /// The number of elements of the flat buffer.
    pub(crate) fn len(&self) -> usize {
        self.bounds.last().copied().unwrap_or(0)
    }

    /// The elements of each member.
    pub(crate) fn counts(&self) -> Vec<usize> {
        self.bounds.windows(2).map(|pair| pair[1] - pair[0]).collect()
    }

    /// The elements that this rank keeps.
    pub(crate) fn own(&self) -> Range<usize> {
        self.bounds[self.index]..self.bounds[self.index + 1]
    }

    /// The elements of parameter `at` that each member keeps.
    pub(crate) fn counts_of(&self, at: usize) -> Vec<usize> {
        let range = self.params[at].range();
        let members = self.bounds.windows(2);
        members.map(|pair| intersection(&range, &(pair[0]..pair[1])).len()).collect()
    }

    /// The elements of parameter `at` in this rank's part of the flat buffer.
    pub(crate) fn own_part_of(&self, at: usize) -> Range<usize> {
        let own = self.own();
        let part = intersection(&own, &self.params[at].range());
        part.start - own.start..part.end - own.start
    }
}

/// Gives each parameter its place after the one before, and returns the length of the buffer.
fn consecutive(params: impl Iterator<Item = Placed>) -> (Vec<Placed>, usize) {
    let mut end = 0;
    let placed = params.map(|param| {
        let placed = Placed { start: end, ..param };
        end = placed.range().end.next_multiple_of(ALIGNMENT);
        placed
    });
    let placed = placed.collect();
    (placed, end)
}

/// The elements in both ranges; an empty range inside of `a` if there are none.
pub(crate) fn intersection(a: &Range<usize>, b: &Range<usize>) -> Range<usize> {
    let start = a.start.max(b.start).min(a.end);
    start..a.end.min(b.end).max(start)
}
