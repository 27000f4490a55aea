//! The memory of a run, predicted on a meta device before the run starts.

use meshgrad_autograd::{Buffer, Param, Values};
use meshgrad_models::{Model, TokenBatch};
use meshgrad_runtime::{Device, Kind, Properties, Tensor};

use crate::config::{Config, Reduction};
use crate::trainer::Trainer;
use crate::updater::Updater;
use crate::{Result, TrainError, checkpoint};

/// The memory that a run needs, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needed {
    /// The peak on the device: parameters, gradients, optimizer state, activations.
    pub device: u64,
    /// The copy of the training state that is written in the background, in host memory.
    pub saving: u64,
}

/// Predicts the memory of training `model` on a device with the properties `like`. Returns the
/// model, with its values, and the prediction; `None` if the model cannot run on a meta device,
/// because it reads values.
pub fn predict<M>(model: M, config: &Config, like: &Properties) -> (M, Option<Needed>)
where
    M: Model<Batch = TokenBatch>,
{
    let values = Values::take(&model);
    let mut like = like.clone();
    if let Some(gpu) = &mut like.gpu {
        // The meta device has more memory than the GPU, so that a prediction above the GPU's memory
        // does not fail.
        gpu.memory = usize::MAX / 4;
    }
    let (model, needed) = rehearse(model, config, &Device::meta(&like));
    values.restore();
    (model, needed.ok())
}

fn rehearse<M>(model: M, config: &Config, meta: &Device) -> (M, Result<Needed>)
where
    M: Model<Batch = TokenBatch>,
{
    let prepared = allocate(&model, meta)
        .and_then(|()| Updater::new(&model, meta, &config.optimizer, config.train.seed));
    let updater = match prepared {
        Ok(updater) => updater,
        Err(error) => return (model, Err(error)),
    };
    let mut trainer = Trainer::with(model, updater, Box::new(|_| 1.0), config, meta);
    let needed = needed(&mut trainer, config, meta);
    (trainer.model, needed)
}

fn needed<M>(trainer: &mut Trainer<M>, config: &Config, meta: &Device) -> Result<Needed>
where
    M: Model<Batch = TokenBatch>,
{
    let saved = saved_bytes(trainer);
    let rows = config.train.rows_of_pass(1);
    let passes = config.train.batch_size / rows;
    let count = match config.train.reduction {
        // Later passes need as much as the second.
        Reduction::Sum => passes.min(2),
        Reduction::Tree => passes,
    };
    let shape = [rows, config.train.seq_len];
    let zeros = vec![0i64; shape[0] * shape[1]];
    trainer.rehearse(count, || {
        let ids = Tensor::from_slice(meta, &shape, &zeros)?;
        let labels = Tensor::from_slice(meta, &shape, &zeros)?;
        Ok(TokenBatch::new(&ids, &labels))
    })?;
    Ok(Needed { device: meta.memory_stats().peak as u64, saving: saved })
}

/// Bytes of everything that a checkpoint copies.
fn saved_bytes<M: Model>(trainer: &Trainer<M>) -> u64 {
    let Trainer { model, updater, .. } = trainer;
    let params = model.params();
    let buffers = model.buffers();
    let values = params.iter().flat_map(Param::value);
    let values = values.chain(buffers.iter().flat_map(Buffer::value));
    let state = updater.state();
    let state = state.iter().flat_map(|part| part.tensors.iter().map(|(_, tensor)| tensor.clone()));
    let bytes = |tensor: Tensor| tensor.dtype().bytes(tensor.elements()) as u64;
    values.chain(state).map(bytes).sum()
}

/// Allocates parameters and buffers on `device`, a meta device.
fn allocate(model: &impl Model, device: &Device) -> Result<()> {
    allocate_params(model, device)?;
    checkpoint::init_buffers(model, device, 0)
}

/// Allocates the parameters of a model on `device`, except those that have a home. Their values are
/// set later.
pub(crate) fn allocate_params(model: &impl Model, device: &Device) -> Result<()> {
    let params = model.params().into_iter();
    for param in params.filter(|param| param.home().is_none()) {
        let (shape, dtype) = (param.shape(), param.spec().dtype);
        param.set(&Tensor::zeros(device, shape, dtype, Kind::Parameter)?)?;
    }
    Ok(())
}

/// Returns `model` if training it as `config` says fits in the memory that is free. Models whose
/// memory is unknown are taken to fit.
///
/// # Errors
/// [`TrainError::Memory`], with settings that fit, if there are any.
pub(crate) fn check<M>(model: M, config: &Config, device: &Device) -> Result<M>
where
    M: Model<Batch = TokenBatch>,
{
    match config.train.check_memory {
        true => check_against(Free::of(device)?, model, config, device),
        false => Ok(model),
    }
}

fn check_against<M>(free: Free, model: M, config: &Config, device: &Device) -> Result<M>
where
    M: Model<Batch = TokenBatch>,
{
    if free == Free::default() {
        return Ok(model);
    }
    let (mut model, needed) = predict(model, config, device.properties());
    let Some((name, needed, left)) = needed.and_then(|needed| free.lacks(needed, device)) else {
        return Ok(model);
    };

    let mut fits = None;
    for smaller in smaller(config) {
        let (same, needed) = predict(model, &smaller, device.properties());
        model = same;
        let Some(needed) = needed else { break };
        if free.lacks(needed, device).is_none() {
            fits = Some((settings(config, &smaller), needed.on(device)));
            break;
        }
    }
    Err(TrainError::Memory { device: name, needed, free: left, fits })
}

impl Needed {
    /// The bytes that are allocated in the memory of `device`.
    fn on(self, device: &Device) -> u64 {
        match device.is_gpu() {
            true => self.device,
            false => self.device + self.saving,
        }
    }
}

/// Bytes that are free; `None` where that is unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Free {
    device: Option<u64>,
    /// On the host, if the device is a GPU.
    host: Option<u64>,
}

impl Free {
    fn of(device: &Device) -> Result<Free> {
        let bytes = |device: &Device| -> Result<Option<u64>> {
            Ok(device.available_memory()?.map(|bytes| bytes as u64))
        };
        Ok(Free {
            device: bytes(device)?,
            host: match device.is_gpu() {
                true => bytes(&Device::cpu())?,
                false => None,
            },
        })
    }

    /// The name of the memory that is too small, and the bytes needed and free there.
    fn lacks(self, needed: Needed, device: &Device) -> Option<(String, u64, u64)> {
        let of_device = (device.to_string(), needed.on(device), self.device);
        let of_host = ("the host".to_owned(), needed.saving, self.host);
        let lacking = |(name, needed, free): (String, u64, Option<u64>)| {
            let free = free.filter(|free| needed > *free)?;
            Some((name, needed, free))
        };
        [of_device, of_host].into_iter().find_map(lacking)
    }
}

/// Configurations that train the same with less memory, the fastest first: smaller microbatches,
/// then any microbatch with activation checkpointing.
fn smaller(config: &Config) -> impl Iterator<Item = Config> + '_ {
    let batch = config.train.batch_size;
    let checkpointing = match config.train.activation_checkpointing {
        true => vec![true],
        false => vec![false, true],
    };
    let smaller = checkpointing.into_iter().flat_map(move |checkpointing| {
        let rows = (1..=config.train.micro_batch_size).rev();
        let rows = rows.filter(move |rows| batch.is_multiple_of(*rows));
        rows.map(move |rows| {
            let mut smaller = config.clone();
            smaller.train.micro_batch_size = rows;
            smaller.train.activation_checkpointing = checkpointing;
            smaller
        })
    });
    smaller.filter(move |smaller| smaller != config)
}

/// The settings that differ, as a configuration writes them.
fn settings(config: &Config, smaller: &Config) -> String {
    let (now, then) = (&config.train, &smaller.train);
    let mut settings = Vec::new();
    if now.micro_batch_size != then.micro_batch_size {
        settings.push(format!("train.micro_batch_size={}", then.micro_batch_size));
    }
    if now.activation_checkpointing != then.activation_checkpointing {
        settings.push("train.activation_checkpointing=true".to_owned());
    }
    settings.join(" with ")
}

#[cfg(test)]
mod tests {
    use meshgrad_autograd::Module;
    use meshgrad_models::Qwen3;

    use super::*;
    use crate::qwen3;

    #[test]
    fn faster_settings_are_tried_first() {
        let mut config = Config::default();
        (config.train.batch_size, config.train.micro_batch_size) = (12, 6);
        let tried: Vec<String> = smaller(&config).map(|it| settings(&config, &it)).collect();
        let expected = [
            "train.micro_batch_size=4",
            "train.micro_batch_size=3",
            "train.micro_batch_size=2",
            "train.micro_batch_size=1",
            "train.activation_checkpointing=true",
            "train.micro_batch_size=4 with train.activation_checkpointing=true",
        ];
        assert_eq!(tried[..6], expected);
        assert_eq!(tried.len(), 9);
    }

    const CONFIG: &str = r#"
        train = { batch_size = 8, micro_batch_size = 8, seq_len = 64 }
        model = { hidden_size = 32, moe_intermediate_size = 64 }
    "#;

    /// A run that does not fit is refused, with the fastest settings that do.
    #[test]
    fn settings_that_fit_are_found() {
        let config = Config::parse::<qwen3::Tables>(CONFIG, "the test", &[]).unwrap();
        let device = Device::cpu();
        let model = qwen3::model(&config, 257, None).unwrap();
        model.materialize(&device, 7).unwrap();
        let value = |model: &Qwen3| model.params()[0].value().unwrap().to_vec::<f32>().unwrap();
        let before = value(&model);

        let mut all: Vec<Config> = smaller(&config).collect();
        all.insert(0, config.clone());
        let mut model = Some(model);
        let peaks: Vec<u64> = all
            .iter()
            .map(|config| {
                let (same, needed) = predict(model.take().unwrap(), config, device.properties());
                model = Some(same);
                needed.unwrap().on(&device)
            })
            .collect();
        let mut model = model.unwrap();
        let smallest = peaks.iter().min().unwrap();
        assert!(smallest < &peaks[0]);

        for free in peaks.iter().chain([&(smallest - 1)]) {
            let first = peaks.iter().position(|peak| peak <= free);
            let memory = Free { device: Some(*free), host: None };
            let clone = model.clone();
            match (check_against(memory, clone, &config, &device), first) {
                (Ok(same), Some(0)) => model = same,
                (Err(TrainError::Memory { needed, fits, .. }), first) => {
                    assert_eq!(needed, peaks[0]);
                    let expected = first.map(|at| (settings(&config, &all[at]), peaks[at]));
                    assert_eq!(fits, expected);
                }
                (result, first) => panic!("{:?}, {first:?}", result.err()),
            }
            assert_eq!(value(&model), before);
        }
    }

    #[test]
    fn the_smaller_memory_decides() {
        let cpu = Device::cpu();
        let needed = Needed { device: 70, saving: 40 };
        let free = |device| Free { device: Some(device), host: None };
        assert_eq!(free(110).lacks(needed, &cpu), None);
        let lacking = Some(("cpu".to_owned(), 110, 109));
        assert_eq!(free(109).lacks(needed, &cpu), lacking);
        assert_eq!(Free::default().lacks(needed, &cpu), None);
    }
}
