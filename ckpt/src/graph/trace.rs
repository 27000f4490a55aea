//! Tracing: computes the copies for a region of an expression. A demand on an expression becomes
//! demands on its operands, down to the tensors that are read.

use std::ops::Range;

use meshgrad_error::{Result, ensure};
use smallvec::smallvec;

use super::demand::{Demand, DemandLoop, MAX_COPIES, Parts, nth, span};
use super::op::Op;
use super::{ElementCopy, ElementOp, Expr, Graph, Leaf, Loop, Short};

impl Graph {
    /// The copies that produce a region of an expression, row-major and dense. Each element of the
    /// destination is written by exactly one copy. `region` has a range per dim.
    ///
    /// # Errors
    /// For a region outside the expression, and for one that would need more than 65,536 copies.
    pub fn copies(&self, of: Expr, region: &[Range<u64>]) -> Result<Vec<ElementCopy>> {
        let mut copies = Vec::new();
        self.copies_into(of, region, &mut copies)?;
        Ok(copies)
    }

    /// Like [`Graph::copies`], but replaces the content of `copies`.
    pub(crate) fn copies_into(
        &self,
        of: Expr,
        region: &[Range<u64>],
        copies: &mut Vec<ElementCopy>,
    ) -> Result<()> {
        copies.clear();
        let shape = self.shape(of);
        let inside =
            |(range, extent): (&Range<u64>, &u64)| range.start <= range.end && range.end <= *extent;
        ensure!(
            region.len() == shape.len() && region.iter().zip(shape).all(inside),
            Invalid,
            "{region:?} is not a region of shape {shape:?}: pass a range inside each dim"
        );
        let mut tracer = Tracer { graph: self, of, steps: Vec::new(), copies };
        match region.iter().any(Range::is_empty) {
            true => Ok(()),
            false => tracer.trace(of, whole(region)),
        }
    }

    /// The copies that produce a whole expression.
    pub(crate) fn copies_of_all(&self, of: Expr) -> Result<Vec<ElementCopy>> {
        let whole = self.shape(of).iter().map(|extent| 0..*extent);
        self.copies(of, &whole.collect::<Short<_>>())
    }
}

/// The demand for a contiguous region.
fn whole(region: &[Range<u64>]) -> Demand {
    let mut loops = Short::with_capacity(region.len());
    let mut stride = 1;
    for (dim, range) in region.iter().enumerate().rev() {
        let count = range.end - range.start;
        if count > 1 {
            loops.push(DemandLoop { count, dim, step: 1, stride });
        }
        stride *= count;
    }
    Demand { destination: 0, start: region.iter().map(|range| range.start).collect(), loops }
}

struct Tracer<'g> {
    graph: &'g Graph,
    /// The requested expression.
    of: Expr,
    /// The operations on each element, the last one first.
    steps: Vec<ElementOp>,
    copies: &'g mut Vec<ElementCopy>,
}

impl Tracer<'_> {
    fn trace(&mut self, of: Expr, demand: Demand) -> Result<()> {
        let graph = self.graph;
        let node = graph.node(of);
        match &node.op {
            Op::Source(source) => {
                self.read(Leaf::Source(*source), &node.shape, &demand);
                Ok(())
            }
            Op::View { of, offset, strides } => {
                let steps = self.steps.iter().rev().copied().collect();
                let leaf = Leaf::Source(*of);
                self.copies.push(copy(leaf, *offset, strides, &demand, steps));
                Ok(())
            }
            Op::Fill { value, .. } => {
                self.read(Leaf::Fill(*value), &node.shape, &demand);
                Ok(())
            }
            Op::Computed { .. } => {
                self.read(Leaf::Computed(of), &node.shape, &demand);
                Ok(())
            }
            Op::Each { of, step } => {
                self.steps.push(*step);
                let traced = self.trace(*of, demand);
                self.steps.pop();
                traced
            }
            Op::Permute { of, dims } => {
                let mut permuted = demand.clone().renumber(|dim| dims[dim]);
                for (dim, start) in dims.iter().zip(&demand.start) {
                    permuted.start[*dim] = *start;
                }
                self.trace(*of, permuted)
            }
            Op::Slice { of, dim, start, step } => {
                let start = start + step * demand.start[*dim];
                self.trace(*of, demand.map_dim(*dim, start, *step))
            }
            Op::Select { of, dim, index } => {
                let mut demand = demand.renumber(|it| it + usize::from(it >= *dim));
                demand.start.insert(*dim, *index);
                self.trace(*of, demand)
            }
            Op::Concat { of, dim } => {
                let mut low = 0;
                for operand in of {
                    let high = low + graph.shape(*operand)[*dim];
                    for part in self.clip(&demand, *dim, low..high, node.op.name())? {
                        let start = part.start[*dim] - low;
                        self.trace(*operand, part.map_dim(*dim, start, 1))?;
                    }
                    low = high;
                }
                Ok(())
            }
            Op::Stack { of, dim } => {
                let (along, across) = demand.split_at_dim(*dim);
                let indices = along.iter().map(|it| it.count);
                let indices = indices.fold(1, u64::saturating_mul);
                self.check_count(indices, node.op.name())?;
                for iteration in 0..indices {
                    let (index, destination) = nth(&along, iteration);
                    let operand = of[(demand.start[*dim] + index) as usize];
                    let mut part = across.clone();
                    part.destination += destination;
                    self.trace(operand, part)?;
                }
                Ok(())
            }
            Op::Unflatten { of, dim, columns } => {
                let start = demand.start[*dim] * columns + demand.start[dim + 1];
                let mut demand = demand.map_dim(*dim, start, *columns);
                demand.start.remove(dim + 1);
                self.trace(*of, demand.renumber(|it| it - usize::from(it > *dim)))
            }
            Op::Flatten { of, dim, columns } => {
                for part in self.rows(demand, *dim, *columns)? {
                    self.trace(*of, part)?;
                }
                Ok(())
            }
        }
    }

    /// Adds the copy for a demand on a leaf.
    fn read(&mut self, leaf: Leaf, shape: &[u64], demand: &Demand) {
        let steps = self.steps.iter().rev().copied().collect();
        let strides = row_major(shape);
        self.copies.push(copy(leaf, 0, &strides, demand, steps));
    }

    fn clip(
        &self,
        demand: &Demand,
        dim: usize,
        range: Range<u64>,
        op: &'static str,
    ) -> Result<Parts> {
        let parts = demand.clip(dim, range.start, range.end);
        self.check_count(parts.len() as u64, op)?;
        Ok(parts)
    }

    /// Splits a demand on a flattened dim into demands on its rows and columns.
    fn rows(&self, demand: Demand, dim: usize, columns: u64) -> Result<Vec<Demand>> {
        let (mut todo, mut done) = (vec![demand], Vec::new());
        while let Some(demand) = todo.pop() {
            match in_rows(&demand, dim, columns) {
                Some(part) => done.push(part),
                None => todo.extend(at_row_ends(demand, dim, columns)),
            }
            self.check_count((done.len() + todo.len()) as u64, "flatten")?;
        }
        Ok(done)
    }

    fn check_count(&self, more: u64, op: &'static str) -> Result<()> {
        ensure!(
            more.saturating_add(self.copies.len() as u64) <= MAX_COPIES as u64,
            Unsupported,
            "a region of shape {:?} needs more than {MAX_COPIES} copies because of {op}; request \
             regions along its rows, or change the order of the operations",
            self.graph.shape(self.of)
        );
        Ok(())
    }
}

fn row_major(shape: &[u64]) -> Short<u64> {
    let mut strides: Short<u64> = smallvec![1; shape.len()];
    for dim in (1..shape.len()).rev() {
        strides[dim - 1] = strides[dim] * shape[dim];
    }
    strides
}

/// Converts a demand on a strided tensor to a copy.
fn copy(
    leaf: Leaf,
    offset: u64,
    strides: &[u64],
    demand: &Demand,
    steps: Vec<ElementOp>,
) -> ElementCopy {
    let terms = demand.start.iter().zip(strides);
    let start: u64 = terms.map(|(start, stride)| start * stride).sum();
    let offset = offset + start;
    let loops = demand.loops.iter().map(|dim_loop| Loop {
        count: dim_loop.count,
        source_stride: dim_loop.step * strides[dim_loop.dim],
        destination_stride: dim_loop.stride,
    });
    ElementCopy::new(leaf, offset, demand.destination, loops.collect(), steps)
}

/// Converts a demand on a flattened dim to one on rows and columns, if each of its loops stays
/// within a row or advances by whole rows.
fn in_rows(demand: &Demand, dim: usize, columns: u64) -> Option<Demand> {
    let along =
        |dim_loop: &&DemandLoop| dim_loop.dim == dim && !dim_loop.step.is_multiple_of(columns);
    let within: Short<DemandLoop> = demand.loops.iter().filter(along).copied().collect();
    let start = demand.start[dim];
    if start % columns + span(&within) >= columns {
        return None;
    }
    let mut part = demand.clone();
    part.start[dim] = start / columns;
    part.start.insert(dim + 1, start % columns);
    for dim_loop in &mut part.loops {
        match dim_loop.dim == dim {
            true if dim_loop.step % columns == 0 => dim_loop.step /= columns,
            true => dim_loop.dim += 1,
            false => dim_loop.dim += usize::from(dim_loop.dim > dim),
        }
    }
    Some(part)
}

/// Splits a demand on a flattened dim at row boundaries, so that [`in_rows`] accepts the parts.
///
/// Takes the loop with the largest step among those that do not advance by whole rows. If every row
/// has the same iterations, the parts are the end of the first row, whole rows, and the start of
/// the last row. Otherwise the loop is unrolled.
fn at_row_ends(demand: Demand, dim: usize, columns: u64) -> Vec<Demand> {
    let within =
        |dim_loop: &DemandLoop| dim_loop.dim == dim && !dim_loop.step.is_multiple_of(columns);
    let inner = demand.loops.iter().copied().enumerate();
    let inner = inner.filter(|(_, it)| within(it));
    let Some((longest, dim_loop)) = inner.max_by_key(|(_, it)| it.step) else {
        return Vec::new();
    };
    let alone = demand.loops.iter().filter(|it| within(it)).count() == 1;
    let part = |first: u64, instead: &[DemandLoop]| {
        let mut part = demand.clone();
        part.destination += first * dim_loop.stride;
        part.start[dim] += first * dim_loop.step;
        part.loops.remove(longest);
        part.loops.insert_many(longest, instead.iter().copied());
        part
    };
    if !columns.is_multiple_of(dim_loop.step) || !alone {
        let iterations = (0..dim_loop.count).take(MAX_COPIES + 1); // more is an error anyway
        return iterations.map(|iteration| part(iteration, &[])).collect();
    }

    let iterations = |count: u64| DemandLoop { count, ..dim_loop };
    let a_row = columns / dim_loop.step;
    let phase = demand.start[dim] % columns;
    let in_first = (columns - phase).div_ceil(dim_loop.step);
    let head = if in_first == a_row { 0 } else { in_first.min(dim_loop.count) };
    let rows = (dim_loop.count - head) / a_row;
    let tail = dim_loop.count - head - rows * a_row;
    let over_rows = DemandLoop { count: rows, dim, step: columns, stride: a_row * dim_loop.stride };
    let mut parts = Vec::with_capacity(3);
    if head > 0 {
        parts.push(part(0, &[iterations(head)]));
    }
    if rows > 0 {
        parts.push(part(head, &[over_rows, iterations(a_row)]));
    }
    if tail > 0 {
        parts.push(part(head + rows * a_row, &[iterations(tail)]));
    }
    parts
}
