//! A model in training, as in a loop that a user would write, and the optimizer of the benches.

use meshgrad::collectives::full_concat;
use meshgrad::models::{Compute, Model, TokenBatch};
use meshgrad::prelude::*;
use meshgrad::train::config::{Algorithm, OptimizerConfig};
use meshgrad::train::optim::AdamWConfig;
use meshgrad::train::optimizer::Optimizer;
use meshgrad_harness::seconds;

const LEARNING_RATE: f64 = 1e-3;

/// AdamW with the constants of benches/torch/tiny.py.
pub(crate) fn adamw() -> OptimizerConfig {
    let constants = AdamWConfig { weight_decay: 0.1, beta2: 0.95, ..AdamWConfig::default() };
    OptimizerConfig::new(Algorithm::AdamW(constants), LEARNING_RATE)
}

pub(crate) struct Learner {
    model: Decoder,
    optimizer: Optimizer,
    dtype: DType,
    step: u64,
}

impl Learner {
    /// Trains `model`, whose parameters have values, with activations of `dtype`.
    pub(crate) fn new(
        model: Decoder,
        device: &Device,
        dtype: DType,
        config: &OptimizerConfig,
    ) -> anyhow::Result<Learner> {
        let optimizer = Optimizer::new(&model, device, config, 1)?;
        Ok(Learner { model, optimizer, dtype, step: 0 })
    }

    /// Runs a step. Returns its mean loss, and the seconds of forward, backward and optimizer.
    pub(crate) fn step(&mut self, batch: &TokenBatch) -> anyhow::Result<(f64, [f64; 3])> {
        self.step += 1;
        let compute = Compute::new(self.dtype);
        let (forward, recorded) = seconds(|| Tape::record(|| self.model.loss(batch, compute)));
        let (loss, tape) = recorded?;

        let grads = self.optimizer.grads();
        let (backward, done) = seconds(|| tape.backward(&loss.total, grads));
        done?;

        let (optimizer, norm) =
            seconds(|| self.optimizer.step(&loss.weight, self.step, LEARNING_RATE));
        norm?;
        // On ranks, each has a part of both.
        let sums = full_concat(&[&loss.sum, &loss.weight])?.to_vec::<f32>()?;
        Ok((f64::from(sums[0] / sums[1]), [forward, backward, optimizer]))
    }
}
