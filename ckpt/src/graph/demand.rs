//! Demands: the requested elements of an expression, and the destination of each.

use std::ops::Range;

use smallvec::{SmallVec, smallvec};

use super::Short;

/// The maximum number of copies for a region.
pub(super) const MAX_COPIES: usize = 1 << 16;

/// A strided box of an expression's coordinates. The element at `start + sum(i * step)`, with each
/// step along its loop's dim, is copied to `destination + sum(i * stride)`.
#[derive(Clone, Debug)]
pub(super) struct Demand {
    pub(super) destination: u64,
    /// The first coordinate, by dim.
    pub(super) start: Short<u64>,
    pub(super) loops: Short<DemandLoop>,
}

/// The parts of a demand, nearly always one.
pub(super) type Parts = SmallVec<[Demand; 1]>;

/// A loop of a demand. A dim may have several, nested.
#[derive(Clone, Copy, Debug)]
pub(super) struct DemandLoop {
    pub(super) count: u64,
    pub(super) dim: usize,
    /// Distance between iterations along the dim.
    pub(super) step: u64,
    /// Distance between iterations in the destination.
    pub(super) stride: u64,
}

impl DemandLoop {
    /// Distance from the first to the last iteration along the dim.
    pub(super) fn reach(&self) -> u64 {
        (self.count - 1) * self.step
    }
}

/// Distance from the first to the last iteration of nested loops along their dim.
pub(super) fn span(loops: &[DemandLoop]) -> u64 {
    loops.iter().map(DemandLoop::reach).sum()
}

/// The offset along the dim, and in the destination, of this iteration of nested loops; the first
/// loop is innermost.
pub(super) fn nth(loops: &[DemandLoop], mut iteration: u64) -> (u64, u64) {
    let (mut along, mut destination) = (0, 0);
    for it in loops {
        along += iteration % it.count * it.step;
        destination += iteration % it.count * it.stride;
        iteration /= it.count;
    }
    (along, destination)
}

impl Demand {
    /// Converts a dim to coordinates of the operand: sets its start, and multiplies the steps of
    /// its loops by `step`.
    pub(super) fn map_dim(mut self, dim: usize, start: u64, step: u64) -> Demand {
        self.start[dim] = start;
        for dim_loop in self.loops.iter_mut().filter(|it| it.dim == dim) {
            dim_loop.step *= step;
        }
        self
    }

    /// The same demand with each loop's dim renumbered.
    pub(super) fn renumber(mut self, dim: impl Fn(usize) -> usize) -> Demand {
        for dim_loop in &mut self.loops {
            dim_loop.dim = dim(dim_loop.dim);
        }
        self
    }

    /// Splits off a dim. Returns the loops along it, and the demand on the other dims.
    pub(super) fn split_at_dim(&self, dim: usize) -> (Short<DemandLoop>, Demand) {
        let (along, across) = self.loops.iter().copied().partition(|it| it.dim == dim);
        let mut demand =
            Demand { destination: self.destination, start: self.start.clone(), loops: across };
        demand.start.remove(dim);
        (along, demand.renumber(|it| it - usize::from(it > dim)))
    }

    /// The parts whose coordinate in `dim` is in `low..high`.
    pub(super) fn clip(&self, dim: usize, low: u64, high: u64) -> Parts {
        let mut along = (0..).zip(&self.loops).filter(|(_, it)| it.dim == dim);
        match (along.next(), along.next()) {
            (None, _) if (low..high).contains(&self.start[dim]) => smallvec![self.clone()],
            (None, _) => Parts::new(),
            (Some((at, only)), None) => self.clip_loop(at, only, low, high),
            _ => self.clip_loops(dim, low, high),
        }
    }

    /// [`Demand::clip`] for a dim with a single loop `only`, which has index `at`.
    fn clip_loop(&self, at: usize, only: &DemandLoop, low: u64, high: u64) -> Parts {
        let iterations = iterations(self.start[only.dim], only, 0, 0, low..high);
        if iterations.is_empty() {
            return Parts::new();
        }
        let mut part = self.clone();
        part.start[only.dim] += iterations.start * only.step;
        part.destination += iterations.start * only.stride;
        part.loops[at].count = iterations.end - iterations.start;
        smallvec![part]
    }

    fn clip_loops(&self, dim: usize, low: u64, high: u64) -> Parts {
        let (mut along, others): (Short<DemandLoop>, Short<DemandLoop>) =
            self.loops.iter().copied().partition(|it| it.dim == dim);
        along.sort_by_key(|it| std::cmp::Reverse(it.step));
        let mut clip = Clip { demand: self, dim, low, high, others, parts: Parts::new() };
        clip.cut(self.destination, self.start[dim], &along, &[]);
        clip.parts
    }
}

struct Clip<'d> {
    demand: &'d Demand,
    dim: usize,
    low: u64,
    high: u64,
    /// Loops along other dims.
    others: Short<DemandLoop>,
    parts: Parts,
}

impl Clip<'_> {
    /// Adds the parts in range. The loops in `open`, outermost first, may be partly in range; those
    /// in `inside` are entirely in range.
    fn cut(&mut self, destination: u64, start: u64, open: &[DemandLoop], inside: &[DemandLoop]) {
        let last = start + span(open) + span(inside);
        if last < self.low || start >= self.high || self.parts.len() > MAX_COPIES {
            return;
        }
        if start >= self.low && last < self.high {
            let mut part = self.demand.clone();
            part.destination = destination;
            part.start[self.dim] = start;
            part.loops = self.others.iter().chain(open).chain(inside).copied().collect();
            self.parts.push(part);
            return;
        }
        // Partly in range, so at least one open loop is left.
        let [outer, inner @ ..] = open else {
            return;
        };
        let reach = span(inner) + span(inside);
        let (touching, whole) = (
            iterations(start, outer, 0, reach, self.low..self.high),
            iterations(start, outer, reach, 0, self.low..self.high),
        );
        // Visits only the iterations at both ends. Those in between may be too many.
        let whole = match whole.is_empty() {
            true => touching.end..touching.end,
            false => whole,
        };
        for iteration in (touching.start..whole.start).chain(whole.end..touching.end) {
            let (to, from) = (iteration * outer.stride, iteration * outer.step);
            self.cut(destination + to, start + from, inner, inside);
        }
        if !whole.is_empty() {
            let kept = DemandLoop { count: whole.end - whole.start, ..*outer };
            let (to, from) = (whole.start * outer.stride, whole.start * outer.step);
            let inside: Short<DemandLoop> = inside.iter().copied().chain([kept]).collect();
            self.cut(destination + to, start + from, inner, &inside);
        }
    }
}

/// The iterations of a loop whose start is at least `range.start - before`, and whose start plus
/// `after` is below `range.end`.
fn iterations(
    start: u64,
    outer: &DemandLoop,
    after: u64,
    before: u64,
    range: Range<u64>,
) -> Range<u64> {
    let first = range.start.saturating_sub(before).saturating_sub(start);
    let first = first.div_ceil(outer.step).min(outer.count);
    let room = range.end.checked_sub(start + after + 1);
    let end = room.map_or(0, |room| (room / outer.step + 1).min(outer.count));
    first..end.max(first)
}
