//! The update of a model after backward: gradient norm, clipping, and a step of any update rule.

use std::collections::HashMap;

use meshgrad_autograd::{Grads, Module, Param, Vars, end_pass};
use meshgrad_collectives::full_tensor;
use meshgrad_error::{ensure, error};
use meshgrad_runtime::ops::{self, StepScalars};
use meshgrad_runtime::{DType, Device, Kind, Tensor};

use crate::config::OptimizerConfig;
use crate::optim::{Ema, OptimizerPart, OptimizerState, UpdateRule, count_skipped, parts, unless};
use crate::pipeline::{ParamsOfStages, Pipeline};
use crate::{Result, configured, tree};

/// Updates a model's parameters: gradients are divided by the weight of the loss, clipped by their
/// global norm, and passed to an [`UpdateRule`]. Owns the gradients and the state of the rule.
///
/// If the parameters have homes, each rank updates the rows that it keeps, and all ranks make the
/// same calls. Either all parameters have one, or none.
pub struct Optimizer {
    rule: Box<dyn UpdateRule>,
    grads: Grads,
    ema: Option<Ema>,
    max_grad_norm: f64,
    /// The parameters of all stages, if this rank has only some.
    stages: Option<ParamsOfStages>,
    /// The values that change from step to step are scalars on the device, f32.
    learning_rate: Tensor,
    step: Tensor,
    /// The number of skipped steps, if steps are counted without them.
    skipped: Option<Tensor>,
    /// The factor of the gradients of the last step.
    scale: Option<Tensor>,
}

impl Optimizer {
    /// An optimizer of `model`'s parameters with the rule and the averages of `config`. Weight
    /// decay applies to parameters with two or more dims, not to norms and biases. `seed` is that
    /// of the run, for stochastic rounding.
    ///
    /// # Errors
    /// When the configuration is invalid or does not fit the parameters; when memory runs out.
    pub fn new(
        model: &impl Module,
        device: &Device,
        config: &OptimizerConfig,
        seed: u64,
    ) -> Result<Optimizer> {
        let params = model.trained();
        let make = |parts: &[OptimizerPart]| configured::rule(config, parts, &params, seed);
        let optimizer = Optimizer::with(model, device, config.max_grad_norm, make)?;
        optimizer.configured(config)
    }

    /// An optimizer of `model`'s parameters that are not frozen, with the rule that `make` returns
    /// for them. Gradients are clipped to the global norm `max_grad_norm`; 0 disables clipping.
    ///
    /// # Errors
    /// Those of `make`; when a state of the rule has a name that is taken, or that a folder cannot
    /// have; when memory runs out.
    pub fn with(
        model: &impl Module,
        device: &Device,
        max_grad_norm: f64,
        make: impl FnOnce(&[OptimizerPart]) -> Result<Box<dyn UpdateRule>>,
    ) -> Result<Optimizer> {
        model.check_names()?;
        let scalar = || Tensor::zeros(device, &[], DType::F32, Kind::OptimizerState);
        let rule = make(&parts(model))?;
        check_state_names(rule.as_ref())?;
        Ok(Optimizer {
            rule,
            grads: Grads::new(&model.trained())?,
            ema: None,
            max_grad_norm,
            stages: None,
            learning_rate: scalar()?,
            step: scalar()?,
            skipped: None,
            scale: None,
        })
    }

    /// With the averages of `config`, and with its treatment of gradients that are not finite.
    ///
    /// # Errors
    /// As [`Optimizer::averaging`].
    pub(crate) fn configured(self, config: &OptimizerConfig) -> Result<Optimizer> {
        let optimizer = self.averaging(config.ema_decay)?;
        match config.skip_nonfinite {
            true => optimizer.skipping(),
            false => Ok(optimizer),
        }
    }

    /// Does not count skipped steps: those whose gradient is not finite, which change nothing. The
    /// number of skipped steps is a state.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn skipping(mut self) -> Result<Optimizer> {
        let device = self.step.device();
        self.skipped = Some(Tensor::zeros(device, &[], DType::F32, Kind::OptimizerState)?);
        Ok(self)
    }

    /// Also averages the parameters after each step, with `decay` in [0, 1); 0 for no averages.
    ///
    /// # Errors
    /// For another decay; when memory runs out.
    pub fn averaging(mut self, decay: f64) -> Result<Optimizer> {
        let parts: Vec<OptimizerPart> = self.grads.params().map(OptimizerPart::of).collect();
        self.ema = match decay == 0.0 {
            true => None,
            false => Some(Ema::new(&parts, decay)?),
        };
        Ok(self)
    }

    /// Calls `f`, an evaluation, while the parameters are set to their averages, if there are
    /// averages.
    ///
    /// # Errors
    /// Those of `f`; when memory runs out.
    pub fn averaged<T>(&self, f: impl FnOnce() -> Result<T>) -> Result<T> {
        let evaluated = || {
            let result = f();
            end_pass(self.grads.params());
            result
        };
        let Some(ema) = &self.ema else {
            return evaluated();
        };
        let originals = ema.apply()?;
        self.written();
        let result = evaluated();
        originals.restore()?;
        self.written();
        result
    }

    /// The optimizer of the stages that a rank of `pipeline` has: the gradients of all stages have one
    /// norm. All ranks make this call.
    ///
    /// # Errors
    /// Outside of a [`Redistributor`](meshgrad_comm::Redistributor)'s scope.
    pub fn of_pipeline<S: Vars + Clone>(self, pipeline: &Pipeline<S>) -> Result<Optimizer> {
        Ok(Optimizer { stages: pipeline.all_params()?, ..self })
    }

    /// The global norm of the gradients.
    fn norm(&mut self) -> Result<Tensor> {
        match &self.stages {
            Some(stages) => stages.norm(&self.grads.all()?, self.step.device()),
            None => self.grads.norm(),
        }
    }

    /// The name of the rule.
    pub fn name(&self) -> &str {
        self.rule.name()
    }

    /// The state of the rule and of the averages. Writing to its tensors restores a saved state.
    pub fn state(&self) -> Vec<OptimizerState> {
        let mut state = self.rule.state();
        state.extend(self.ema.as_ref().map(Ema::state));
        state.extend(self.skipped.iter().map(|skipped| OptimizerState {
            name: SKIPPED,
            tensors: vec![(SKIPPED.to_owned(), skipped.clone())],
        }));
        state
    }

    /// The gradients, for [`Tape::backward`](meshgrad_autograd::Tape::backward).
    pub fn grads(&mut self) -> &mut Grads {
        &mut self.grads
    }

    /// The buffers of the gradients.
    pub(crate) fn gradient_buffers(&self) -> Vec<Tensor> {
        self.grads.buffers()
    }

    /// Makes the ranks of homes gather the new values.
    fn written(&self) {
        self.grads.params().for_each(Param::rows_written);
    }

    /// Applies step `step` (from 1) at `learning_rate` and clears the gradients:
    /// [`Optimizer::begin`], then [`Optimizer::apply`].
    ///
    /// # Errors
    /// As [`Optimizer::apply`].
    pub fn step(&mut self, weight: &Tensor, step: u64, learning_rate: f64) -> Result<Tensor> {
        self.begin(step, learning_rate)?;
        self.apply(weight)
    }

    /// Writes the step number (from 1) and the learning rate to the device. For a step captured as
    /// a graph, call it before each launch, not during capture.
    ///
    /// # Errors
    /// When the device fails.
    pub fn begin(&self, step: u64, learning_rate: f64) -> Result<()> {
        ops::fill_into(&self.learning_rate, learning_rate)?;
        ops::fill_into(&self.step, step as f64)?;
        match &self.skipped {
            Some(skipped) => ops::copy_into(&ops::sub(&self.step, skipped)?, &self.step),
            None => Ok(()),
        }
    }

    /// Updates the parameters with the numbers that [`Optimizer::begin`] wrote, and clears the
    /// gradients, which are sums over `weight` tokens (a scalar, f32). Returns the global norm of
    /// their mean before clipping, a scalar, f32. Does not wait for the device.
    ///
    /// If the parameters have homes, `weight` is that of all ranks or a partial sum, and the host
    /// waits until the reduction of the gradients has been enqueued on all of them.
    ///
    /// # Errors
    /// When only some parameters have homes; errors of the communication.
    pub fn apply(&mut self, weight: &Tensor) -> Result<Tensor> {
        self.apply_or_skip(weight, None)
    }

    /// As [`Optimizer::apply`], unless `skip`, a scalar f32 that is read on the device, is nonzero:
    /// the step then changes no parameter, no state and no average. All ranks pass the same value.
    ///
    /// # Errors
    /// As [`Optimizer::apply`].
    pub fn apply_unless(&mut self, skip: &Tensor, weight: &Tensor) -> Result<Tensor> {
        self.apply_or_skip(weight, Some(skip))
    }

    fn apply_or_skip(&mut self, weight: &Tensor, skip: Option<&Tensor>) -> Result<Tensor> {
        let norm = self.norm()?;
        let gradients = self.grads.gradients()?;
        let norm = self.update(gradients.iter(), weight, &norm, skip)?;
        self.grads.clear();
        Ok(norm)
    }

    /// The factor of the gradients of the last step, a scalar f32; not finite if the step was
    /// skipped.
    pub fn scale(&self) -> Option<&Tensor> {
        self.scale.as_ref()
    }

    /// As [`Optimizer::apply`] with `gradients`, in place of its own, and their norm in the order of
    /// [`tree`].
    pub(crate) fn apply_in_tree_order(
        &mut self,
        gradients: Vec<(Param, Tensor)>,
        weight: &Tensor,
    ) -> Result<Tensor> {
        let norm = tree::norm(&gradients, self.stages.as_ref(), self.step.device())?;
        let mut by_id: HashMap<_, _> =
            gradients.into_iter().map(|(param, gradient)| (param.id(), gradient)).collect();
        let ordered = self.grads.params().map(|param| {
            let of = by_id.remove(&param.id());
            of.ok_or_else(|| error!(Invalid, "no stage uses `{}`; freeze it", param.name()))
        });
        let ordered: Vec<Tensor> = ordered.collect::<Result<_>>()?;
        self.update(ordered.iter(), weight, &norm, None)
    }

    /// Updates the parameters with gradients whose norm is `norm`. Returns that of their mean.
    fn update<'g>(
        &mut self,
        gradients: impl Iterator<Item = &'g Tensor>,
        weight: &Tensor,
        norm: &Tensor,
        skip: Option<&Tensor>,
    ) -> Result<Tensor> {
        let gradients: Vec<Tensor> = gradients.map(Tensor::local).collect();
        let weight = whole(weight)?;
        let (scale, norm) = ops::clip_scale(norm, &weight, self.max_grad_norm)?;
        let skip = skip.map(whole).transpose()?;
        let unskipped = scale.clone();
        let scale = match &skip {
            Some(skip) => unless(&scale, skip)?,
            None => scale,
        };
        let (learning_rate, step) = (&self.learning_rate, &self.step);
        self.rule.step(&gradients, StepScalars { learning_rate, step, scale: &scale })?;
        self.written();
        if let Some(ema) = &self.ema {
            ema.update(&scale)?;
        }
        if let Some(skipped) = &self.skipped {
            let never = || ops::full(scale.device(), &[], scale.dtype(), 0.0);
            let skip = skip.map_or_else(never, Ok)?.local();
            count_skipped(skipped, &unskipped, &skip)?;
        }
        self.scale = Some(scale);
        Ok(norm)
    }
}

/// The value that all ranks have of `x`, which is the same on all of them or a partial sum.
fn whole(x: &Tensor) -> Result<Tensor> {
    match x.sharding() {
        None => Ok(x.clone()),
        Some(_) => Ok(full_tensor(x)?.local()),
    }
}

/// Checkpoints store averages, buffers and the number of skipped steps beside the rule's state,
/// under these names.
const RESERVED: [&str; 3] = ["ema", "buffers", SKIPPED];

/// The state of [`Optimizer::skipping`].
pub(crate) const SKIPPED: &str = "skipped";

/// Checks that each state can have a folder of its own, named after it.
fn check_state_names(rule: &dyn UpdateRule) -> Result<()> {
    let is_plain = |name: &str| {
        let mut bytes = name.bytes();
        !name.is_empty() && bytes.all(|byte| b"_-".contains(&byte) || byte.is_ascii_alphanumeric())
    };
    let mut seen = RESERVED.to_vec();
    for OptimizerState { name, .. } in rule.state() {
        ensure!(
            !seen.contains(&name) && is_plain(name),
            Invalid,
            "the optimizer `{}` cannot have a state named `{name}`: give each state a name of its own, \
             of letters, digits, `_` and `-`, other than `ema`, `buffers` and `skipped`",
            rule.name()
        );
        seen.push(name);
    }
    Ok(())
}
