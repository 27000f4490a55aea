//! Gradient buffers of parameters. They live as long as the optimizer.

use std::collections::HashMap;

use meshgrad_runtime::{Accumulator, DType, Tensor, check_replicas};

use crate::{Param, ParamId, Result, TapeError};

/// Called with each parameter once its gradient is complete in a backward pass.
type OnReady = Box<dyn FnMut(&Param, &Tensor) -> Result<()> + Send>;

/// Gradient buffers for a list of parameters, in f32 (f64 for f64 parameters).
///
/// Gradients accumulate over backward passes until [`Grads::clear`]. Gradients of parameters that
/// are not in the list are not computed.
#[derive(Default)]
pub struct Grads {
    entries: Vec<Entry>,
    index: HashMap<ParamId, usize>,
    on_ready: Option<OnReady>,
    ready: Readiness,
}

struct Entry {
    param: Param,
    sum: Accumulator,
}

impl Entry {
    /// The gradient; zeros, placed like the parameter, if nothing was added.
    fn total(&mut self) -> Result<Tensor> {
        if !self.sum.is_empty() {
            return Ok(self.sum.total()?.clone());
        }
        let zeros = self.sum.total()?.clone();
        // The next gradient that is added still determines the sharding.
        self.sum.clear();
        match zeros.sharding() {
            Some(_) => Ok(zeros),
            None => self.param.sharded_shape().part(&zeros),
        }
    }
}

/// Progress of a backward pass, by parameter.
#[derive(Default)]
struct Readiness {
    /// Remaining uses, by entry.
    left: Vec<u32>,
    /// Entries from this one on have been reported.
    reported: usize,
}

impl Grads {
    /// Buffers for `params`, on the devices of their values.
    ///
    /// # Errors
    /// [`TapeError::NotMaterialized`]; [`OutOfMemory`](meshgrad_runtime::Error::OutOfMemory).
    pub fn new(params: &[Param]) -> Result<Grads> {
        let allocate = |param: &Param| {
            let device = param.value()?.device().clone();
            Accumulator::new(&device, param.sharded_shape(), param.gradient_dtype())
        };
        Grads::from_buffers(params, allocate)
    }

    /// Buffers for `params` as consecutive views of `flat`, in the order of `params`, for a reducer
    /// or a fused optimizer. Of a sharded parameter, `flat` has this rank's part.
    ///
    /// # Errors
    /// [`TapeError::FlatBuffer`] when `flat` does not have the total size or the dtype of the
    /// gradients.
    pub fn over(params: &[Param], flat: &Tensor) -> Result<Grads> {
        let elements = |param: &Param| param.sharded_shape().local().elements();
        let expected = params.iter().map(elements).sum();
        let dtype = params.first().map_or(DType::F32, Param::gradient_dtype);
        let same = params
            .iter()
            .all(|param| param.gradient_dtype() == flat.dtype());
        if flat.elements() != expected || flat.shape().len() != 1 || !same {
            return Err(TapeError::FlatBuffer {
                expected,
                dtype: dtype.to_string(),
                actual: flat.elements(),
            }
            .into());
        }

        let (flat, mut start) = (flat.local(), 0);
        Grads::from_buffers(params, |param| {
            let shape = param.sharded_shape();
            let part = start..start + shape.local().elements();
            start = part.end;
            let view = flat.slice(0, part)?.view(shape.local())?;
            let view = view.ok_or_else(|| TapeError::FlatBuffer {
                expected,
                dtype: dtype.to_string(),
                actual: flat.elements(),
            })?;
            Accumulator::over(view)?.with_shape(shape)
        })
    }

    fn from_buffers(
        params: &[Param],
        mut buffer: impl FnMut(&Param) -> Result<Accumulator>,
    ) -> Result<Grads> {
        let mut grads = Grads::default();
        for param in params {
            if grads.index.contains_key(&param.id()) {
                continue; // A tied parameter may be listed twice.
            }
            let sum = buffer(param)?;
            grads.index.insert(param.id(), grads.entries.len());
            grads.entries.push(Entry {
                param: param.clone(),
                sum,
            });
        }
        Ok(grads)
    }

    /// The parameters, in the order of the list.
    pub fn params(&self) -> impl Iterator<Item = &Param> {
        self.entries.iter().map(|entry| &entry.param)
    }

    /// The gradient of `param`; zeros if nothing was added.
    ///
    /// # Errors
    /// [`TapeError::NoGradient`] for a parameter that is not in the list.
    pub fn get(&mut self, param: &Param) -> Result<Tensor> {
        let at = self.index.get(&param.id());
        let at = *at.ok_or_else(|| TapeError::NoGradient {
            name: param.name().into(),
        })?;
        self.entries[at].total()
    }

    /// Every parameter with its gradient, in the order of the list.
    ///
    /// # Errors
    /// [`Busy`](meshgrad_runtime::Error::Busy).
    pub fn all(&mut self) -> Result<Vec<(Param, Tensor)>> {
        let totals = self.entries.iter_mut();
        totals
            .map(|entry| Ok((entry.param.clone(), entry.total()?)))
            .collect()
    }

    /// Clears all gradients. This costs nothing: the next gradient overwrites the buffer.
    pub fn clear(&mut self) {
        for entry in &mut self.entries {
            entry.sum.clear();
        }
    }

    /// In later backward passes, calls `callback` with each parameter once its gradient is
    /// complete. Parameters are always reported in the reverse order of the list passed to
    /// [`Grads::new`], so that all ranks use the same order.
    pub fn on_ready(
        &mut self,
        callback: impl FnMut(&Param, &Tensor) -> Result<()> + Send + 'static,
    ) {
        self.on_ready = Some(Box::new(callback));
    }

    pub(crate) fn holds(&self, param: &Param) -> bool {
        self.index.contains_key(&param.id())
    }

    /// The buffer of `param`, for an op to write.
    pub(crate) fn sum(&mut self, param: &Param) -> Option<&mut Accumulator> {
        let at = *self.index.get(&param.id())?;
        Some(&mut self.entries[at].sum)
    }

    /// Starts a backward pass in which the parameters are used `uses` times.
    pub(crate) fn begin(&mut self, uses: &HashMap<ParamId, u32>) -> Result<()> {
        for param in self.entries.iter().map(|entry| &entry.param) {
            if let Ok(value) = param.value() {
                check_replicas(|| format!("`{}`", param.name()), &value)?;
            }
        }
        let of = |entry: &Entry| uses.get(&entry.param.id()).copied().unwrap_or(0);
        self.ready = Readiness {
            left: self.entries.iter().map(of).collect(),
            reported: self.entries.len(),
        };
        Ok(())
    }

    /// Counts `times` uses of a parameter as done.
    pub(crate) fn used(&mut self, param: ParamId, times: u32) -> Result<()> {
        if self.on_ready.is_none() {
            return Ok(());
        }
        if let Some(left) = self
            .index
            .get(&param)
            .and_then(|at| self.ready.left.get_mut(*at))
        {
            *left = left.saturating_sub(times);
        }
        self.report(false)
    }

    /// Ends a backward pass: checks that every parameter that is not optional has a gradient, and
    /// reports the remaining parameters.
    pub(crate) fn end(&mut self) -> Result<()> {
        let untouched = self.entries.iter().filter(|entry| entry.sum.is_empty());
        let untouched = untouched.filter(|entry| !entry.param.spec().optional);
        let names: Vec<String> = untouched.map(|entry| entry.param.name().into()).collect();
        if !names.is_empty() {
            return Err(TapeError::Untouched { names }.into());
        }
        self.report(true)
    }

    /// Reports parameters with complete gradients, from the last of the list to the first. In
    /// strict mode, the gradients are compared before.
    fn report(&mut self, all: bool) -> Result<()> {
        while let Some(next) = self.ready.reported.checked_sub(1) {
            if !all && self.ready.left[next] > 0 {
                break;
            }
            self.ready.reported = next;
            let entry = &mut self.entries[next];
            // A parameter that no op uses is reported at the end.
            if !all && entry.sum.is_empty() {
                self.ready.reported += 1;
                break;
            }
            if !entry.sum.is_empty() {
                let name = || format!("the gradient of `{}`", entry.param.name());
                check_replicas(name, entry.sum.total()?)?;
            }
            if let Some(callback) = &mut self.on_ready {
                let total = entry.total()?;
                callback(&entry.param, &total)?;
            }
        }
        Ok(())
    }
}
