//! The gradients of a unit: whole while a backward pass adds to them, then reduced to the rows that
//! this rank keeps.

use std::ops::Range;
use std::sync::Arc;

use meshgrad_autograd::{HomeGradients, ParamId};
use meshgrad_collectives::{Collectives, Communicator, Reduction};
use meshgrad_error::{ensure, error};
use meshgrad_runtime::{
    Accumulator, DType, Device, Kind, Pending, Result, Shape, Tensor, UninitTensor, ops,
};

use crate::layout::Layout;
use crate::order::{Gathers, Order};
use crate::partials::sum_axes;
use crate::unit_ranks::{Flat, MeshRanks, UnitRanks};

/// The gradients of some parameters of a unit.
pub(crate) struct Gradients {
    unit: Arc<UnitRanks>,
    gathered: Arc<dyn Gathers>,
    order: Arc<Order>,
    /// The buffer of each parameter, and its position there.
    places: Vec<(usize, usize)>,
    buffers: Vec<Buffer>,
}

impl Gradients {
    pub(crate) fn new(
        unit: Arc<UnitRanks>,
        gathered: Arc<dyn Gathers>,
        order: Arc<Order>,
        params: &[ParamId],
    ) -> Gradients {
        let mut places = vec![(0, 0); params.len()];
        let mut buffers = Vec::new();
        for Flat { layout, ranks } in &unit.flats {
            let position = |at: &usize| {
                let id = layout.params[*at].id;
                params.iter().position(|param| *param == id)
            };
            let kept: Vec<usize> =
                (0..layout.params.len()).filter(|at| position(at).is_some()).collect();
            if kept.is_empty() {
                continue;
            }
            for (new, at) in kept.iter().enumerate() {
                if let Some(position) = position(at) {
                    places[position] = (buffers.len(), new);
                }
            }
            let layout = layout.subset(&kept, layout.dtype.accumulator());
            buffers.push(Buffer::new(layout, ranks.clone()));
        }
        Gradients { unit, gathered, order, places, buffers }
    }
}

impl HomeGradients for Gradients {
    fn buffer(&mut self, at: usize) -> Result<Tensor> {
        let (buffer, at) = self.places[at];
        let buffer = &mut self.buffers[buffer];
        let (elements, dtype) = (buffer.layout.len(), buffer.layout.dtype);
        let whole = allocated(&mut buffer.whole, &self.unit.all.device, elements, dtype)?;
        let placed = &buffer.layout.params[at];
        ops::reshape(&whole.slice(0, placed.range())?, placed.shape.local())
    }

    fn reduces_each_pass(&self) -> bool {
        self.unit.strategy.reduces_each_pass
    }

    fn reduce(&mut self, whole: Vec<Option<Tensor>>, is_last: bool) -> Result<()> {
        for (position, gradient) in whole.iter().enumerate() {
            let (buffer, at) = self.places[position];
            match gradient {
                Some(gradient) => {
                    let buffer = &mut self.buffers[buffer];
                    buffer.others[at] = buffer.other_partials(at, gradient)?;
                }
                None => ops::fill_into(&self.buffer(position)?, 0.0)?,
            }
        }
        self.gathered.end_use();
        self.buffers.iter_mut().try_for_each(|buffer| buffer.reduce(is_last))
    }

    fn end_pass(&mut self) {
        self.order.end_pass();
    }

    fn advance(&mut self) -> Result<()> {
        self.buffers.iter_mut().try_for_each(Buffer::advance)
    }

    fn finish(&mut self) -> Result<Vec<Tensor>> {
        for buffer in &mut self.buffers {
            buffer.finish()?;
        }
        let parts = self.places.iter();
        parts.map(|(buffer, at)| self.buffers[*buffer].part(*at)).collect()
    }

    fn clear(&mut self) {
        self.buffers.iter_mut().for_each(Buffer::clear);
    }

    fn buffers(&self) -> Vec<Tensor> {
        let buffers = self.buffers.iter();
        let kept = buffers.flat_map(|buffer| [&buffer.whole, &buffer.sum]);
        kept.flatten().cloned().collect()
    }
}

/// The gradients of one flat buffer.
struct Buffer {
    layout: Layout,
    ranks: Arc<MeshRanks>,
    /// All rows, while a pass adds to them.
    whole: Option<Tensor>,
    /// The rows that this rank keeps, over the passes.
    sum: Option<Tensor>,
    /// Whether `sum` has a gradient.
    is_filled: bool,
    scattered: Option<Scattered>,
    /// The sum over the replicas.
    replicas: Option<Pending<Tensor>>,
    /// What was summed over the replicas before a further pass.
    earlier: Option<Tensor>,
    /// Whether no further pass is expected, so that the replicas can be reduced.
    is_last: bool,
    /// By parameter: other axes along which its gradient is a partial sum.
    others: Vec<Vec<String>>,
}

/// A reduction over the ranks of the rows.
struct Scattered {
    part: Pending<Tensor>,
    /// Whether it is written to `sum`, and not to be added to it.
    is_written: bool,
    /// What is reduced. It is freed at a point of the program, and not when other ranks are ready,
    /// so that the peak of memory is the same in each run.
    whole: Tensor,
}

impl Buffer {
    fn new(layout: Layout, ranks: Arc<MeshRanks>) -> Buffer {
        Buffer {
            others: vec![Vec::new(); layout.params.len()],
            layout,
            ranks,
            whole: None,
            sum: None,
            is_filled: false,
            scattered: None,
            replicas: None,
            earlier: None,
            is_last: false,
        }
    }

    /// The axes besides those of the strategy along which the gradient of parameter `at` is a partial
    /// sum.
    ///
    /// # Errors
    /// If the ranks along the strategy's axes do not have partial sums.
    fn other_partials(&self, at: usize, gradient: &Tensor) -> Result<Vec<String>> {
        let Some(sharding) = gradient.sharding() else {
            return Ok(Vec::new());
        };
        let mut sums = sum_axes(sharding);
        for axis in self.ranks.strategy.axes() {
            ensure!(
                sharding.mesh().size(axis)? == 1 || sums.contains(axis),
                Invalid,
                "the gradient of `{}` is {sharding}, but its home sums it over axis `{axis}`: shard \
                 the batch over that axis, or leave it out of the home",
                self.layout.params[at].name
            );
        }
        sums.retain(|axis| self.ranks.strategy.axes().all(|own| own != axis));
        Ok(sums)
    }

    /// Starts to reduce `whole` to the rows of each rank.
    fn reduce(&mut self, is_last: bool) -> Result<()> {
        self.collect()?;
        self.set_aside()?;
        self.is_last = is_last;
        let Some(whole) = self.whole.take() else {
            return Ok(());
        };
        if self.ranks.shard.size() == 1 {
            return match (&self.sum, self.is_filled) {
                (Some(sum), true) => add(&whole, sum),
                _ => {
                    (self.sum, self.is_filled) = (Some(whole), true);
                    Ok(())
                }
            };
        }
        let dtype = self.ranks.strategy.reduction.unwrap_or(self.layout.dtype);
        let (whole, counts) = (ops::cast(&whole, dtype)?, self.layout.counts());
        let sum = self.sum()?;
        let is_written = !self.is_filled && dtype == self.layout.dtype;
        let ranks = &self.ranks.shard;
        let part = match is_written {
            true => ranks.reduce_scatter_rows_into(&whole, &counts, Reduction::Sum, &sum)?,
            false => ranks.reduce_scatter_rows(&whole, &counts, Reduction::Sum)?,
        };
        self.scattered = Some(Scattered { part, is_written, whole });
        Ok(())
    }

    fn sum(&mut self) -> Result<Tensor> {
        let (elements, dtype) = (self.layout.own().len(), self.layout.dtype);
        allocated(&mut self.sum, &self.ranks.groups.device, elements, dtype)
    }

    /// Waits for the reduction over the ranks of the rows.
    fn collect(&mut self) -> Result<()> {
        let Some(scattered) = self.scattered.take() else {
            return Ok(());
        };
        let part = scattered.part.wait()?;
        drop(scattered.whole);
        if let Some(sum) = self.sum.as_ref().filter(|_| !scattered.is_written) {
            match self.is_filled {
                true => add(&part, sum)?,
                false => ops::copy_into(&ops::cast(&part, sum.dtype())?, sum)?,
            }
        }
        self.is_filled = true;
        Ok(())
    }

    /// After the last pass, starts the reduction over the replicas.
    fn advance(&mut self) -> Result<()> {
        self.collect()?;
        let (true, false, Some(sum)) = (self.is_last, self.replicas.is_some(), &self.sum) else {
            return Ok(());
        };
        let replicas = self.ranks.groups.along(&self.ranks.strategy.replicate)?;
        if replicas.size() > 1 && self.is_filled {
            self.replicas = Some(replicas.all_reduce_in_place(sum, Reduction::Sum)?);
        }
        Ok(())
    }

    /// Sets aside what was summed over the replicas, because a pass follows that was not expected. Its
    /// gradient is summed over them by itself.
    fn set_aside(&mut self) -> Result<()> {
        let Some(replicas) = self.replicas.take() else {
            return Ok(());
        };
        replicas.wait()?;
        self.is_filled = false;
        match (self.sum.take(), &self.earlier) {
            (Some(sum), Some(earlier)) => add(&sum, earlier),
            (sum, _) => {
                self.earlier = sum;
                Ok(())
            }
        }
    }

    fn finish(&mut self) -> Result<()> {
        self.is_last = true;
        self.advance()?;
        if let Some(replicas) = self.replicas.take() {
            replicas.wait()?;
        }
        let sum = self.sum()?;
        if let Some(earlier) = self.earlier.take() {
            add(&earlier, &sum)?;
        }
        match self.is_filled {
            true => self.sum_other_partials(&sum)?,
            false => ops::fill_into(&sum, 0.0)?,
        }
        self.is_filled = true;
        if let Some(stages) = &self.ranks.stages {
            stages.all_reduce_in_place(&sum, Reduction::Sum)?.wait()?;
        }
        Ok(())
    }

    fn sum_other_partials(&self, sum: &Tensor) -> Result<()> {
        for (axes, at) in self.runs() {
            let [first, last] = [at.start, at.end - 1].map(|at| self.layout.own_part_of(at));
            let part = sum.slice(0, first.start..last.end)?;
            let group = self.ranks.groups.along(&axes)?;
            group.all_reduce_in_place(&part, Reduction::Sum)?.wait()?;
        }
        Ok(())
    }

    /// Neighbouring parameters with partial sums over the same other axes.
    fn runs(&self) -> Vec<(Vec<String>, Range<usize>)> {
        let mut runs: Vec<(Vec<String>, Range<usize>)> = Vec::new();
        for (at, axes) in self.others.iter().enumerate() {
            match runs.last_mut() {
                Some((last, range)) if last == axes => range.end = at + 1,
                _ => runs.push((axes.clone(), at..at + 1)),
            }
        }
        runs.retain(|(axes, _)| !axes.is_empty());
        runs
    }

    /// The gradient of parameter `at`: [rows, elements of a row].
    fn part(&self, at: usize) -> Result<Tensor> {
        let placed = &self.layout.params[at];
        let rows = placed.rows(&self.layout.own()).len();
        let sum = self.sum.as_ref().ok_or_else(|| {
            error!(Invalid, "home: the gradient of `{}` is not reduced", placed.name)
        })?;
        let part = sum.slice(0, self.layout.own_part_of(at))?;
        ops::reshape(&part, &[rows, placed.row_elements()])
    }

    fn clear(&mut self) {
        (self.scattered, self.replicas, self.earlier) = (None, None, None);
        (self.is_filled, self.is_last) = (false, false);
        if self.ranks.shard.size() == 1 {
            // The next pass adds to the same memory.
            self.whole = self.sum.take().or_else(|| self.whole.take());
        }
    }
}

/// The buffer; if there is none, a new one, whose values are undefined.
fn allocated(
    buffer: &mut Option<Tensor>,
    device: &Device,
    elements: usize,
    dtype: DType,
) -> Result<Tensor> {
    if let Some(buffer) = buffer {
        return Ok(buffer.clone());
    }
    let (shape, kind) = (Shape::new(&[elements])?, Kind::Gradient);
    let new = UninitTensor::with_kind(device, shape, dtype, kind)?.finish();
    Ok(buffer.insert(new).clone())
}

/// sum = sum + x
fn add(x: &Tensor, sum: &Tensor) -> Result<()> {
    let mut sum = Accumulator::over(sum.clone())?;
    sum.filled();
    ops::add_into(&ops::cast(x, sum.buffer().dtype())?, &mut sum)
}
