//! A model in training: one step, one validation. The loop around them is the caller's.

use meshgrad_autograd::{Grads, Tape};
use meshgrad_models::balance::update_router_bias;
use meshgrad_models::{Balancing, Compute, Loss, Qwen3};
use meshgrad_runtime::{AsyncRead, DType, Device, Tensor, ops};

use crate::Result;
use crate::config::{ComputeDType, Config};
use crate::optimizer::Optimizer;
use crate::sampler::{Batch, Order, Windows, validation_windows};
use crate::schedule::Schedule;
use crate::tokens::Tokens;

/// A model, its optimizer, and what they need to do a step.
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

/// What a step did. The tensors are scalars, f32, that nobody has to wait for.
pub struct Outcome {
    /// The step, from 1.
    pub step: u64,
    /// Its learning rate.
    pub learning_rate: f64,
    /// Cross-entropy summed over tokens, in nats.
    pub loss: Tensor,
    /// How many tokens that is.
    pub weight: Tensor,
    /// The global norm of the gradient before clipping.
    pub grad_norm: Tensor,
    /// How many tokens each expert of each sparse layer got, [layers, experts] f32, summed over
    /// microbatches; none without experts.
    pub expert_counts: Option<Tensor>,
}

/// What a step's tensors say.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// Mean cross-entropy in nats a token.
    pub loss: f64,
    /// The global norm of the gradient before clipping.
    pub grad_norm: f64,
    /// Each expert's share of the tokens over all layers; empty without experts.
    pub expert_load: Vec<f64>,
    /// The largest share of an expert over the mean share, in the layer where it is largest: 1 when
    /// every layer uses its experts alike. None without experts.
    pub expert_imbalance: Option<f64>,
}

/// What a step did, on its way to the host.
pub struct PendingOutcome {
    /// The step, from 1.
    pub step: u64,
    /// Its learning rate.
    pub learning_rate: f64,
    loss: AsyncRead<f32>,
    weight: AsyncRead<f32>,
    grad_norm: AsyncRead<f32>,
    /// With the number of experts.
    expert_counts: Option<(AsyncRead<f32>, usize)>,
}

impl Outcome {
    /// Reads the tensors: waits until the step is done.
    ///
    /// # Errors
    /// When the device has no values.
    pub fn read(&self) -> Result<Measured> {
        self.later()?.wait()
    }

    /// Begins to read the tensors. Whoever waits for them waits for this step, and not for those that
    /// were begun after it.
    ///
    /// # Errors
    /// When the device has no values.
    pub fn later(&self) -> Result<PendingOutcome> {
        let counts = self.expert_counts.as_ref();
        let counts = counts.map(|counts| Ok((counts.read_async()?, counts.extent(-1)?)));
        Ok(PendingOutcome {
            step: self.step,
            learning_rate: self.learning_rate,
            loss: self.loss.read_async()?,
            weight: self.weight.read_async()?,
            grad_norm: self.grad_norm.read_async()?,
            expert_counts: counts.transpose().map_err(crate::TrainError::Runtime)?,
        })
    }
}

impl PendingOutcome {
    /// Waits until the step is done.
    ///
    /// # Errors
    /// When its work failed.
    pub fn wait(self) -> Result<Measured> {
        let layers = match self.expert_counts {
            Some((counts, experts)) => of_layers(&counts.wait()?, experts),
            None => Vec::new(),
        };
        Ok(Measured {
            loss: sum(self.loss)? / sum(self.weight)?,
            grad_norm: sum(self.grad_norm)?,
            expert_load: shares(&layers),
            expert_imbalance: layers
                .iter()
                .map(|counts| imbalance(counts))
                .reduce(f64::max),
        })
    }
}

/// The value of a scalar.
fn sum(reading: AsyncRead<f32>) -> Result<f64> {
    Ok(reading.wait()?.into_iter().map(f64::from).sum())
}

/// The tokens of each expert, layer by layer.
fn of_layers(counts: &[f32], experts: usize) -> Vec<Vec<f64>> {
    let layer = |counts: &[f32]| counts.iter().copied().map(f64::from).collect();
    counts.chunks_exact(experts).map(layer).collect()
}

/// Each expert's share of the tokens of all layers.
fn shares(layers: &[Vec<f64>]) -> Vec<f64> {
    let all: f64 = layers.iter().flatten().sum();
    let experts = layers.first().map_or(0, Vec::len);
    let count = |expert: usize| layers.iter().map(|counts| counts[expert]).sum::<f64>();
    (0..experts).map(|expert| count(expert) / all).collect()
}

/// The largest share over the mean share.
fn imbalance(counts: &[f64]) -> f64 {
    let largest = counts.iter().copied().fold(0.0, f64::max);
    largest * counts.len() as f64 / counts.iter().sum::<f64>()
}

impl Trainer {
    /// A trainer of `model`, whose parameters have values, under `config`.
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

    /// Does step `step` (from 1): the gradients of its batch, microbatch by microbatch, and the
    /// change of the parameters. A function of the parameters, the state, and `step`.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn step(
        &mut self,
        step: u64,
        order: &Order,
        windows: Windows,
        tokens: &Tokens<'_>,
    ) -> Result<Outcome> {
        let rows = self.config.train.batch_size;
        let mut sums: Option<Sums> = None;
        for first in (0..rows).step_by(self.config.train.micro_batch_size) {
            let last = (first + self.config.train.micro_batch_size).min(rows);
            let batch = gather(windows, order.windows(step, first..last), tokens);
            let sum = Sums::of(self.accumulate(&batch, last - first)?);
            sums = Some(match sums {
                Some(sums) => sums.plus(&sum)?,
                None => sum,
            });
        }

        let Some(sums) = sums else {
            return Err(crate::TrainError::NoBatch);
        };
        let learning_rate = self.config.optimizer.learning_rate * self.schedule.factor(step);
        let grad_norm = self
            .optimizer
            .step(&mut self.grads, &sums.weight, step, learning_rate)?;
        self.balance(&sums.expert_counts)?;
        Ok(Outcome {
            step,
            learning_rate,
            loss: sums.loss,
            weight: sums.weight,
            grad_norm,
            expert_counts: stacked(&sums.expert_counts)?,
        })
    }

    /// Steers the routers away from the experts with many tokens. Only ever between steps, so that
    /// every microbatch and every recomputation of a step sees the same biases.
    fn balance(&self, expert_counts: &[Tensor]) -> Result<()> {
        let rate = self.config.balancing.bias_update_rate;
        if rate > 0.0 {
            for (bias, counts) in self.model.router_biases().zip(expert_counts) {
                update_router_bias(&bias.value, counts, rate)?;
            }
        }
        Ok(())
    }

    /// Adds the gradients of a microbatch of `rows` sequences.
    fn accumulate(&mut self, batch: &Batch, rows: usize) -> Result<Loss> {
        let (ids, labels) = self.tensors(batch, rows)?;
        let (loss, tape) = Tape::record(|| {
            let loss = self.model.loss(&ids, &labels, self.compute, self.balancing);
            Ok(loss)
        })?;
        let loss = loss?;
        let one = ops::full(&self.device, loss.total.shape(), loss.total.dtype(), 1.0)?;
        tape.backward(&[(&loss.total, one)], &mut self.grads)?;
        Ok(loss)
    }

    /// Mean cross-entropy over the first `batches` batches of held-out windows (all, if 0), in nats
    /// a token.
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
            let measured = self
                .model
                .loss(&ids, &labels, compute, Balancing::default())?;
            sums.push((
                measured.cross_entropy.read_async()?,
                measured.weight.read_async()?,
            ));
        }
        let (mut loss, mut weight) = (0.0, 0.0);
        for (of_loss, of_weight) in sums {
            loss += sum(of_loss)?;
            weight += sum(of_weight)?;
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
    // Windows lie inside of the tokens they were made for.
    Batch::gather(windows, chosen, |at| tokens.get(at).unwrap_or(0))
}

/// What microbatches add up to.
struct Sums {
    loss: Tensor,
    weight: Tensor,
    /// Of each sparse layer.
    expert_counts: Vec<Tensor>,
}

impl Sums {
    fn of(loss: Loss) -> Sums {
        Sums {
            loss: loss.cross_entropy,
            weight: loss.weight,
            expert_counts: loss.expert_counts,
        }
    }

    fn plus(&self, other: &Sums) -> Result<Sums> {
        let layers = self.expert_counts.iter().zip(&other.expert_counts);
        let expert_counts: Result<Vec<Tensor>> = layers.map(|(a, b)| Ok(ops::add(a, b)?)).collect();
        Ok(Sums {
            loss: ops::add(&self.loss, &other.loss)?,
            weight: ops::add(&self.weight, &other.weight)?,
            expert_counts: expert_counts?,
        })
    }
}

/// Tensors of one shape as one with a new first dim; none of none.
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

    /// Layers are balanced one by one: two that use opposite experts are not even together.
    #[test]
    fn the_load_is_that_of_the_worst_layer() {
        let device = Device::cpu();
        let scalar = |value: f32| Tensor::scalar(&device, value).unwrap();
        let layer = |counts: &[f32]| Tensor::from_slice(&device, &[4], counts).unwrap();
        let measured = |layers: &[Tensor]| {
            let outcome = Outcome {
                step: 1,
                learning_rate: 0.0,
                loss: scalar(6.0),
                weight: scalar(4.0),
                grad_norm: scalar(1.0),
                expert_counts: stacked(layers).unwrap(),
            };
            outcome.read().unwrap()
        };

        let opposite = measured(&[layer(&[8.0, 4.0, 2.0, 2.0]), layer(&[0.0, 4.0, 6.0, 6.0])]);
        assert_eq!(opposite.expert_load, [0.25; 4]);
        assert_eq!(opposite.expert_imbalance, Some(2.0));
        assert_eq!(opposite.loss, 1.5);

        let even = measured(&[layer(&[3.0; 4])]);
        assert_eq!(even.expert_imbalance, Some(1.0));

        let dense = measured(&[]);
        assert!(dense.expert_load.is_empty());
        assert_eq!(dense.expert_imbalance, None);
    }
}
