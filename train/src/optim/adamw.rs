//! AdamW through the fused op, with f32 or bf16 state.

use meshgrad_runtime::ops::{self, AdamWOperands, AdamWTable, StepScalars};
use meshgrad_runtime::{DType, Key, Kind, RegionKey, Tensor};

use super::assign::scaled;
use super::part::viewed;
use super::slots::{Due, Slots, pairs, zeros};
use super::{AdamWConfig, Granularity, Groups, OptimError, Optimizer, Part, Rounding, State};
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
    /// The random key of stochastic rounding.
    key: Option<RegionKey>,
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
    /// [`OptimError::Constant`] for a constant outside of its range; [`OptimError::StateDType`];
    /// when memory runs out.
    pub fn new(parts: &[Part], config: AdamWConfig, groups: &Groups) -> Result<AdamW> {
        AdamW::of(&Vec::from_iter(parts), config, groups)
    }

    pub(super) fn of(parts: &[&Part], config: AdamWConfig, groups: &Groups) -> Result<AdamW> {
        config.ranges().check(NAME)?;
        let slots = Slots::new(parts.iter().copied(), groups, config.weight_decay, |part| {
            let dtype = state_dtype(part, config.state_dtype)?;
            Ok(Slot {
                moments: Moments {
                    exp_avg: zeros(part, dtype)?,
                    exp_avg_sq: zeros(part, dtype)?,
                },
                key: rounding_key(part, &config)?,
            })
        })?;
        let widened = match config.state_dtype {
            DType::BF16 => Moments::for_largest(parts)?,
            _ => None,
        };
        let batches = batches(&slots, widened.is_some());
        Ok(AdamW {
            config,
            slots,
            batches,
            widened,
        })
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
            let scalars = StepScalars {
                learning_rate,
                ..scalars
            };
            let members = batch.members.iter();
            let updates: Vec<Update<'_>> = members
                .map(|at| Update::new(&due[*at], self.widened.as_ref()))
                .collect::<Result<_>>()?;
            let operands: Vec<AdamWOperands<'_>> = updates
                .iter()
                .map(|update| update.operands(&self.config))
                .collect();
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
        let exp_avg = self
            .slots
            .state("exp_avg", |slot| Some(&slot.moments.exp_avg));
        let exp_avg_sq = self
            .slots
            .state("exp_avg_sq", |slot| Some(&slot.moments.exp_avg_sq));
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
fn state_dtype(part: &Part, state: DType) -> Result<DType, OptimError> {
    let param = part.value().dtype();
    match (state, param) {
        (DType::F32, _) => Ok(param.accumulator()),
        (DType::BF16, DType::F32 | DType::BF16) => Ok(state),
        _ => Err(OptimError::StateDType {
            optimizer: NAME,
            name: part.name().to_owned(),
            param,
            state,
        }),
    }
}

fn rounding_key(part: &Part, config: &AdamWConfig) -> Result<Option<RegionKey>> {
    match (config.rounding, part.value().dtype()) {
        (Rounding::Stochastic, DType::BF16) => {
            // `rounding` keeps these numbers apart from initial values, whose key is the seed and
            // the name alone.
            let key = Key::new(config.seed).fold_name("rounding");
            Ok(Some(key.fold_name(part.name()).within(&part.region()?)))
        }
        _ => Ok(None),
    }
}

/// One batch per learning-rate factor; if `separate`, one per slot.
fn batches(slots: &Slots<Slot>, separate: bool) -> Vec<Batch> {
    let mut batches: Vec<Batch> = Vec::new();
    for (at, slot) in slots.iter().enumerate() {
        let factor = slot.settings.learning_rate_factor;
        let same = |batch: &&mut Batch| !separate && batch.factor == factor;
        match batches.iter_mut().find(same) {
            Some(batch) => batch.members.push(at),
            None => batches.push(Batch {
                factor,
                members: vec![at],
                table: AdamWTable::default(),
            }),
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
        Ok(Some(Moments {
            exp_avg: flat()?,
            exp_avg_sq: flat()?,
        }))
    }

    fn each(&self, f: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Moments> {
        Ok(Moments {
            exp_avg: f(&self.exp_avg)?,
            exp_avg_sq: f(&self.exp_avg_sq)?,
        })
    }

    /// into = self, in the dtype of `into`.
    fn copy_to(&self, into: &Moments) -> Result<()> {
        for (from, to) in [
            (&self.exp_avg, &into.exp_avg),
            (&self.exp_avg_sq, &into.exp_avg_sq),
        ] {
            ops::copy_into(&ops::cast(from, to.dtype())?, to)?;
        }
        Ok(())
    }
}

/// The operands of one part.
struct Update<'a> {
    slot: &'a super::slots::Slot<Slot>,
    param: Tensor,
    gradient: Tensor,
    /// In the dtype of the op.
    moments: Moments,
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
        let update = Update {
            slot,
            param: due.part.value().clone(),
            gradient: due.gradient.clone(),
            moments,
        };
        match slot.state.key {
            None => Ok(update),
            // The key's region has this shape.
            Some(_) => update.viewed(&due.part.row_shape()),
        }
    }

    fn viewed(self, shape: &[usize]) -> Result<Update<'a>> {
        Ok(Update {
            slot: self.slot,
            param: viewed(&self.param, shape)?,
            gradient: viewed(&self.gradient, shape)?,
            moments: self.moments.each(|moment| viewed(moment, shape))?,
        })
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
            rounding: self.slot.state.key.as_ref(),
        }
    }

    /// Rounds the state to bf16, if that is its dtype.
    fn store(&self) -> Result<()> {
        let stored = &self.slot.state.moments;
        match stored.exp_avg.storage_id() == self.moments.exp_avg.storage_id() {
            true => Ok(()),
            false => {
                let shape = stored.exp_avg.shape();
                self.moments
                    .each(|moment| viewed(moment, shape))?
                    .copy_to(stored)
            }
        }
    }
}
