//! AdamW through the fused op, with f32 or bf16 state.

use std::ops::Range;

use meshgrad_error::{bail, ensure};
use meshgrad_mesh::RowBox;
use meshgrad_runtime::ops::{self, AdamWOperands, AdamWTable, StepScalars};
use meshgrad_runtime::{DType, Key, Kind, RegionKey, Tensor};

use super::assign::scaled;
use super::optimizer_part::viewed;
use super::slots::{Slot, Slots, zeros};
use super::{
    AdamWConfig, Granularity, Groups, OptimizerPart, OptimizerState, Rounding, UpdateRule,
};
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
    slots: Slots<Kept>,
    batches: Vec<Batch>,
    /// The f32 moments of the parameter that is being updated, if the state is bf16.
    widened: Option<Moments>,
}

/// The state of a part.
struct Kept {
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
    pub fn new(parts: &[OptimizerPart], config: AdamWConfig, groups: &Groups) -> Result<AdamW> {
        AdamW::of(&Vec::from_iter(parts), config, groups)
    }

    pub(super) fn of(
        parts: &[&OptimizerPart],
        config: AdamWConfig,
        groups: &Groups,
    ) -> Result<AdamW> {
        config.ranges().check(NAME)?;
        let slots =
            Slots::new(parts.iter().copied(), groups, config.weight_decay, |part, value| {
                let dtype = state_dtype(part.name(), value.dtype(), config.state_dtype)?;
                Ok(Kept {
                    moments: Moments {
                        exp_avg: zeros(value, dtype)?,
                        exp_avg_sq: zeros(value, dtype)?,
                    },
                    draws: draws(part, value.dtype(), &config)?,
                })
            })?;
        let widened = match config.state_dtype {
            DType::BF16 => Moments::for_largest(parts)?,
            _ => None,
        };
        let batches = batches(&slots, widened.is_some());
        Ok(AdamW { config, slots, batches, widened })
    }
}

impl UpdateRule for AdamW {
    fn name(&self) -> &str {
        NAME
    }

    fn granularity(&self) -> Granularity {
        Granularity::Element
    }

    fn state(&self) -> Vec<OptimizerState> {
        let exp_avg = self.slots.state("exp_avg", |slot| Some(&slot.moments.exp_avg));
        let exp_avg_sq = self.slots.state("exp_avg_sq", |slot| Some(&slot.moments.exp_avg_sq));
        vec![exp_avg, exp_avg_sq]
    }

    fn step(&mut self, gradients: &[Tensor], scalars: StepScalars<'_>) -> Result<()> {
        let params = self.slots.values(gradients)?;
        let slots: Vec<&Slot<Kept>> = self.slots.iter().collect();
        for batch in &mut self.batches {
            let learning_rate = &scaled(scalars.learning_rate, batch.factor)?;
            let mut updates = Vec::with_capacity(batch.members.len());
            for at in &batch.members {
                let moments = slots[*at].state.moments.widened_to(self.widened.as_ref())?;
                let of = [&params[*at], &gradients[*at], &moments.exp_avg, &moments.exp_avg_sq];
                updates.extend(operands(&self.config, slots[*at], of)?);
            }
            if updates.is_empty() {
                continue;
            }
            batch.table.step(&updates, StepScalars { learning_rate, ..scalars })?;
            if let (Some(widened), [at]) = (&self.widened, &batch.members[..]) {
                widened.store_to(&slots[*at].state.moments)?;
            }
        }
        Ok(())
    }
}

/// The dtype of the state of a parameter of dtype `param`.
fn state_dtype(name: &str, param: DType, state: DType) -> Result<DType> {
    match (state, param) {
        (DType::F32, _) => Ok(param.accumulator()),
        (DType::BF16, DType::F32 | DType::BF16) => Ok(state),
        _ => bail!(
            Invalid,
            "{NAME}: state of `{name}` ({param}) cannot be {state}; use f32 or bf16 state with f32 or \
             bf16 parameters"
        ),
    }
}

/// The keys of stochastic rounding, if `part` is rounded so.
///
/// # Errors
/// When the rows are several boxes of the whole parameter, in another order.
fn draws(part: &OptimizerPart, dtype: DType, config: &AdamWConfig) -> Result<Option<Vec<Draw>>> {
    let is_rounded = dtype == DType::BF16 && !part.kept().rows().is_empty();
    if config.rounding != Rounding::Stochastic || !is_rounded {
        return Ok(None);
    }
    // `rounding` keeps these numbers apart from initial values, whose key is the seed and the name
    // alone.
    let key = Key::new(config.seed).fold_name("rounding").fold_name(part.name());
    let draw = |it: RowBox| {
        let mut dims = it.within.iter().zip(&it.shape);
        ensure!(
            dims.all(|(within, extent)| *within == (0..*extent)),
            Invalid,
            "{NAME} cannot round `{}` stochastically, because its sharding divides a dim into several \
             ranges per rank; shard the dim in one range, or round to nearest",
            part.name()
        );
        Ok(Draw { key: part.kept().key_of(&it, key)?, rows: it.rows, shape: it.shape })
    };
    part.kept().boxes().into_iter().map(draw).collect::<Result<_>>().map(Some)
}

/// One batch per learning-rate factor; if `separate`, one per slot.
fn batches(slots: &Slots<Kept>, separate: bool) -> Vec<Batch> {
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
    fn for_largest(parts: &[&OptimizerPart]) -> Result<Option<Moments>> {
        let values = parts.iter().map(|part| part.value());
        let values: Vec<Tensor> = values.collect::<Result<_>>()?;
        let Some(largest) = values.iter().max_by_key(|value| value.elements()) else {
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

    /// The first elements of these flat moments, as many as `like` has and in its shape.
    fn views_like(&self, like: &Moments) -> Result<Moments> {
        let like = &like.exp_avg;
        self.each(|flat| viewed(&flat.slice(0, 0..like.elements())?, like.shape()))
    }

    /// These moments in the dtype of the op: a copy in `widened`, if there is one.
    fn widened_to(&self, widened: Option<&Moments>) -> Result<Moments> {
        let Some(widened) = widened else {
            return Ok(self.clone());
        };
        let wide = widened.views_like(self)?;
        self.copy_to(&wide)?;
        Ok(wide)
    }

    /// Rounds these flat f32 moments, which [`Moments::widened_to`] filled, to `stored`.
    fn store_to(&self, stored: &Moments) -> Result<()> {
        self.views_like(stored)?.copy_to(stored)
    }

    /// into = self, in the dtype of `into`.
    fn copy_to(&self, into: &Moments) -> Result<()> {
        for (from, to) in [(&self.exp_avg, &into.exp_avg), (&self.exp_avg_sq, &into.exp_avg_sq)] {
            ops::copy_into(&ops::cast(from, to.dtype())?, to)?;
        }
        Ok(())
    }
}

/// The operands of a part: the parameter, its gradient and its moments. A part that is rounded
/// stochastically has operands for each draw.
fn operands<'a>(
    config: &AdamWConfig,
    slot: &'a Slot<Kept>,
    tensors: [&Tensor; 4],
) -> Result<Vec<AdamWOperands<'a>>> {
    let AdamWConfig { beta1, beta2, eps, .. } = *config;
    let weight_decay = slot.settings.weight_decay;
    let constants = ops::AdamWConstants { beta1, beta2, eps, weight_decay };
    let of = |[param, gradient, exp_avg, exp_avg_sq]: [Tensor; 4], rounding| AdamWOperands {
        param,
        gradient,
        exp_avg,
        exp_avg_sq,
        constants,
        rounding,
    };
    let Some(draws) = &slot.state.draws else {
        return Ok(vec![of(tensors.map(Tensor::clone), None)]);
    };
    let by_row = slot.part.kept().by_row();
    let of_draw = |draw: &'a Draw| {
        let rows =
            |x: &Tensor| viewed(&viewed(x, &by_row)?.slice(0, draw.rows.clone())?, &draw.shape);
        let [param, gradient, exp_avg, exp_avg_sq] = tensors;
        let tensors = [rows(param)?, rows(gradient)?, rows(exp_avg)?, rows(exp_avg_sq)?];
        Ok(of(tensors, Some(&draw.key)))
    };
    draws.iter().map(of_draw).collect()
}
