//! AdamW over a model's parameters: its state, and one step.

use meshgrad_autograd::{Grads, Module, Param};
use meshgrad_runtime::ops::{self, AdamW, AdamWOperands, AdamWTable, StepScalars};
use meshgrad_runtime::{DType, Device, Kind, Tensor};

use crate::Result;
use crate::config::OptimizerConfig;

/// AdamW with decoupled weight decay (Loshchilov & Hutter 2019), f32 state, gradients clipped by
/// their global norm.
///
/// Weight decay applies to parameters with two or more dims, not to norms and biases.
pub struct Optimizer {
    entries: Vec<Entry>,
    config: OptimizerConfig,
    /// The gradients of all parameters in one buffer.
    flat_gradient: Tensor,
    /// The learning rate and the step number change from step to step, so they are f32 scalars on
    /// the device.
    learning_rate: Tensor,
    step: Tensor,
    /// The operand table of the fused GPU kernel.
    table: AdamWTable,
}

/// A parameter and its running means.
pub struct Entry {
    /// The parameter.
    pub param: Param,
    /// The running mean of its gradient.
    pub exp_avg: Tensor,
    /// The running mean of its squared gradient.
    pub exp_avg_sq: Tensor,
}

impl Optimizer {
    /// An optimizer of `model`'s parameters with zero state, and the gradients that it reads.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn new(
        model: &impl Module,
        device: &Device,
        config: &OptimizerConfig,
    ) -> Result<(Optimizer, Grads)> {
        let params = model.params();
        let elements = params.iter().map(|param| param.shape().elements()).sum();
        let flat_gradient = Tensor::zeros(device, &[elements], DType::F32, Kind::Gradient)?;
        let grads = Grads::over(&params, &flat_gradient)?;

        let zeros =
            |shape: &[usize]| Tensor::zeros(device, shape, DType::F32, Kind::OptimizerState);
        let entry = |param: Param| {
            let (exp_avg, exp_avg_sq) = (zeros(param.shape())?, zeros(param.shape())?);
            Ok(Entry {
                param,
                exp_avg,
                exp_avg_sq,
            })
        };
        let entries: Result<Vec<Entry>> = params.into_iter().map(entry).collect();
        let optimizer = Optimizer {
            entries: entries?,
            config: config.clone(),
            flat_gradient,
            learning_rate: zeros(&[])?,
            step: zeros(&[])?,
            table: AdamWTable::default(),
        };
        Ok((optimizer, grads))
    }

    /// The parameters with their state, in the model's order.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Applies step `step` (from 1) at `learning_rate` and clears the gradients:
    /// [`Optimizer::begin`], then [`Optimizer::apply`].
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

    /// Updates the parameters with the numbers that [`Optimizer::begin`] wrote, and clears the
    /// gradients.
    ///
    /// `grads` are sums over `weight` tokens (an f32 scalar). Returns the global norm of the mean
    /// gradient before clipping, an f32 scalar. Does not wait for the device.
    ///
    /// # Errors
    /// When a parameter has no gradient buffer.
    pub fn apply(&mut self, grads: &mut Grads, weight: &Tensor) -> Result<Tensor> {
        let gradients = grads.all()?;
        let norm = ops::global_norm(&[&self.flat_gradient])?;
        let (scale, norm) = ops::clip_scale(&norm, weight, self.config.max_grad_norm)?;
        let scalars = StepScalars {
            learning_rate: &self.learning_rate,
            step: &self.step,
            scale: &scale,
        };
        let values: Vec<Tensor> = gradients
            .iter()
            .map(|(param, _)| param.value())
            .collect::<Result<_, _>>()?;
        let operands: Vec<AdamWOperands<'_>> = self
            .entries
            .iter()
            .zip(values.iter().zip(&gradients))
            .map(|(entry, (value, (param, gradient)))| AdamWOperands {
                param: value,
                gradient,
                exp_avg: &entry.exp_avg,
                exp_avg_sq: &entry.exp_avg_sq,
                constants: constants(&self.config, param),
                rounding: None,
            })
            .collect();
        self.table.step(&operands, scalars)?;
        drop(operands);
        grads.clear();
        Ok(norm)
    }
}

fn constants(config: &OptimizerConfig, param: &Param) -> AdamW {
    let decays = param.shape().len() > 1;
    AdamW {
        beta1: config.beta1,
        beta2: config.beta2,
        eps: config.eps,
        weight_decay: if decays { config.weight_decay } else { 0.0 },
    }
}
