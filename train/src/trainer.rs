//! Training steps and validation passes of a model. The caller writes the loop.

use std::time::Instant;

use meshgrad_autograd::{Grads, Tape};
use meshgrad_models::balance::update_router_bias;
use meshgrad_models::{Balancing, Compute, Qwen3};
use meshgrad_runtime::{AsyncRead, DType, Device, Tensor, ops};

use crate::config::{ComputeDType, Config};
use crate::metrics::Record;
use crate::optimizer::Optimizer;
use crate::sampler::{Batch, Order, Windows, validation_windows};
use crate::schedule::Schedule;
use crate::tokens::Tokens;
use crate::{Result, TrainError};

/// A model, its optimizer, and the state of a training step.
pub struct Trainer {
    /// The model.
    pub model: Qwen3,
    /// Its optimizer.
    pub optimizer: Optimizer,
    grads: Grads,
    schedule: Schedule,
    compute: Compute,
    balancing: Balancing,
    device: Device,
    config: Config,
}

/// A step that the host has enqueued, with asynchronous reads of its results.
pub struct PendingStep {
    /// The step, from 1.
    pub step: u64,
    learning_rate: f64,
    /// Cross-entropy summed over tokens, in nats.
    loss: AsyncRead<f32>,
    /// The number of tokens in the loss.
    weight: AsyncRead<f32>,
    /// The global norm of the gradient before clipping.
    grad_norm: AsyncRead<f32>,
    /// Tokens per expert of each sparse layer, [layers, experts], and the number of experts.
    expert_counts: Option<(AsyncRead<f32>, usize)>,
    /// When the host started the step.
    pub started: Instant,
    /// When the host had enqueued the whole step. A GPU may still be running it.
    pub enqueued: Instant,
    kernel_launches: Option<u64>,
}

impl PendingStep {
    /// Starts to read the results: `loss`, `weight` and `grad_norm` are f32 scalars;
    /// `expert_counts` has one tensor \[experts\], f32, per sparse layer.
    ///
    /// # Errors
    /// When the device stores no values.
    fn new(
        step: u64,
        learning_rate: f64,
        [loss, weight, grad_norm]: [&Tensor; 3],
        expert_counts: &[Tensor],
    ) -> Result<PendingStep> {
        let read_counts =
            |counts: Tensor| -> Result<_> { Ok((counts.read_async()?, counts.extent(-1)?)) };
        Ok(PendingStep {
            step,
            learning_rate,
            loss: loss.read_async()?,
            weight: weight.read_async()?,
            grad_norm: grad_norm.read_async()?,
            expert_counts: stacked(expert_counts)?.map(read_counts).transpose()?,
            started: Instant::now(),
            enqueued: Instant::now(),
            kernel_launches: None,
        })
    }

    /// Waits for this step, but not for later ones, and returns its metrics. The caller adds the
    /// tokens per second and the validation loss.
    ///
    /// # Errors
    /// When the step's work failed on the device.
    pub fn wait(self) -> Result<Record> {
        let layers = match self.expert_counts {
            Some((counts, experts)) => by_layer(&counts.wait()?, experts),
            None => Vec::new(),
        };
        Ok(Record {
            step: self.step,
            loss: scalar(self.loss)? / scalar(self.weight)?,
            lr: self.learning_rate,
            grad_norm: scalar(self.grad_norm)?,
            expert_load: layers.iter().map(|counts| load(counts)).reduce(f64::max),
            expert_shares: shares(&layers),
            kernel_launches: self.kernel_launches,
            ..Record::default()
        })
    }
}

/// The value of a scalar.
fn scalar(read: AsyncRead<f32>) -> Result<f64> {
    Ok(read.wait()?.into_iter().map(f64::from).sum())
}

/// Splits the counts of all layers into tokens per expert of each layer.
fn by_layer(counts: &[f32], experts: usize) -> Vec<Vec<f64>> {
    let layer = |counts: &[f32]| counts.iter().copied().map(f64::from).collect();
    counts.chunks_exact(experts).map(layer).collect()
}

/// Each expert's share of the tokens over all layers.
fn shares(layers: &[Vec<f64>]) -> Vec<f64> {
    let all: f64 = layers.iter().flatten().sum();
    let experts = layers.first().map_or(0, Vec::len);
    let count = |expert: usize| layers.iter().map(|counts| counts[expert]).sum::<f64>();
    (0..experts).map(|expert| count(expert) / all).collect()
}

/// The load of the busiest expert: its tokens over the mean tokens per expert.
fn load(counts: &[f64]) -> f64 {
    let largest = counts.iter().copied().fold(0.0, f64::max);
    largest * counts.len() as f64 / counts.iter().sum::<f64>()
}

impl Trainer {
    /// A trainer of `model`, whose parameters must have values, with the settings of `config`.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn new(mut model: Qwen3, config: &Config, device: &Device) -> Result<Trainer> {
        if config.balancing.bias_update_rate > 0.0 {
            model.add_router_biases(device)?;
        }
        let (optimizer, grads) = Optimizer::new(&model, device, &config.optimizer)?;
        Ok(Trainer {
            balancing: Balancing {
                auxiliary: model.config().router_aux_loss_coef,
                z: config.balancing.z_loss_coef,
            },
            model,
            optimizer,
            grads,
            schedule: Schedule::from_config(&config.schedule, config.train.steps),
            compute: Compute {
                dtype: dtype(config.train.dtype),
                checkpointing: config.train.activation_checkpointing,
            },
            device: device.clone(),
            config: config.clone(),
        })
    }

    /// Enqueues step `step` (from 1): gradients of its batch, one microbatch at a time, then the
    /// optimizer. The result depends on the parameters, the optimizer state and `step` only.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn step(
        &mut self,
        step: u64,
        order: &Order,
        windows: Windows,
        tokens: &Tokens<'_>,
    ) -> Result<PendingStep> {
        let (started, before) = (Instant::now(), self.device.work().kernel_launches);
        let rows = self.config.train.batch_size;
        let mut sums: Vec<Tensor> = Vec::new();
        for first in (0..rows).step_by(self.config.train.micro_batch_size) {
            let last = (first + self.config.train.micro_batch_size).min(rows);
            let batch = gather(windows, order.windows(step, first..last), tokens);
            let of_batch = self.accumulate(&batch, last - first)?;
            sums = match sums.is_empty() {
                true => of_batch,
                false => added(&sums, &of_batch)?,
            };
        }

        let [loss, weight, expert_counts @ ..] = &sums[..] else {
            return Err(TrainError::NoBatch);
        };
        let learning_rate = self.config.optimizer.learning_rate * self.schedule.factor(step);
        let grad_norm = self
            .optimizer
            .step(&mut self.grads, weight, step, learning_rate)?;
        self.balance(expert_counts)?;
        let scalars = [loss, weight, &grad_norm];
        let pending = PendingStep::new(step, learning_rate, scalars, expert_counts)?;
        let launches = self.device.work().kernel_launches - before;
        Ok(PendingStep {
            started,
            enqueued: Instant::now(),
            kernel_launches: self.device.is_gpu().then_some(launches),
            ..pending
        })
    }

    /// Updates the router biases. This happens between steps only, so that every microbatch and
    /// every recomputation of a step uses the same biases.
    fn balance(&self, expert_counts: &[Tensor]) -> Result<()> {
        let rate = self.config.balancing.bias_update_rate;
        if rate > 0.0 {
            for (bias, counts) in self.model.router_biases().zip(expert_counts) {
                update_router_bias(&bias.value, counts, rate)?;
            }
        }
        Ok(())
    }

    /// Accumulates the gradients of a microbatch of `rows` sequences. Returns the values to sum
    /// over microbatches: cross-entropy, its weight, and the tokens per expert of each sparse
    /// layer.
    fn accumulate(&mut self, batch: &Batch, rows: usize) -> Result<Vec<Tensor>> {
        let (ids, labels) = self.tensors(batch, rows)?;
        let (loss, tape) = Tape::record(|| {
            let loss = self.model.loss(&ids, &labels, self.compute, self.balancing);
            Ok(loss)
        })?;
        let loss = loss?;
        let one = ops::full(&self.device, loss.total.shape(), loss.total.dtype(), 1.0)?;
        tape.backward(&[(&loss.total, one)], &mut self.grads)?;
        let sums = [loss.cross_entropy, loss.weight];
        Ok(sums.into_iter().chain(loss.expert_counts).collect())
    }

    /// Mean cross-entropy over the first `batches` batches of held-out windows (0: all), in nats
    /// per token.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn validate(&self, windows: Windows, tokens: &Tokens<'_>, batches: usize) -> Result<f64> {
        let rows = self.config.train.batch_size;
        let all = windows.count().div_ceil(rows);
        let batches = if batches == 0 { all } else { batches.min(all) };
        let mut sums = Vec::with_capacity(batches);
        for at in 0..batches {
            let chosen = validation_windows(windows, rows, at);
            let count = chosen.len();
            let batch = gather(windows, chosen, tokens);
            let (ids, labels) = self.tensors(&batch, count)?;
            let compute = Compute {
                checkpointing: false,
                ..self.compute
            };
            let loss = self
                .model
                .loss(&ids, &labels, compute, Balancing::default())?;
            sums.push((loss.cross_entropy.read_async()?, loss.weight.read_async()?));
        }
        let (mut loss, mut weight) = (0.0, 0.0);
        for (of_loss, of_weight) in sums {
            loss += scalar(of_loss)?;
            weight += scalar(of_weight)?;
        }
        Ok(loss / weight)
    }

    /// The dtype of activations.
    pub fn dtype(&self) -> DType {
        self.compute.dtype
    }

    fn tensors(&self, batch: &Batch, rows: usize) -> Result<(Tensor, Tensor)> {
        let shape = [rows, batch.input_ids.len() / rows.max(1)];
        let ids = Tensor::from_slice(&self.device, &shape, &batch.input_ids)?;
        let labels = Tensor::from_slice(&self.device, &shape, &batch.labels)?;
        Ok((ids, labels))
    }
}

/// The dtype that `train.dtype` names.
pub fn dtype(choice: ComputeDType) -> DType {
    match choice {
        ComputeDType::F32 => DType::F32,
        ComputeDType::Bf16 => DType::BF16,
    }
}

fn gather(windows: Windows, chosen: impl IntoIterator<Item = usize>, tokens: &Tokens<'_>) -> Batch {
    // Windows are created for the same tokens, so no position is out of range and the default is
    // never used.
    Batch::gather(windows, chosen, |at| tokens.get(at).unwrap_or(0))
}

/// The elementwise sums of two lists of tensors.
fn added(a: &[Tensor], b: &[Tensor]) -> Result<Vec<Tensor>> {
    let pairs = a.iter().zip(b);
    pairs.map(|(a, b)| Ok(ops::add(a, b)?)).collect()
}

/// Tensors of one shape stacked along a new first dim. `None` for no tensors.
fn stacked(tensors: &[Tensor]) -> Result<Option<Tensor>> {
    let rows: meshgrad_runtime::Result<Vec<Tensor>> =
        tensors.iter().map(|tensor| tensor.unsqueeze(0)).collect();
    let rows = rows?;
    let rows: Vec<&Tensor> = rows.iter().collect();
    match rows.is_empty() {
        true => Ok(None),
        false => Ok(Some(ops::concat(&rows, 0)?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Load is measured per layer: two layers that prefer opposite experts do not cancel out.
    #[test]
    fn the_load_is_that_of_the_worst_layer() {
        let device = Device::cpu();
        let scalar = |value: f32| Tensor::scalar(&device, value).unwrap();
        let layer = |counts: &[f32]| Tensor::from_slice(&device, &[4], counts).unwrap();
        let measured = |layers: &[Tensor]| {
            let scalars = [&scalar(6.0), &scalar(4.0), &scalar(1.0)];
            let step = PendingStep::new(1, 0.0, scalars, layers).unwrap();
            step.wait().unwrap()
        };

        let opposite = measured(&[layer(&[8.0, 4.0, 2.0, 2.0]), layer(&[0.0, 4.0, 6.0, 6.0])]);
        assert_eq!(opposite.expert_shares, [0.25; 4]);
        assert_eq!(opposite.expert_load, Some(2.0));
        assert_eq!(opposite.loss, 1.5);

        let even = measured(&[layer(&[3.0; 4])]);
        assert_eq!(even.expert_load, Some(1.0));

        let dense = measured(&[]);
        assert!(dense.expert_shares.is_empty());
        assert_eq!(dense.expert_load, None);
    }
}
