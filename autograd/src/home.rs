//! Homes of parameters whose rows are divided over ranks. How ranks communicate is up to the
//! implementation.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, Weak};

use meshgrad_runtime::{
    DType, Error, Key, Region, Result, Shape, ShardedShape, StorageView, TapeError, Tensor, ops,
    without_mesh,
};

use crate::{Init, Param};

/// The home of a parameter: this rank keeps some rows of its part of the parameter's sharding, and
/// gathers all of them to compute. A row has one index of every dim but the last; a parameter with
/// fewer than two dims is one row.
///
/// All ranks that share the rows make the same calls in the same order.
pub trait Home: Send + Sync {
    /// The value in `dtype`: this rank's part of the parameter's sharding, with all rows.
    ///
    /// # Errors
    /// Errors of the communication; [`OutOfMemory`](meshgrad_runtime::Error::OutOfMemory).
    fn gather(&self, dtype: DType) -> Result<Tensor>;

    /// The rows that this rank keeps.
    fn rows(&self) -> Range<usize>;

    /// Their value: [rows, elements of a row], contiguous, without a sharding, of
    /// [`Kind::Parameter`](meshgrad_runtime::Kind::Parameter).
    fn value(&self) -> &Tensor;

    /// Whether this rank is the first of those that keep the same rows. Over all ranks, the rows of
    /// the first copies are the parameter.
    fn is_first_copy(&self) -> bool;

    /// The unit that the parameter belongs to.
    fn unit(&self) -> Arc<dyn HomeUnit>;
}

/// Parameters whose values are gathered together, and whose gradients are reduced together.
pub trait HomeUnit: Send + Sync {
    /// A number that no other unit of this process has.
    fn id(&self) -> u64;

    /// Gradients of some parameters of the unit, in their order.
    ///
    /// # Errors
    /// [`OutOfMemory`](meshgrad_runtime::Error::OutOfMemory).
    fn gradients(&self, params: &[Param]) -> Result<Box<dyn HomeGradients>>;

    /// The sum of the values of `x` on all ranks that share in the model's parameters.
    ///
    /// # Errors
    /// Errors of the communication.
    fn sum(&self, x: &Tensor) -> Result<Tensor>;
}

/// The gradients of parameters of one unit. Parameters are given by their positions in the list of
/// [`HomeUnit::gradients`].
pub trait HomeGradients: Send {
    /// A buffer for the gradient of all rows of parameter `at`: the local shape of its sharding, in
    /// the gradient's dtype. Its values are undefined if it was just allocated.
    ///
    /// # Errors
    /// [`OutOfMemory`](meshgrad_runtime::Error::OutOfMemory).
    fn buffer(&mut self, at: usize) -> Result<Tensor>;

    /// Whether [`HomeGradients::reduce`] should be called after each backward pass, and not only
    /// after the last.
    fn reduces_each_pass(&self) -> bool;

    /// Adds the gradients of this rank to those of the others, and does not wait for them. One per
    /// parameter, in the buffers of [`HomeGradients::buffer`]; `None` where nothing was added.
    /// `is_last` states that no further pass follows.
    ///
    /// # Errors
    /// For a gradient that is not a partial sum over the ranks; errors of the communication.
    fn reduce(&mut self, whole: Vec<Option<Tensor>>, is_last: bool) -> Result<()>;

    /// Continues a reduction whose first collective is complete, if there is one. Waits for it.
    ///
    /// # Errors
    /// Errors of the communication.
    fn advance(&mut self) -> Result<()>;

    /// Waits for all reductions, after the last pass. Returns the gradients of the rows that this
    /// rank keeps, in the shape of [`Home::value`].
    ///
    /// # Errors
    /// Errors of the communication.
    fn finish(&mut self) -> Result<Vec<Tensor>>;

    /// Forgets all gradients.
    fn clear(&mut self);
}

/// The number of rows of a tensor of this shape.
pub fn row_count(shape: &[usize]) -> usize {
    let outer = shape.split_last().map(|(_, outer)| outer);
    outer.map_or(1, |outer| outer.iter().product())
}

/// The number of elements of a row of a tensor of this shape.
pub fn row_elements(shape: &[usize]) -> usize {
    shape.last().copied().unwrap_or(1)
}

/// Writes initial values to `into`, [rows, elements of a row], the rows `rows` of this rank's part
/// of a parameter of shape `shape`. They are those that the whole parameter has there.
pub(crate) fn initialize(
    init: Init,
    key: Key,
    shape: &ShardedShape,
    rows: &Range<usize>,
    into: &Tensor,
) -> Result<()> {
    let (dtype, device) = (into.dtype(), into.device());
    let draw = |shape: &[usize], region: &Region| match init {
        Init::Zeros => ops::full(device, shape, dtype, 0.0),
        Init::Ones => ops::full(device, shape, dtype, 1.0),
        Init::Normal { std } => ops::normal(device, shape, dtype, key.within(region), 0.0, std),
        Init::Uniform { bound } => {
            ops::uniform(device, shape, dtype, key.within(region), -bound, bound)
        }
    };
    without_mesh(|| {
        for part in shape.row_boxes(rows.clone()) {
            let mut global = Region::whole(shape)?;
            for (dim, range) in part.global.iter().enumerate() {
                global = global.slice(dim, range.clone())?;
            }
            let extents: Vec<usize> = part.global.iter().map(Range::len).collect();
            let own = part.rows.start - rows.start..part.rows.end - rows.start;
            let mut target = viewed(&into.slice(0, own)?, &part.shape)?;
            for (dim, range) in part.within.iter().enumerate() {
                target = target.slice(dim as isize, range.clone())?;
            }
            ops::copy_into(&draw(&extents, &global)?, &target)?;
        }
        Ok(())
    })
}

/// `x`, which is contiguous and without a sharding, in another shape, without a copy.
pub(crate) fn viewed(x: &Tensor, shape: &[usize]) -> Result<Tensor> {
    let view = x.view(shape)?;
    view.ok_or_else(|| Error::Argument {
        op: "home",
        problem: format!("{x} is not contiguous"),
    })
}

/// The rows `rows` of the part `x` of a parameter, as [rows, elements of a row], without a copy if
/// `x` is contiguous.
pub(crate) fn rows_of(x: &Tensor, rows: Range<usize>) -> Result<Tensor> {
    let local = x.local();
    let shape: Shape = *local.shape();
    let flat = ops::reshape(&local, &[row_count(&shape), row_elements(&shape)])?;
    flat.slice(0, rows)
}

/// The L2 norm of the gradients of parameters with homes, as [`Grads::all`](crate::Grads::all) returns
/// them. Each element counts once. An f32 scalar without a sharding, equal on all ranks, which all
/// call this.
///
/// # Errors
/// [`TapeError::NotMaterialized`] for a parameter without a home; errors of the communication.
pub fn norm_over_ranks(gradients: &[(Param, Tensor)]) -> Result<Tensor> {
    let mut counted = Vec::with_capacity(gradients.len());
    let mut unit = None;
    for (param, gradient) in gradients {
        let home = param.home().ok_or_else(|| TapeError::NotMaterialized {
            name: param.name().into(),
        })?;
        if home.is_first_copy() {
            counted.push(gradient.local());
        }
        unit.get_or_insert_with(|| home.unit());
    }
    let Some((unit, (_, first))) = unit.zip(gradients.first()) else {
        return Err(Error::Argument {
            op: "norm_over_ranks",
            problem: "needs at least one gradient".into(),
        });
    };
    without_mesh(|| {
        if counted.is_empty() {
            // Not of a first copy, so it counts as nothing.
            counted.push(first.local().slice(0, 0..0)?);
        }
        let squares = ops::sum_of_squares(&counted.iter().collect::<Vec<_>>())?;
        ops::cast(&ops::sqrt(&unit.sum(&squares)?)?, DType::F32)
    })
}

/// A storage that holds gathered values. It can be freed, and gathered again with the same values.
pub trait Regather: Send + Sync {
    /// The storage. Gathers it if it was freed.
    ///
    /// # Errors
    /// Errors of the communication.
    fn gather(&self) -> Result<Tensor>;

    /// The version of the values that it is gathered from.
    fn version(&self) -> u64;
}

/// Makes tensors in the storage of `storage` be saved for backward as "gather again", while the
/// result exists.
#[must_use = "tensors are saved whole after this is dropped"]
pub struct GatheredStorage(usize);

static GATHERED: RwLock<Option<HashMap<usize, Weak<dyn Regather>>>> = RwLock::new(None);
static GATHERED_COUNT: AtomicUsize = AtomicUsize::new(0);

impl GatheredStorage {
    /// Registers a storage. The caller keeps `storage` as long as the result.
    pub fn new(storage: &Tensor, regather: &Arc<dyn Regather>) -> GatheredStorage {
        let mut all = GATHERED.write().unwrap_or_else(PoisonError::into_inner);
        let all = all.get_or_insert_default();
        all.insert(storage.storage_id(), Arc::downgrade(regather));
        GATHERED_COUNT.store(all.len(), Ordering::Release);
        GatheredStorage(storage.storage_id())
    }
}

impl Drop for GatheredStorage {
    fn drop(&mut self) {
        let mut all = GATHERED.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(all) = all.as_mut() {
            all.remove(&self.0);
            GATHERED_COUNT.store(all.len(), Ordering::Release);
        }
    }
}

/// A saved tensor in a gathered storage.
pub(crate) struct SavedGathered {
    regather: Arc<dyn Regather>,
    view: StorageView,
    version: u64,
    name: String,
}

impl SavedGathered {
    /// `None` if `x` is in no gathered storage.
    pub(crate) fn of(x: &Tensor) -> Option<SavedGathered> {
        if GATHERED_COUNT.load(Ordering::Acquire) == 0 {
            return None;
        }
        let all = GATHERED.read().unwrap_or_else(PoisonError::into_inner);
        let regather = all.as_ref()?.get(&x.storage_id())?.upgrade()?;
        Some(SavedGathered {
            view: x.storage_view(),
            version: regather.version(),
            name: format!("{}{}", x.dtype(), x.shape()),
            regather,
        })
    }

    pub(crate) fn get(&self) -> Result<Tensor> {
        let now = self.regather.version();
        if now != self.version {
            return Err(TapeError::Overwritten {
                name: self.name.clone(),
                saved: self.version,
                now,
            }
            .into());
        }
        self.view.of(&self.regather.gather()?)
    }
}
