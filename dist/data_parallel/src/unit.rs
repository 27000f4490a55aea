//! The values of a unit: the rows that this rank keeps, and gathered ones.

use std::collections::HashMap;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use meshgrad_autograd::{
    self as autograd, GatheredStorage, HomeGradients, HomeUnit, KeptRows, ParamId, Regather,
};
use meshgrad_collectives::{Collectives, Reduction};
use meshgrad_error::{bail, error};
use meshgrad_runtime::{DType, Error, Kind, Pending, Result, Tensor, ops};

use crate::gradients::Gradients;
use crate::order::{Gathers, Order};
use crate::strategy::Reshard;
use crate::unit_ranks::{Flat, UnitRanks};

/// The parameters of a unit on one rank.
pub(crate) struct Unit {
    id: u64,
    ranks: Arc<UnitRanks>,
    /// The elements that this rank keeps, by flat buffer.
    parts: Vec<Tensor>,
    order: Arc<Order>,
    number: usize,
    gathered: Mutex<Gathered>,
    own: Weak<Unit>,
}

/// What is gathered. Whether a rank gathers depends only on calls that all ranks make, and not on
/// its own rows, of which it may have none.
struct Gathered {
    /// The dtype of `whole`; `None` before the first use.
    dtype: Option<DType>,
    /// The version of this rank's rows at their first use since the unit was freed.
    version: Option<u64>,
    whole: Whole,
    /// Parameters in another dtype than `whole`, by flat buffer, position and dtype.
    single: HashMap<(usize, usize, DType), Storage>,
}

enum Whole {
    Freed,
    Pending(Vec<Gather>),
    /// The flat buffers.
    Here(Vec<Storage>),
}

/// A gather of a flat buffer that has started.
struct Gather {
    /// This rank's elements. They are freed at a point of the program, and not when other ranks are
    /// ready, so that the peak of memory is the same in each run.
    sent: Tensor,
    whole: Pending<Tensor>,
}

impl Gather {
    fn wait(self) -> Result<Tensor> {
        let whole = self.whole.wait();
        drop(self.sent);
        whole
    }
}

/// A gathered buffer.
struct Storage {
    /// `None` for a buffer that is not gathered but kept. Dropped before `tensor`, because another
    /// storage can then have its address.
    _saved_as_gathered: Option<(GatheredStorage, Arc<dyn Regather>)>,
    tensor: Tensor,
}

impl Unit {
    pub(crate) fn new(ranks: UnitRanks, order: &Arc<Order>) -> Result<Arc<Unit>> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let zeros = |Flat { layout, .. }: &Flat| {
            let shape = [layout.own().len()];
            Tensor::zeros(&ranks.all.device, &shape, layout.dtype, Kind::Parameter)
        };
        let parts = ranks.flats.iter().map(zeros).collect::<Result<Vec<Tensor>>>()?;
        let gathered = Gathered {
            dtype: ranks.strategy.compute,
            version: None,
            whole: Whole::Freed,
            single: HashMap::new(),
        };
        Ok(Arc::new_cyclic(|own: &Weak<Unit>| Unit {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            ranks: Arc::new(ranks),
            parts,
            number: order.add(own.clone()),
            order: order.clone(),
            gathered: Mutex::new(gathered),
            own: own.clone(),
        }))
    }

    /// The home of parameter `at` of a flat buffer.
    pub(crate) fn home_of(
        self: &Arc<Unit>,
        flat: usize,
        at: usize,
        is_first_copy: bool,
    ) -> Result<ParamHome> {
        let of = &self.ranks.flats[flat].layout;
        let placed = &of.params[at];
        let kept = KeptRows::new(placed.shape.clone(), placed.rows(&of.own()), is_first_copy)?;
        let value = self.parts[flat].slice(0, of.own_part_of(at))?;
        Ok(ParamHome {
            value: ops::reshape(&value, &kept.by_row())?,
            kept,
            unit: self.clone(),
            flat,
            at,
        })
    }

    fn start_in(&self, gathered: &mut Gathered) -> Result<()> {
        let (Some(dtype), Whole::Freed) = (gathered.dtype, &gathered.whole) else {
            return Ok(());
        };
        let starts = self.ranks.flats.iter().zip(&self.parts);
        let pending = starts.map(|(flat, part)| {
            let sent = ops::cast(part, dtype)?;
            let whole = flat.all_gather(&sent, &flat.layout.counts())?;
            Ok(Gather { sent, whole })
        });
        gathered.whole = Whole::Pending(pending.collect::<Result<_>>()?);
        Ok(())
    }

    /// A flat buffer, gathered.
    fn flat(&self, flat: usize) -> Result<Tensor> {
        self.order.enter(self.number)?;
        let mut gathered = self.current()?;
        self.start_in(&mut gathered)?;
        if let Whole::Pending(pending) = &mut gathered.whole {
            let pending = mem::take(pending);
            gathered.whole = Whole::Freed;
            let storages = pending.into_iter().enumerate();
            let storages = storages.map(|(flat, gather)| {
                let again = |unit| FlatAgain { unit, flat };
                Ok(self.storage(gather.wait()?, again))
            });
            let storages: Vec<Storage> = storages.collect::<Result<_>>()?;
            gathered.whole = Whole::Here(storages);
        }
        match &gathered.whole {
            Whole::Here(storages) => Ok(storages[flat].tensor.clone()),
            // Without a dtype, nothing is gathered.
            _ => Err(gone()),
        }
    }

    /// Parameter `at` of a flat buffer in a dtype that the unit is not gathered in: flat.
    fn single(&self, flat: usize, at: usize, dtype: DType) -> Result<Tensor> {
        self.order.enter(self.number)?;
        let key = (flat, at, dtype);
        let mut gathered = self.current()?;
        if let Some(single) = gathered.single.get(&key) {
            return Ok(single.tensor.clone());
        }
        let of = &self.ranks.flats[flat];
        let part = self.parts[flat].slice(0, of.layout.own_part_of(at))?;
        let part = ops::cast(&part, dtype)?;
        let whole = of.all_gather(&part, &of.layout.counts_of(at))?.wait()?;
        let again = |unit| SingleAgain { unit, key };
        let storage = self.storage(whole.clone(), again);
        gathered.single.insert(key, storage);
        Ok(whole)
    }

    fn storage<R: Regather + 'static>(
        &self,
        tensor: Tensor,
        again: impl FnOnce(Weak<Unit>) -> R,
    ) -> Storage {
        // A rank that keeps everything computes with its own values.
        let is_kept = tensor.kind() != Kind::Value;
        let registered = (!is_kept).then(|| {
            let again: Arc<dyn Regather> = Arc::new(again(self.own.clone()));
            (GatheredStorage::new(&tensor, &again), again)
        });
        Storage { tensor, _saved_as_gathered: registered }
    }

    /// What is gathered, of the rows as they are now.
    fn current(&self) -> Result<MutexGuard<'_, Gathered>> {
        let (mut gathered, now) = (self.gathered(), self.version());
        if *gathered.version.get_or_insert(now) == now {
            return Ok(gathered);
        }
        let mut params = self.ranks.flats.iter().flat_map(|flat| &flat.layout.params);
        let name = params.next().map_or("", |first| first.name.as_str());
        bail!(
            Invalid,
            "the unit of `{name}` is gathered, and its rows were written since; call \
             `Param::rows_written` for parameters whose rows you write, on all ranks"
        )
    }

    fn version(&self) -> u64 {
        self.parts.iter().map(Tensor::version).sum()
    }

    fn gathered(&self) -> MutexGuard<'_, Gathered> {
        self.gathered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Flat {
    #[track_caller]
    fn all_gather(&self, part: &Tensor, counts: &[usize]) -> Result<Pending<Tensor>> {
        match self.ranks.shard.size() {
            1 => {
                let part = part.clone();
                Ok(Pending::by_host(move || Ok(part)))
            }
            _ => self.ranks.shard.all_gather_rows(part, counts),
        }
    }
}

impl Gathers for Unit {
    fn start(&self) -> Result<()> {
        self.start_in(&mut *self.current()?)
    }

    fn leave(&self) {
        if self.ranks.strategy.reshard == Reshard::AfterForward {
            self.free();
        }
    }

    /// Frees gathered values, and always those that were not used.
    fn end_use(&self) {
        let is_pending = matches!(self.gathered().whole, Whole::Pending(_));
        if is_pending || self.ranks.strategy.reshard != Reshard::AfterStep {
            self.free();
        }
    }
}

impl HomeUnit for Unit {
    fn id(&self) -> u64 {
        self.id
    }

    fn gradients(&self, params: &[ParamId]) -> Result<Box<dyn HomeGradients>> {
        let unit = self.own.upgrade().ok_or_else(gone)?;
        let ranks = unit.ranks.clone();
        Ok(Box::new(Gradients::new(ranks, unit, self.order.clone(), params)))
    }

    fn free(&self) {
        let mut gathered = self.gathered();
        gathered.version = None;
        if let Whole::Pending(pending) = mem::replace(&mut gathered.whole, Whole::Freed) {
            // Until a gather is complete, the rows that it reads cannot be written. If it fails, so
            // do the collectives that follow.
            pending.into_iter().for_each(|gather| drop(gather.wait()));
        }
        gathered.single.clear();
    }

    fn end_pass(&self) {
        self.order.end_pass();
    }

    fn sum(&self, x: &Tensor) -> Result<Tensor> {
        self.ranks.all.all()?.all_reduce(x, Reduction::Sum)?.wait()
    }
}

/// The home of one parameter of a unit.
pub(crate) struct ParamHome {
    unit: Arc<Unit>,
    flat: usize,
    at: usize,
    kept: KeptRows,
    value: Tensor,
}

impl autograd::Home for ParamHome {
    fn gather(&self, dtype: DType) -> Result<Tensor> {
        let main = *self.unit.gathered().dtype.get_or_insert(dtype);
        let placed = &self.unit.ranks.flats[self.flat].layout.params[self.at];
        let flat = match main == dtype {
            true => self.unit.flat(self.flat)?.slice(0, placed.range())?,
            false => self.unit.single(self.flat, self.at, dtype)?,
        };
        placed.shape.part(&ops::reshape(&flat, placed.shape.local())?)
    }

    fn kept(&self) -> &KeptRows {
        &self.kept
    }

    fn value(&self) -> &Tensor {
        &self.value
    }

    fn unit(&self) -> Arc<dyn HomeUnit> {
        self.unit.clone()
    }
}

struct FlatAgain {
    unit: Weak<Unit>,
    flat: usize,
}

impl Regather for FlatAgain {
    fn gather(&self) -> Result<Tensor> {
        self.unit.upgrade().ok_or_else(gone)?.flat(self.flat)
    }

    fn version(&self) -> u64 {
        self.unit.upgrade().map_or(0, |unit| unit.version())
    }
}

struct SingleAgain {
    unit: Weak<Unit>,
    key: (usize, usize, DType),
}

impl Regather for SingleAgain {
    fn gather(&self) -> Result<Tensor> {
        let (flat, at, dtype) = self.key;
        let unit = self.unit.upgrade().ok_or_else(gone)?;
        unit.single(flat, at, dtype)
    }

    fn version(&self) -> u64 {
        self.unit.upgrade().map_or(0, |unit| unit.version())
    }
}

fn gone() -> Error {
    error!(Invalid, "home: the model was dropped; keep it until backward has run")
}
