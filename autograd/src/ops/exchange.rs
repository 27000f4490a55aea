//! Products with rows that are gathered in chunks, or reduced in chunks.
//!
//! At any time at most two chunks are under way. All ranks start the same chunks in the same order.

use std::ops::Range;
use std::sync::Arc;

use meshgrad_collectives::{Redistribute, current_redistribution};
use meshgrad_mesh::{Chunks, Placement, Region, Sharding};
use meshgrad_runtime::{Pending, RowBlocks, Tensor, ops};

use super::redistribute::back;
use crate::Result;

/// The communication of one layer.
pub(super) struct Exchange {
    redistribution: Arc<dyn Redistribute>,
    rank: usize,
    /// The sharding of the layer's operand.
    pub(super) from: Sharding,
    /// The axes of the placements.
    axes: Vec<String>,
    /// The requested number of chunks.
    count: usize,
}

/// A product with a weight.
#[derive(Clone, Copy)]
pub(super) enum Product {
    /// x w^T.
    Linear,
    /// dy w.
    GradInput,
}

/// A redistribution in chunks, on this rank.
struct Route<'a> {
    ends: [&'a Sharding; 2],
    chunks: Chunks,
    /// What this rank has before and after.
    regions: [Region; 2],
}

/// A tensor whose last chunk may still be under way.
pub(super) enum Reduced {
    Whole(Box<Pending<Tensor>>),
    Chunks(Box<ReducedChunks>),
}

pub(super) struct ReducedChunks {
    rows: RowBlocks,
    /// The chunk under way, and its rows.
    last: Option<(Vec<Range<usize>>, Pending<Tensor>)>,
    to: Sharding,
    rank: usize,
}

impl Exchange {
    /// For `x` and the placements of a redistribution; `None` if there is one chunk, or one rank.
    ///
    /// # Errors
    /// As [`current_redistribution`].
    pub(super) fn new<S: AsRef<str>>(
        x: &Tensor,
        placements: &[(S, Placement)],
        count: usize,
    ) -> Result<Option<Exchange>> {
        let shape = x.sharded_shape();
        let is_split = count > 1 && !placements.is_empty();
        let (Some(from), Some(rank), true) = (x.sharding(), shape.rank(), is_split) else {
            return Ok(None);
        };
        let axes = placements.iter().map(|(axis, _)| axis.as_ref().to_owned());
        Ok(Some(Exchange {
            redistribution: current_redistribution()?,
            rank,
            from: from.clone(),
            axes: axes.collect(),
            count,
        }))
    }

    /// The sharding of [`ops::linear`] of `x` and `w`.
    pub(super) fn product_of(&self, x: &Tensor, w: &Tensor) -> Result<Sharding> {
        Product::Linear.sharding(x, w)
    }

    /// The sharding to which the gradient `dy` of a value with sharding `from` is redistributed.
    pub(super) fn back(&self, dy: &Tensor, from: &Sharding) -> Result<Sharding> {
        back(dy.sharding(), from, &self.axes)
    }

    pub(super) fn redistribute(&self, x: &Tensor, to: &Sharding) -> Result<Tensor> {
        self.redistribution.redistribute(x, to)
    }

    /// `x` with the sharding `to`, and its products with `ws`.
    pub(super) fn gather(
        &self,
        x: &Tensor,
        to: &Sharding,
        ws: &[&Tensor],
        product: Product,
    ) -> Result<(Tensor, Vec<Tensor>)> {
        let from = x.expect_sharding("redistribute")?;
        let Some(route) = self.route([from, to])? else {
            let whole = self.redistribute(x, to)?;
            let products = ws.iter().map(|w| product.whole(&whole, w));
            let products = products.collect::<Result<_>>()?;
            return Ok((whole, products));
        };
        let rows = matrix(x)?;
        let blocks = |columns| RowBlocks::new(x.device(), &route.shape(columns), x.dtype());
        let mut whole = blocks(rows.shape()[1])?;
        let products = ws.iter().map(|w| blocks(product.columns(w)));
        let mut products: Vec<RowBlocks> = products.collect::<Result<_>>()?;

        let start = |chunk| self.start(&route, chunk, selected(&rows, &route.before(chunk))?);
        let mut pending = Some(start(0)?);
        for chunk in 0..route.chunks.len() {
            let next = match chunk + 1 < route.chunks.len() {
                true => Some(start(chunk + 1)?),
                false => None,
            };
            let Some(current) = std::mem::replace(&mut pending, next) else {
                break;
            };
            let part = matrix(&current.wait()?)?;
            for (own, at) in one_after_another(route.after(chunk)) {
                let block = part.slice(0, own)?;
                whole.copy(at.clone(), &block)?;
                for (y, w) in products.iter_mut().zip(ws) {
                    product.write(y, at.clone(), &block, w)?;
                }
            }
        }
        let whole = whole.finish()?.with_sharding(to, self.rank)?;
        let products = products.into_iter().zip(ws).map(|(y, w)| {
            let sharding = product.sharding(&whole, w)?;
            y.finish()?.with_sharding(&sharding, self.rank)
        });
        let products = products.collect::<Result<_>>()?;
        Ok((whole, products))
    }

    /// The gradient of the layer's operand: the sum of dy w over `terms`, redistributed back.
    pub(super) fn grad_input(&self, terms: &[(Tensor, Tensor)]) -> Result<Reduced> {
        let (dy, w) = &terms[0];
        let sum = Product::GradInput.sharding(dy, w)?;
        let to = back(Some(&sum), &self.from.without_partials(), &self.axes)?;
        self.reduce(terms, [&sum, &to], Product::GradInput)
    }

    /// Starts the redistribution of the sum of the products of `terms`.
    pub(super) fn reduce(
        &self,
        terms: &[(Tensor, Tensor)],
        [from, to]: [&Sharding; 2],
        product: Product,
    ) -> Result<Reduced> {
        let is_same = |(x, w): &(Tensor, Tensor)| Ok(product.sharding(x, w)? == *from);
        let are_same: Vec<bool> = terms.iter().map(is_same).collect::<Result<_>>()?;
        let route = self.route([from, to])?;
        let Some(route) = route.filter(|_| are_same.iter().all(|is_same| *is_same)) else {
            let sum = sum(terms.iter().map(|(x, w)| product.whole(x, w)))?;
            let pending = self.redistribution.start(&sum, to)?;
            return Ok(Reduced::Whole(Box::new(pending)));
        };
        let flat = terms.iter().map(|(x, w)| Ok((matrix(x)?, w)));
        let flat: Vec<(Tensor, &Tensor)> = flat.collect::<Result<_>>()?;
        let (device, dtype) = (terms[0].0.device(), terms[0].0.dtype());
        let columns = route.regions[1].extents().last().copied().unwrap_or(1);
        let mut reduced = ReducedChunks {
            rows: RowBlocks::new(device, &route.shape(columns), dtype)?,
            last: None,
            to: to.clone(),
            rank: self.rank,
        };
        for chunk in 0..route.chunks.len() {
            let rows = route.before(chunk);
            let part = sum(flat.iter().map(|(x, w)| product.of_rows(x, w, &rows)))?;
            let started = self.start(&route, chunk, part)?;
            reduced.write_last()?;
            reduced.last = Some((route.after(chunk), started));
        }
        Ok(Reduced::Chunks(Box::new(reduced)))
    }

    /// How a tensor is redistributed in chunks; `None` if it is redistributed whole.
    fn route<'a>(&self, ends: [&'a Sharding; 2]) -> Result<Option<Route<'a>>> {
        let [from, to] = ends;
        let chunks = Chunks::new(from, to, self.count);
        if from == to || chunks.len() == 1 {
            return Ok(None);
        }
        let region = |sharding: &Sharding| {
            let region = sharding.region(self.rank);
            region.unwrap_or_else(|| unreachable!("a tensor's rank is in its mesh"))
        };
        Ok(Some(Route { ends, chunks, regions: [region(from), region(to)] }))
    }

    /// Starts a chunk, of which this rank has `rows` before.
    fn start(&self, route: &Route<'_>, chunk: usize, rows: Tensor) -> Result<Pending<Tensor>> {
        let part = route.chunks.part(chunk, &route.regions[0]);
        let part = ops::reshape(&rows, &part.extents())?;
        self.redistribution.start_chunk(&part, route.ends, &route.chunks, chunk)
    }
}

impl Route<'_> {
    /// The rows of a chunk that this rank has before.
    fn before(&self, chunk: usize) -> Vec<Range<usize>> {
        self.chunks.rows(chunk, &self.regions[0])
    }

    /// The rows of a chunk that this rank has after.
    fn after(&self, chunk: usize) -> Vec<Range<usize>> {
        self.chunks.rows(chunk, &self.regions[1])
    }

    /// The shape of what this rank has after, with another last extent.
    fn shape(&self, columns: usize) -> Vec<usize> {
        let mut shape = self.regions[1].extents();
        if let Some(last) = shape.last_mut() {
            *last = columns;
        }
        shape
    }
}

impl Reduced {
    /// The tensor, after its last chunk.
    pub(super) fn finish(self) -> Result<Tensor> {
        match self {
            Reduced::Whole(pending) => pending.wait(),
            Reduced::Chunks(mut chunks) => {
                chunks.write_last()?;
                chunks.rows.finish()?.with_sharding(&chunks.to, chunks.rank)
            }
        }
    }
}

impl ReducedChunks {
    /// Waits for the chunk under way.
    fn write_last(&mut self) -> Result<()> {
        let Some((at, pending)) = self.last.take() else {
            return Ok(());
        };
        let part = matrix(&pending.wait()?)?;
        for (own, at) in one_after_another(at) {
            self.rows.copy(at, &part.slice(0, own)?)?;
        }
        Ok(())
    }
}

impl Product {
    fn whole(self, x: &Tensor, w: &Tensor) -> Result<Tensor> {
        Ok(match self {
            Product::Linear => ops::linear(x, w)?,
            Product::GradInput => ops::linear_grad_input(x, w)?,
        })
    }

    fn sharding(self, x: &Tensor, w: &Tensor) -> Result<Sharding> {
        let sharding = match self {
            Product::Linear => ops::linear_sharding(x, w)?,
            Product::GradInput => ops::linear_grad_input_sharding(x, w)?,
        };
        sharding.map_or_else(|| x.expect_sharding("redistribute").cloned(), Ok)
    }

    fn columns(self, w: &Tensor) -> usize {
        match self {
            Product::Linear => w.shape()[0],
            Product::GradInput => w.shape()[1],
        }
    }

    /// Writes the product of `x` [rows, ..] to rows `at`.
    fn write(self, y: &mut RowBlocks, at: Range<usize>, x: &Tensor, w: &Tensor) -> Result<()> {
        let _: () = match self {
            Product::Linear => y.linear(at, x, w)?,
            Product::GradInput => y.linear_grad_input(at, x, w)?,
        };
        Ok(())
    }

    /// The product of some rows of `x`, one range after another.
    fn of_rows(self, x: &Tensor, w: &Tensor, rows: &[Range<usize>]) -> Result<Tensor> {
        let count = rows.iter().map(Range::len).sum();
        let shape = [count, self.columns(w)];
        let mut y = RowBlocks::new(x.device(), &shape, x.dtype())?;
        for (at, rows) in one_after_another(rows.to_vec()) {
            self.write(&mut y, at, &x.slice(0, rows)?, w)?;
        }
        y.finish()
    }
}

/// `x` [.., columns] as [rows, columns], without sharding.
fn matrix(x: &Tensor) -> Result<Tensor> {
    let columns = x.extent(-1)?;
    let rows = x.shape()[..x.shape().len() - 1].iter().product();
    ops::reshape(&x.local(), &[rows, columns])
}

/// Some rows of `x`, one range after another.
fn selected(x: &Tensor, rows: &[Range<usize>]) -> Result<Tensor> {
    let blocks = rows.iter().map(|rows| x.slice(0, rows.clone()));
    let blocks: Vec<Tensor> = blocks.collect::<Result<_>>()?;
    Ok(match &blocks[..] {
        [] => x.slice(0, 0..0)?,
        [only] => only.clone(),
        several => ops::concat(&several.iter().collect::<Vec<_>>(), 0)?,
    })
}

/// Each range, after the positions that it has if the ranges are stored one after another.
fn one_after_another(
    ranges: Vec<Range<usize>>,
) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
    let mut end = 0;
    ranges.into_iter().map(move |range| {
        let start = end;
        end += range.len();
        (start..end, range)
    })
}

/// The sum, in order.
fn sum(terms: impl Iterator<Item = Result<Tensor>>) -> Result<Tensor> {
    let mut terms = terms;
    let first = terms.next().unwrap_or_else(|| unreachable!("a gradient has a term"))?;
    terms.try_fold(first, |sum, term| ops::add(&sum, &term?))
}
