//! Gradients of parameters: buffers that live as long as the optimizer.

use std::collections::HashMap;

use meshgrad_runtime::{Accumulator, DType, Tensor};

use crate::{Error, Param, ParamId, Result};

/// Called with each parameter and its gradient once nothing more will be added to it in this
/// backward.
type OnReady = Box<dyn FnMut(&Param, &Tensor) -> Result<()> + Send>;

/// A gradient buffer for each of some parameters: f32, or f64 for f64.
///
/// Sums go on over several backwards until [`Grads::clear`]. A parameter that is not among them
/// gets no gradient, and none is computed: that is how parameters are frozen.
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

/// How far a backward is with each parameter.
#[derive(Default)]
struct Readiness {
    /// Uses still to come, by entry.
    left: Vec<u32>,
    /// Entries from here on have been announced.
    announced: usize,
}

impl Grads {
    /// Buffers for `params`, on the devices of their values.
    ///
    /// # Errors
    /// [`Error::NotMaterialized`]; [`OutOfMemory`](meshgrad_runtime::Error::OutOfMemory).
    pub fn new(params: &[Param]) -> Result<Grads> {
        let own = |param: &Param| {
            let device = param.value()?.device().clone();
            Ok(Accumulator::new(
                &device,
                *param.shape(),
                param.gradient_dtype(),
            )?)
        };
        Grads::from_buffers(params, own)
    }

    /// Buffers for `params` that lie one after the other in `flat`, in the order of `params`: what
    /// a reducer or a fused optimizer wants.
    ///
    /// # Errors
    /// [`Error::FlatBuffer`] when `flat` is not as long as all parameters together or of another
    /// dtype than their gradients.
    pub fn over(params: &[Param], flat: &Tensor) -> Result<Grads> {
        let wanted = params.iter().map(|param| param.shape().elements()).sum();
        let dtype = params.first().map_or(DType::F32, Param::gradient_dtype);
        let same = params
            .iter()
            .all(|param| param.gradient_dtype() == flat.dtype());
        if flat.elements() != wanted || flat.shape().len() != 1 || !same {
            return Err(Error::FlatBuffer {
                wanted,
                dtype,
                given: flat.elements(),
            });
        }

        let mut start = 0;
        Grads::from_buffers(params, |param| {
            let part = start..start + param.shape().elements();
            start = part.end;
            let view = flat.slice(0, part)?.view(param.shape())?;
            let view = view.ok_or(Error::FlatBuffer {
                wanted,
                dtype,
                given: flat.elements(),
            })?;
            Ok(Accumulator::over(view)?)
        })
    }

    fn from_buffers(
        params: &[Param],
        mut buffer: impl FnMut(&Param) -> Result<Accumulator>,
    ) -> Result<Grads> {
        let mut grads = Grads::default();
        for param in params {
            if grads.index.contains_key(&param.id()) {
                continue; // Tied parameters are visited twice and have one gradient.
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

    /// The parameters, in the order of registration.
    pub fn params(&self) -> impl Iterator<Item = &Param> {
        self.entries.iter().map(|entry| &entry.param)
    }

    /// The gradient of `param`; zeros when nothing was added.
    ///
    /// # Errors
    /// [`Error::NoGradient`] for a parameter that is not among them.
    pub fn get(&mut self, param: &Param) -> Result<Tensor> {
        let at = self.index.get(&param.id());
        let at = *at.ok_or_else(|| Error::NoGradient {
            name: param.name().into(),
        })?;
        Ok(self.entries[at].sum.total()?.clone())
    }

    /// Every parameter with its gradient, in the order of registration.
    ///
    /// # Errors
    /// [`Busy`](meshgrad_runtime::Error::Busy).
    pub fn all(&mut self) -> Result<Vec<(Param, Tensor)>> {
        let totals = self.entries.iter_mut();
        totals
            .map(|entry| Ok((entry.param.clone(), entry.sum.total()?.clone())))
            .collect()
    }

    /// Forgets all sums. Costs nothing: the next contribution writes over what is there.
    pub fn clear(&mut self) {
        for entry in &mut self.entries {
            entry.sum.clear();
        }
    }

    /// In every backward from now on, calls `callback` with each parameter once its gradient is
    /// complete: always in the reverse order of registration, whatever order ops finish in, so that
    /// all ranks announce in one order.
    pub fn on_ready(
        &mut self,
        callback: impl FnMut(&Param, &Tensor) -> Result<()> + Send + 'static,
    ) {
        self.on_ready = Some(Box::new(callback));
    }

    /// Ends [`Grads::on_ready`].
    pub fn no_callback(&mut self) {
        self.on_ready = None;
    }

    pub(crate) fn holds(&self, param: &Param) -> bool {
        self.index.contains_key(&param.id())
    }

    /// Takes the buffer of `param` out, for an op to write.
    pub(crate) fn sum(&mut self, param: &Param) -> Option<&mut Accumulator> {
        let at = *self.index.get(&param.id())?;
        Some(&mut self.entries[at].sum)
    }

    /// Starts a backward in which the parameters are used `uses` times.
    pub(crate) fn begin(&mut self, uses: &HashMap<ParamId, u32>) {
        let of = |entry: &Entry| uses.get(&entry.param.id()).copied().unwrap_or(0);
        self.ready = Readiness {
            left: self.entries.iter().map(of).collect(),
            announced: self.entries.len(),
        };
    }

    /// One use of a parameter is done.
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
        self.announce(false)
    }

    /// Ends a backward: announces the rest, and checks that every parameter was touched.
    pub(crate) fn end(&mut self) -> Result<()> {
        let untouched = self.entries.iter().filter(|entry| entry.sum.is_empty());
        let untouched = untouched.filter(|entry| !entry.param.spec().optional);
        let names: Vec<String> = untouched.map(|entry| entry.param.name().into()).collect();
        if !names.is_empty() {
            return Err(Error::Untouched { names });
        }
        self.announce(true)
    }

    /// Announces, from the last registered on, those that are complete.
    fn announce(&mut self, all: bool) -> Result<()> {
        let Some(callback) = &mut self.on_ready else {
            return Ok(());
        };
        while let Some(next) = self.ready.announced.checked_sub(1) {
            if !all && self.ready.left[next] > 0 {
                break;
            }
            self.ready.announced = next;
            let Entry { param, sum } = &mut self.entries[next];
            // One that no op uses is announced with the others at the end.
            if !all && sum.is_empty() {
                self.ready.announced += 1;
                break;
            }
            callback(param, sum.total()?)?;
        }
        Ok(())
    }
}
