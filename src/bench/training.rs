//! A meshgrad model in training, whose steps are timed.

use meshgrad::models::families::qwen3::Qwen3Config;
use meshgrad::models::{Compute, Model, TokenBatch};
use meshgrad::prelude::*;
use meshgrad::train::config::OptimizerConfig;
use meshgrad::train::optimizer::Optimizer;
use meshgrad_harness::timed;

pub(crate) const LEARNING_RATE: f64 = 1e-4;

pub(crate) struct TimedModel {
    device: Device,
    model: Decoder,
    optimizer: Optimizer,
    ids: Tensor,
    dtype: DType,
    step: u64,
}

impl TimedModel {
    /// A model with random weights that computes in `dtype`; `shape` is [rows, tokens].
    pub(crate) fn new(
        config: &Qwen3Config,
        shape: [usize; 2],
        dtype: DType,
        device: &Device,
    ) -> anyhow::Result<TimedModel> {
        let model = Decoder::materialized(config, device, 1)?;
        let optimizer = Optimizer::new(&model, device, &OptimizerConfig::default(), 1)?;
        Ok(TimedModel {
            device: device.clone(),
            model,
            optimizer,
            ids: ids(device, shape, config.vocab_size)?,
            dtype,
            step: 0,
        })
    }

    fn step(&mut self) -> anyhow::Result<()> {
        self.step += 1;
        let compute = Compute::new(self.dtype);
        let batch = TokenBatch::new(&self.ids, &self.ids);
        let (loss, tape) = Tape::record(|| self.model.loss(&batch, compute))?;
        tape.backward(&loss.total, self.optimizer.grads())?;
        self.optimizer.step(&loss.weight, self.step, LEARNING_RATE)?;
        Ok(())
    }

    /// Seconds per step, the mean of `steps` consecutive ones.
    pub(crate) fn time_steps(&mut self, steps: usize) -> anyhow::Result<f64> {
        self.device.synchronize()?;
        let seconds = timed(|| -> anyhow::Result<()> {
            for _ in 0..steps {
                self.step()?;
            }
            Ok(self.device.synchronize()?)
        })?;
        Ok(seconds / steps as f64)
    }

    /// Peak bytes of the device's memory.
    pub(crate) fn peak(&self) -> usize {
        self.device.memory_stats().peak
    }
}

/// Arbitrary token ids, [rows, tokens].
pub(crate) fn ids(device: &Device, shape: [usize; 2], vocabulary: usize) -> Result<Tensor, Error> {
    let id = |at: usize| ((at * 7919 + at / 3) % vocabulary) as i64;
    let ids: Vec<i64> = (0..shape[0] * shape[1]).map(id).collect();
    Tensor::from_slice(device, &shape, &ids)
}
