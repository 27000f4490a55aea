//! The update of a model after backward: gradient norm, clipping, and a step of any optimizer.

use meshgrad_autograd::{Grads, Module, Param};
use meshgrad_runtime::ops::{self, StepScalars};
use meshgrad_runtime::{DType, Device, Kind, Tensor};

use crate::Result;
use crate::config::OptimizerConfig;
use crate::optim::{AdamW, AdamWConfig, Groups, Optimizer, Part, Rounding, State, parts};

/// Updates a model's parameters: gradients are divided by the weight of the loss, clipped by their
/// global norm, and passed to an [`Optimizer`].
pub struct Updater {
    params: Vec<Param>,
    optimizer: Box<dyn Optimizer>,
    max_grad_norm: f64,
    /// The gradients of all parameters in one buffer.
    flat_gradient: Tensor,
    /// The values that change from step to step are scalars on the device, f32.
    learning_rate: Tensor,
    step: Tensor,
}

impl Updater {
    /// An updater of `model`'s parameters with the AdamW of `config`, and the gradients that it
    /// reads. Weight decay applies to parameters with two or more dims, not to norms and biases.
    ///
    /// # Errors
    /// [`OptimError`](crate::optim::OptimError); when memory runs out.
    pub fn new(
        model: &impl Module,
        device: &Device,
        config: &OptimizerConfig,
    ) -> Result<(Updater, Grads)> {
        let constants = AdamWConfig {
            beta1: config.beta1,
            beta2: config.beta2,
            eps: config.eps,
            weight_decay: config.weight_decay,
            state_dtype: DType::F32,
            rounding: Rounding::Nearest,
        };
        Updater::with(model, device, config.max_grad_norm, |parts| {
            Ok(Box::new(AdamW::new(parts, constants, &Groups::default())?))
        })
    }

    /// An updater of `model`'s parameters that are not frozen, with the optimizer that `make`
    /// returns for them. Gradients are clipped to the global norm `max_grad_norm`; 0 disables
    /// clipping.
    ///
    /// # Errors
    /// Those of `make`; when memory runs out.
    pub fn with(
        model: &impl Module,
        device: &Device,
        max_grad_norm: f64,
        make: impl FnOnce(&[Part]) -> Result<Box<dyn Optimizer>>,
    ) -> Result<(Updater, Grads)> {
        let params = model.trained();
        let elements = params.iter().map(|param| param.shape().elements()).sum();
        let flat_gradient = Tensor::zeros(device, &[elements], DType::F32, Kind::Gradient)?;
        let grads = Grads::over(&params, &flat_gradient)?;
        let scalar = || Tensor::zeros(device, &[], DType::F32, Kind::OptimizerState);
        let updater = Updater {
            params,
            optimizer: make(&parts(model)?)?,
            max_grad_norm,
            flat_gradient,
            learning_rate: scalar()?,
            step: scalar()?,
        };
        Ok((updater, grads))
    }

    /// The optimizer's state. Writing to its tensors restores a saved state.
    pub fn state(&self) -> Vec<State> {
        self.optimizer.state()
    }

    /// Applies step `step` (from 1) at `learning_rate` and clears the gradients:
    /// [`Updater::begin`], then [`Updater::apply`].
    ///
    /// # Errors
    /// When a parameter has no gradient buffer.
    pub fn step(
        &mut self,
        grads: &mut Grads,
        weight: &Tensor,
        step: u64,
        learning_rate: f64,
    ) -> Result<Tensor> {
        self.begin(step, learning_rate)?;
        self.apply(grads, weight)
    }

    /// Writes the step number (from 1) and the learning rate to the device. For a step captured as
    /// a graph, call it before each launch, not during capture.
    ///
    /// # Errors
    /// When the device fails.
    pub fn begin(&self, step: u64, learning_rate: f64) -> Result<()> {
        ops::fill_into(&self.learning_rate, learning_rate)?;
        ops::fill_into(&self.step, step as f64)?;
        Ok(())
    }

    /// Updates the parameters with the numbers that [`Updater::begin`] wrote, and clears the
    /// gradients.
    ///
    /// `grads` are sums over `weight` tokens (a scalar, f32). Returns the global norm of their mean
    /// before clipping, a scalar, f32. Does not wait for the device.
    ///
    /// # Errors
    /// When a parameter has no gradient buffer.
    pub fn apply(&mut self, grads: &mut Grads, weight: &Tensor) -> Result<Tensor> {
        let gradients = grads.all()?;
        let gradients: Vec<Tensor> = gradients
            .into_iter()
            .map(|(_, gradient)| gradient)
            .collect();
        let norm = ops::global_norm(&[&self.flat_gradient])?;
        let (scale, norm) = ops::clip_scale(&norm, weight, self.max_grad_norm)?;
        let scalars = StepScalars {
            learning_rate: &self.learning_rate,
            step: &self.step,
            scale: &scale,
        };
        let parts = self
            .params
            .iter()
            .map(Part::whole)
            .collect::<Result<Vec<_>>>()?;
        self.optimizer.step(&parts, &gradients, scalars)?;
        drop(gradients);
        grads.clear();
        Ok(norm)
    }
}
