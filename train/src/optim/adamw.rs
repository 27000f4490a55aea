//! AdamW through the fused op, with f32 or bf16 state.

use std::ops::Range;

use meshgrad_error::{bail, ensure};
use meshgrad_mesh::RowBox;
use meshgrad_runtime::ops::{self, AdamWOperands, AdamWTable, StepScalars};
use meshgrad_runtime::{DType, Key, Kind, Region, RegionKey, Tensor};

use super::assign::scaled;
use super::part::viewed;
use super::slots::{Due, Slots, pairs, zeros};
use super::{AdamWConfig, Granularity, Groups, Optimizer, Part, Rounding, State};
use crate::Result;

const NAME: &str = "adamw";

/// AdamW with decoupled weight decay (Loshchilov & Hutter 2019). The formula is at
/// [`ops::adamw_step`].
///
/// The state is `exp_avg` and `exp_avg_sq`. bf16 state is widened to f32 for the update, one
/// parameter at a time, and rounded to nearest after it. Changes of `exp_avg_sq` below 2^-9 of its
/// value are then lost, so use a `beta2` of at most 0.99.
pub struct AdamW {
    config: AdamWConfig,
    slots: Slots<Slot>,
    batches: Vec<Batch>,
    /// The f32 moments of the parameter that is being updated, if the state is bf16.
    widened: Option<Moments>,
}

struct Slot {
    moments: Moments,
    /// Of stochastic rounding; `None` if the parameter is rounded to nearest or has no rows here.
    draws: Option<Vec<Draw>>,
}

/// The random key of some rows.
struct Draw {
    rows: Range<usize>,
    /// The shape of the rows in which they are drawn.
    shape: Vec<usize>,
    key: RegionKey,
}

#[derive(Clone)]
struct Moments {
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
}

/// Parts that one call of the op updates, all with one learning-rate factor.
struct Batch {
    factor: f64,
    members: Vec<usize>,
    table: AdamWTable,
}

impl AdamW {
    /// AdamW of `parts` with zero state.
    ///
    /// # Errors
    /// For a constant outside of its range, or a dtype that the state cannot have; when the rows of a
    /// part cannot be rounded stochastically; when memory runs out.
    pub fn new(parts: &[Part], config: AdamWConfig, groups: &Groups) -> Result<AdamW> {
        AdamW::of(&Vec::from_iter(parts), config, groups)
    }

    pub(super) fn of(parts: &[&Part], config: AdamWConfig, groups: &Groups) -> Result<AdamW> {
        config.ranges().check(NAME)?;
        let slots = Slots::new(parts.iter().copied(), groups, config.weight_decay, |part| {
            let dtype = state_dtype(part, config.state_dtype)?;
            Ok(Slot {
                moments: Moments { exp_avg: zeros(part, dtype)?, exp_avg_sq: zeros(part, dtype)? },
                draws: draws(part, &config)?,
            })
        })?;
        let widened = match config.state_dtype {
            DType::BF16 => Moments::for_largest(parts)?,
            _ => None,
        };
        let batches = batches(&slots, widened.is_some());
        Ok(AdamW { config, slots, batches, widened })
    }

    /// [`Optimizer::step`], with one pair per slot.
    pub(super) fn step_pairs(
        &mut self,
        pairs: Vec<(&Part, &Tensor)>,
        scalars: StepScalars<'_>,
    ) -> Result<()> {
        let due = self.slots.due(pairs)?;
        for batch in &mut self.batches {
            let learning_rate = &scaled(scalars.learning_rate, batch.factor)?;
            let scalars = StepScalars { learning_rate, ..scalars };
            let members = batch.members.iter();
            let updates: Vec<Update<'_>> = members
                .map(|at| Update::new(&due[*at], self.widened.as_ref()))
                .collect::<Result<_>>()?;
            let mut drawn = Vec::with_capacity(updates.len());
            updates.iter().try_for_each(|it| it.add_to(&mut drawn))?;
            let operands: Vec<AdamWOperands<'_>> =
                drawn.iter().map(|update| update.operands(&self.config)).collect();
            if operands.is_empty() {
                continue;
            }
            batch.table.step(&operands, scalars)?;
            updates.iter().try_for_each(Update::store)?;
        }
        Ok(())
    }
}

impl Optimizer for AdamW {
    fn name(&self) -> &str {
        NAME
    }

    fn granularity(&self) -> Granularity {
        Granularity::Element
    }

    fn state(&self) -> Vec<State> {
        let exp_avg = self.slots.state("exp_avg", |slot| Some(&slot.moments.exp_avg));
        let exp_avg_sq = self.slots.state("exp_avg_sq", |slot| Some(&slot.moments.exp_avg_sq));
        vec![exp_avg, exp_avg_sq]
    }

    fn step(
        &mut self,
        parts: &[Part],
        gradients: &[Tensor],
        scalars: StepScalars<'_>,
    ) -> Result<()> {
        let pairs = pairs(self.slots.len(), parts, gradients)?;
        self.step_pairs(pairs, scalars)
    }
}

/// The dtype of the state of `part`.
fn state_dtype(part: &Part, state: DType) -> Result<DType> {
    let param = part.value().dtype();
    match (state, param) {
        (DType::F32, _) => Ok(param.accumulator()),
        (DType::BF16, DType::F32 | DType::BF16) => Ok(state),
        _ => bail!(
            Invalid,
            "{NAME}: state of `{}` ({param}) cannot be {state}; use f32 or bf16 state with f32 or bf16 \
             parameters",
            part.name()
        ),
    }
}

/// The keys of stochastic rounding, if `part` is rounded so.
///
/// # Errors
/// When the rows are several boxes of the whole parameter, in another order.
fn draws(part: &Part, config: &AdamWConfig) -> Result<Option<Vec<Draw>>> {
    let is_rounded = part.value().dtype() == DType::BF16 && part.value().elements() > 0;
    if config.rounding != Rounding::Stochastic || !is_rounded {
        return Ok(None);
    }
    // `rounding` keeps these numbers apart from initial values, whose key is the seed and the name
    // alone.
    let key = Key::new(config.seed).fold_name("rounding").fold_name(part.name());
    let first = part.rows().start;
    let draw = |it: &RowBox| {
        let is_whole = it.within.iter().zip(&it.shape);
        ensure!(
            is_whole.clone().all(|(within, extent)| *within == (0..*extent)),
            Invalid,
            "{NAME} cannot round `{}` stochastically, because its sharding divides a dim into several \
             ranges per rank; shard the dim in one range, or round to nearest",
            part.name()
        );
        let mut region = Region::whole(part.global_shape())?;
        for (dim, range) in it.global.iter().enumerate() {
            region = region.slice(dim, range.clone())?;
        }
        Ok(Draw {
            rows: it.rows.start - first..it.rows.end - first,
            shape: it.shape.clone(),
            key: key.within(&region),
        })
    };
    part.boxes().iter().map(draw).collect::<Result<_>>().map(Some)
}

/// One batch per learning-rate factor; if `separate`, one per slot.
fn batches(slots: &Slots<Slot>, separate: bool) -> Vec<Batch> {
    let mut batches: Vec<Batch> = Vec::new();
    for (at, slot) in slots.iter().enumerate() {
        let factor = slot.settings.learning_rate_factor;
        let same = |batch: &&mut Batch| !separate && batch.factor == factor;
        match batches.iter_mut().find(same) {
            Some(batch) => batch.members.push(at),
            None => batches.push(Batch { factor, members: vec![at], table: AdamWTable::default() }),
        }
    }
    batches
}

impl Moments {
    /// Flat f32 moments of the size of the largest of `parts`.
    fn for_largest(parts: &[&Part]) -> Result<Option<Moments>> {
        let largest = parts.iter().max_by_key(|part| part.value().elements());
        let Some(largest) = largest.map(|part| part.value()) else {
            return Ok(None);
        };
        let flat = || {
            let (shape, kind) = ([largest.elements()], Kind::OptimizerState);
            Tensor::zeros(largest.device(), &shape, DType::F32, kind)
        };
        Ok(Some(Moments { exp_avg: flat()?, exp_avg_sq: flat()? }))
    }

    fn each(&self, f: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Moments> {
        Ok(Moments { exp_avg: f(&self.exp_avg)?, exp_avg_sq: f(&self.exp_avg_sq)? })
    }

    /// into = self, in the dtype of `into`.
    fn copy_to(&self, into: &Moments) -> Result<()> {
        for (from, to) in [(&self.exp_avg, &into.exp_avg), (&self.exp_avg_sq, &into.exp_avg_sq)] {
            ops::copy_into(&ops::cast(from, to.dtype())?, to)?;
        }
        Ok(())
    }
}

/// The operands of one part.
#[derive(Clone)]
struct Update<'a> {
    slot: &'a super::slots::Slot<Slot>,
    param: Tensor,
    gradient: Tensor,
    row_elements: usize,
    /// In the dtype of the op.
    moments: Moments,
    draw: Option<&'a RegionKey>,
}

impl<'a> Update<'a> {
    /// Loads bf16 state to `widened`.
    fn new(due: &Due<'a, Slot>, widened: Option<&Moments>) -> Result<Update<'a>> {
        let (slot, stored) = (due.slot, &due.slot.state.moments);
        let moments = match widened {
            None => stored.clone(),
            Some(widened) => {
                let (elements, shape) = (due.part.value().elements(), due.part.value().shape());
                let wide = widened.each(|flat| viewed(&flat.slice(0, 0..elements)?, shape))?;
                stored.copy_to(&wide)?;
                wide
            }
        };
        Ok(Update {
            slot,
            param: due.part.value().clone(),
            gradient: due.gradient.clone(),
            row_elements: due.part.row_elements(),
            moments,
            draw: None,
        })
    }

    /// Adds this update, or one for each draw, to `updates`.
    fn add_to(&self, updates: &mut Vec<Update<'a>>) -> Result<()> {
        let Some(draws) = &self.slot.state.draws else {
            updates.push(self.clone());
            return Ok(());
        };
        for draw in draws {
            let of = |x: &Tensor| {
                let rows = viewed(x, &[x.elements() / self.row_elements, self.row_elements])?;
                viewed(&rows.slice(0, draw.rows.clone())?, &draw.shape)
            };
            updates.push(Update {
                slot: self.slot,
                param: of(&self.param)?,
                gradient: of(&self.gradient)?,
                row_elements: self.row_elements,
                moments: self.moments.each(of)?,
                draw: Some(&draw.key),
            });
        }
        Ok(())
    }

    fn operands(&self, config: &AdamWConfig) -> AdamWOperands<'_> {
        AdamWOperands {
            param: &self.param,
            gradient: &self.gradient,
            exp_avg: &self.moments.exp_avg,
            exp_avg_sq: &self.moments.exp_avg_sq,
            constants: ops::AdamW {
                beta1: config.beta1,
                beta2: config.beta2,
                eps: config.eps,
                weight_decay: self.slot.settings.weight_decay,
            },
            rounding: self.draw,
        }
    }

    /// Rounds the state to bf16, if that is its dtype.
    fn store(&self) -> Result<()> {
        let stored = &self.slot.state.moments;
        match stored.exp_avg.storage_id() == self.moments.exp_avg.storage_id() {
            true => Ok(()),
            false => {
                let shape = stored.exp_avg.shape();
                self.moments.each(|moment| viewed(moment, shape))?.copy_to(stored)
            }
        }
    }
}
