//! Parameters: shared handles to trainable tensors.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard};

use meshgrad_error::bail;
use meshgrad_mesh::Sharding;
use meshgrad_runtime::{DType, Device, Key, Kind, Shape, ShardedShape, Tensor, ops};

use crate::home::Home;
use crate::spec::{Init, ParamId, Spec};
use crate::{KeptRows, Result};

/// A handle to a parameter. Clones share the parameter, so a block may be cloned into a closure.
#[derive(Clone)]
pub struct Param(Arc<Inner>);

struct Inner {
    id: ParamId,
    name: String,
    spec: Spec,
    /// Set by [`Param::store_as`].
    stored: OnceLock<Spec>,
    frozen: AtomicBool,
    state: RwLock<State>,
}

#[derive(Default)]
pub(crate) struct State {
    /// Set by [`Param::shard`] or by a sharded value.
    shape: Option<ShardedShape>,
    value: Option<Tensor>,
    /// A copy in the compute dtype, and the version of the value it was made from.
    copy: Option<(u64, Tensor)>,
    /// Where the rows are, if they are divided over ranks. There is no value then.
    home: Option<Arc<dyn Home>>,
    /// Whether the rows have values.
    has_rows: bool,
}

impl Param {
    /// A parameter without a value, f32 and not optional.
    ///
    /// `name` is its path in the model, such as `model.layers.0.mlp.gate.weight`; a
    /// [`ModulePath`](crate::ModulePath) builds it.
    pub fn new<const N: usize>(name: impl Into<String>, shape: [usize; N], init: Init) -> Param {
        Param::with_spec(name, Spec::new(shape, init))
    }

    /// A parameter without a value.
    pub fn with_spec(name: impl Into<String>, spec: Spec) -> Param {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = ParamId(NEXT.fetch_add(1, Ordering::Relaxed));
        Param(Arc::new(Inner {
            id,
            name: name.into(),
            spec,
            stored: OnceLock::new(),
            frozen: AtomicBool::new(false),
            state: RwLock::default(),
        }))
    }

    /// The parameter's id.
    pub fn id(&self) -> ParamId {
        self.0.id
    }

    /// Its path in the model.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Its specification.
    pub fn spec(&self) -> &Spec {
        self.0.stored.get().unwrap_or(&self.0.spec)
    }

    /// Sets the dtype of its value before it has one. A frozen parameter that is stored in the dtype of
    /// the computation needs no copy in it.
    ///
    /// # Errors
    /// When it has a value or a home, or another dtype was set before.
    pub fn store_as(&self, dtype: DType) -> Result<()> {
        let (now, state) = (self.spec().dtype, self.read());
        if now == dtype {
            return Ok(());
        }
        let spec = Spec { dtype, ..self.0.spec.clone() };
        let is_new = state.value.is_none() && state.home.is_none();
        if !is_new || self.0.stored.set(spec).is_err() {
            bail!(
                Invalid,
                "`{}` is stored as {now} and cannot be stored as {dtype}: set the dtype once, before \
                 `materialize` or loading",
                self.name()
            );
        }
        Ok(())
    }

    /// Its shape; the global one, if it is sharded.
    pub fn shape(&self) -> &Shape {
        &self.spec().shape
    }

    /// Its shape, and the shards that this rank has.
    pub fn sharded_shape(&self) -> ShardedShape {
        let stated = self.read().shape.clone();
        stated.unwrap_or_else(|| (*self.shape()).into())
    }

    /// States the sharding of its value before it has one. [`Param::materialize`] then generates
    /// only the part of rank `rank`, with the same values as the whole parameter has there.
    ///
    /// # Errors
    /// When `sharding` has another shape or partial values, or the parameter has a value; when the
    /// rank is not in the mesh.
    pub fn shard(&self, sharding: &Sharding, rank: usize) -> Result<()> {
        let problem = if sharding.shape() != &self.shape()[..] {
            "the shapes differ"
        } else if !sharding.partials().is_empty() {
            "a parameter has no partial values"
        } else if self.home().is_some() {
            "it has a home already; state the sharding before"
        } else if self.read().value.is_some() {
            "it has a value already; state the sharding before `materialize` or `set`"
        } else {
            self.write().shape = Some(ShardedShape::new(sharding, rank)?);
            return Ok(());
        };
        bail!(
            Invalid,
            "`{}` of shape {} cannot be sharded as {sharding} of {:?}: {problem}",
            self.name(),
            self.shape(),
            sharding.shape()
        )
    }

    /// The dtype of its gradient.
    pub fn gradient_dtype(&self) -> DType {
        self.spec().dtype.accumulator()
    }

    /// Excludes it from training: its variables become constants, and [`Module::trained`] leaves it
    /// out. Its clones are frozen with it.
    ///
    /// [`Module::trained`]: crate::Module::trained
    pub fn freeze(&self) {
        self.0.frozen.store(true, Ordering::Relaxed);
    }

    /// Trains it again after [`Param::freeze`].
    pub fn unfreeze(&self) {
        self.0.frozen.store(false, Ordering::Relaxed);
    }

    /// Whether it is frozen.
    pub fn is_frozen(&self) -> bool {
        self.0.frozen.load(Ordering::Relaxed)
    }

    /// Divides its rows over ranks, as `home` says. A value that it has moves there.
    ///
    /// # Errors
    /// When it has a home already; errors of the copy.
    pub fn set_home(&self, home: Arc<dyn Home>) -> Result<()> {
        if self.home().is_some() {
            bail!(Invalid, "`{}` has a home already: give homes to a model once", self.name());
        }
        let value = self.take();
        if let Some(value) = &value {
            ops::copy_into(&home.kept().of(value)?, home.value())?;
        }
        let mut state = self.write();
        (state.home, state.has_rows) = (Some(home), value.is_some());
        Ok(())
    }

    /// States that the rows of its home, [`Home::value`](crate::Home::value), have been written, as
    /// by an optimizer or by loading them. All ranks call this, also those without rows, so that all
    /// of them gather the new values. [`Param::set`] and [`Param::materialize`] call it.
    pub fn rows_written(&self) {
        let mut state = self.write();
        if let Some(home) = &state.home {
            home.unit().free();
            state.has_rows = true;
        }
    }

    /// Whether it has a value or, with a home, its rows have.
    pub fn has_value(&self) -> bool {
        let state = self.read();
        match state.home {
            Some(_) => state.has_rows,
            None => state.value.is_some(),
        }
    }

    /// Where its rows are; `None` if the value is whole.
    pub fn home(&self) -> Option<Arc<dyn Home>> {
        self.read().home.clone()
    }

    /// Its value.
    ///
    /// # Errors
    /// When it has no value, or a home.
    pub fn value(&self) -> Result<Tensor> {
        let (state, name) = (self.read(), self.name());
        match (&state.value, &state.home) {
            (Some(value), _) => Ok(value.clone()),
            (None, None) => bail!(
                Invalid,
                "parameter `{name}` has no value: call `materialize` or load a checkpoint first"
            ),
            (None, Some(_)) => bail!(
                Invalid,
                "no rank has the value of `{name}`, whose rows are divided over ranks: use \
                 `Param::var`, which gathers it on all of them, or `Param::home` for the rows of \
                 this rank"
            ),
        }
    }

    /// Its value, if it has one and no home.
    pub(crate) fn whole_value(&self) -> Option<Tensor> {
        self.read().value.clone()
    }

    /// The rows that this rank keeps: those of its home, or all.
    pub fn kept(&self) -> KeptRows {
        match self.home() {
            Some(home) => home.kept().clone(),
            None => KeptRows::all(self.sharded_shape()),
        }
    }

    /// The value of the rows that this rank keeps, which may not be set yet ([`Param::has_value`]).
    ///
    /// # Errors
    /// When it has neither a value nor a home.
    pub fn kept_value(&self) -> Result<Tensor> {
        match self.home() {
            Some(home) => Ok(home.value().clone()),
            None => self.value(),
        }
    }

    /// Frees what was computed from its value: a copy in another dtype, or the gathered values of
    /// its unit. The next use computes it again.
    pub fn free_copies(&self) {
        self.write().copy = None;
        if let Some(home) = self.home() {
            home.unit().free();
        }
    }

    /// The value in `dtype`. The copy is kept until the value changes.
    pub(crate) fn value_as(&self, dtype: DType) -> Result<Tensor> {
        if let Some(home) = self.home() {
            return home.gather(dtype);
        }
        let value = self.value()?;
        if value.dtype() == dtype {
            return Ok(value);
        }

        let version = value.version();
        let mut state = self.write();
        if let Some((made_from, copy)) = &state.copy
            && *made_from == version
            && copy.dtype() == dtype
        {
            return Ok(copy.clone());
        }
        // The old copy is freed before the new one is allocated.
        state.copy = None;
        let copy = ops::cast(&value, dtype)?;
        state.copy = Some((version, copy.clone()));
        Ok(copy)
    }

    /// Sets the value: to `value` itself if it is of kind [`Kind::Parameter`], otherwise to a copy
    /// on its device. A parameter whose sharding was not stated takes that of the value. If it has
    /// a home, its rows are copied there.
    ///
    /// # Errors
    /// When shape, dtype or sharding differ.
    pub fn set(&self, value: &Tensor) -> Result<()> {
        let (own, given) = (self.read().shape.clone(), value.sharded_shape());
        let fits = match &own {
            Some(own) => own.fits(value),
            None => *given == *self.shape(),
        };
        let is_partial = value.sharding().is_some_and(|it| !it.partials().is_empty());
        let dtype = self.spec().dtype;
        if !fits || is_partial || value.dtype() != dtype {
            let own = own.as_ref().and_then(ShardedShape::sharding);
            bail!(
                Invalid,
                "parameter `{}` is {}, but the new value is {}; cast or reshape it first",
                self.name(),
                describe(dtype, self.shape(), own),
                describe(value.dtype(), &given, value.sharding())
            );
        }

        if let Some(home) = self.home() {
            ops::copy_into(&home.kept().of(value)?, home.value())?;
            self.rows_written();
            return Ok(());
        }
        let value = match value.kind() {
            Kind::Parameter => value.clone(),
            _ => {
                let copy = given.zeros(value.device(), dtype, Kind::Parameter)?;
                ops::copy_into(value, &copy)?;
                copy
            }
        };
        *self.write() = State {
            shape: own.or_else(|| given.sharding().is_some().then_some(given)),
            value: Some(value),
            copy: None,
            home: None,
            has_rows: false,
        };
        Ok(())
    }

    /// Removes and returns its value; `None` if it has a home. The parameter keeps its sharding.
    pub fn take(&self) -> Option<Tensor> {
        let mut state = self.write();
        state.copy = None;
        state.value.take()
    }

    /// Sets the initial value. It depends only on `seed`, the name and the element's position.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn materialize(&self, device: &Device, seed: u64) -> Result<()> {
        let Spec { dtype, init, .. } = *self.spec();
        let shape = self.sharded_shape();
        let key = Key::new(seed).fold_name(self.name());
        if let Some(home) = self.home() {
            init.write_rows(key, home.kept(), home.value())?;
            self.rows_written();
            return Ok(());
        }
        let zeros = shape.zeros(device, dtype, Kind::Parameter)?;
        let value = match shape.sharding() {
            Some(_) => zeros,
            None => zeros.as_replicated()?,
        };
        init.write(key, &value)?;
        self.set(&value)
    }

    /// Takes the value, or the home. The parameter keeps its sharding.
    pub(crate) fn take_state(&self) -> State {
        let mut state = self.write();
        let shape = state.shape.clone();
        std::mem::replace(&mut *state, State { shape, ..State::default() })
    }

    pub(crate) fn set_state(&self, state: State) {
        *self.write() = state;
    }

    fn read(&self) -> RwLockReadGuard<'_, State> {
        // Every assignment replaces the whole state, so it is valid after a panic.
        self.0.state.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.0.state.write().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Ends a pass over a model without backward, such as an evaluation, so that nothing is gathered for
/// a backward that does not follow. All ranks call this after the pass, before rows are written.
pub fn end_pass<'p>(params: impl IntoIterator<Item = &'p Param>) {
    let homes = params.into_iter().filter_map(Param::home);
    homes.for_each(|home| home.unit().end_pass());
}

/// `f32[4, 2] (tp: shard(0))`.
pub(crate) fn describe(dtype: DType, shape: &Shape, sharding: Option<&Sharding>) -> String {
    match sharding {
        Some(sharding) => format!("{dtype}{shape} ({sharding})"),
        None => format!("{dtype}{shape}"),
    }
}

impl fmt::Debug for Param {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` {}{}", self.name(), self.spec().dtype, self.shape())
    }
}

/// A tensor of a module that is not trained, such as the bias of a router or a running mean. Like a
/// parameter it is a shared handle with a name and an initial value, is materialized and saved with
/// the model, and may be written between steps. It never has a gradient.
#[derive(Clone)]
pub struct Buffer(Param);

impl Buffer {
    /// A buffer without a value, f32. `name` is its path in the model.
    pub fn new<const N: usize>(name: impl Into<String>, shape: [usize; N], init: Init) -> Buffer {
        Buffer(Param::new(name, shape, init))
    }

    /// Its path in the model.
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// Its shape.
    pub fn shape(&self) -> &Shape {
        self.0.shape()
    }

    /// As [`Param::sharded_shape`].
    pub fn sharded_shape(&self) -> ShardedShape {
        self.0.sharded_shape()
    }

    /// Its dtype.
    pub fn dtype(&self) -> DType {
        self.0.spec().dtype
    }

    /// Its value, which in-place ops may change.
    ///
    /// # Errors
    /// When it has no value.
    pub fn value(&self) -> Result<Tensor> {
        self.0.value()
    }

    /// As [`Param::shard`].
    ///
    /// # Errors
    /// As [`Param::shard`].
    pub fn shard(&self, sharding: &Sharding, rank: usize) -> Result<()> {
        self.0.shard(sharding, rank)
    }

    /// As [`Param::set`].
    ///
    /// # Errors
    /// As [`Param::set`].
    pub fn set(&self, value: &Tensor) -> Result<()> {
        self.0.set(value)
    }

    /// As [`Param::take`].
    pub fn take(&self) -> Option<Tensor> {
        self.0.take()
    }

    /// As [`Param::materialize`].
    ///
    /// # Errors
    /// As [`Param::materialize`].
    pub fn materialize(&self, device: &Device, seed: u64) -> Result<()> {
        self.0.materialize(device, seed)
    }

    pub(crate) fn id(&self) -> ParamId {
        self.0.id()
    }

    pub(crate) fn as_param(&self) -> &Param {
        &self.0
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
