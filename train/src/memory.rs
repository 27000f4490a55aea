//! The memory of a run, predicted on a meta device before the run starts: of every rank, and of all
//! ranks of a host together.

use std::fs;

use meshgrad_autograd::{Buffer, Module, Param, Values, Visitor};
use meshgrad_comm::Plan;
use meshgrad_models::{Compute, Loss, Model, TokenBatch};
use meshgrad_runtime::{Device, Error as RuntimeError, Kind, Properties, Tensor};
use serde::{Deserialize, Serialize};

use crate::config::{Config, Reduction};
use crate::ranks::{RunRanks, check_ranks};
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

/// Predicts the memory of training `model` on a device with the properties `like`, on a single rank;
/// `None` if the model cannot run on a meta device, because it reads values.
pub fn predict<M>(model: &M, config: &Config, like: &Properties) -> Option<Needed>
where
    M: Model<Batch = TokenBatch>,
{
    predict_rank(model, config, like, 0, 1)
}

/// As [`predict`], for rank `rank` of `ranks` on the mesh of `config.parallel`; `None` also if
/// `config` does not fit that many ranks.
pub fn predict_rank<M>(
    model: &M,
    config: &Config,
    like: &Properties,
    rank: usize,
    ranks: usize,
) -> Option<Needed>
where
    M: Model<Batch = TokenBatch>,
{
    let mut like = like.clone();
    if let Some(gpu) = &mut like.gpu {
        // The meta device has more memory than the GPU, so that a prediction above the GPU's memory
        // does not fail.
        gpu.memory = usize::MAX / 4;
    }
    let meta = Device::meta(&like);
    let values = Values::take(model);
    let needed = match ranks {
        1 => RunRanks::new(None, config).and_then(|alone| rehearse(model, config, &meta, &alone)),
        _ => rehearse_rank(model, config, &meta, rank, ranks),
    };
    values.restore();
    needed.ok()
}

/// Rehearses one of several ranks. Its collectives send nothing.
fn rehearse_rank<M>(
    model: &M,
    config: &Config,
    like: &Device,
    rank: usize,
    ranks: usize,
) -> Result<Needed>
where
    M: Model<Batch = TokenBatch>,
{
    let mut needed = Err(TrainError::NoBatch);
    let world = Plan::new(ranks).map_err(RuntimeError::from)?.like(like);
    world.trace(rank, |rank| -> Result<()> {
        let ranks = RunRanks::new(Some(rank), config)?;
        needed = ranks.on_mesh(|| rehearse(model, config, rank.device(), &ranks));
        Ok(())
    })?;
    needed
}

fn rehearse<M>(model: &M, config: &Config, meta: &Device, ranks: &RunRanks<'_>) -> Result<Needed>
where
    M: Model<Batch = TokenBatch>,
{
    ranks.divide(model)?;
    allocate(model, meta)?;
    let updater = Updater::new(model, meta, &config.optimizer, config.train.seed)?;
    let mut trainer = Trainer::with(OnMeta(model), updater, Box::new(|_| 1.0), config, meta);

    let saved = saved_bytes(&trainer)?;
    let rows = config.train.rows_of_pass(ranks.batch_parts());
    let passes = config.train.batch_size / rows;
    let count = match config.train.reduction {
        // Later passes need as much as the second.
        Reduction::Sum => passes.min(2),
        Reduction::Tree => passes,
    };
    let part = ranks.part_of_batch(rows, config.train.seq_len)?;
    let shape = [part.rows.len(), config.train.seq_len];
    let zeros = vec![0i64; shape[0] * shape[1]];
    trainer.rehearse(count, || {
        let tensor = || part.tensor(Tensor::from_slice(meta, &shape, &zeros)?);
        Ok(TokenBatch::new(&tensor()?, &tensor()?))
    })?;
    Ok(Needed { device: meta.memory_stats().peak as u64, saving: saved })
}

/// A borrowed model, of which a rehearsal needs the loss only.
struct OnMeta<'m, M>(&'m M);

impl<M: Model> Module for OnMeta<'_, M> {
    fn visit(&self, visitor: &mut dyn Visitor) {
        self.0.visit(visitor);
    }
}

impl<M: Model> Model for OnMeta<'_, M> {
    type Batch = M::Batch;

    fn loss(&self, batch: &M::Batch, compute: Compute) -> Result<Loss, RuntimeError> {
        self.0.loss(batch, compute)
    }
}

/// Bytes of everything that a checkpoint copies.
fn saved_bytes<M: Model>(trainer: &Trainer<M>) -> Result<u64> {
    let Trainer { model, updater, .. } = trainer;
    let (params, buffers) = (model.params(), model.buffers());
    let values = params.iter().map(Param::kept).chain(buffers.iter().map(Buffer::value));
    let state = updater.state().into_iter().flat_map(|part| part.tensors);
    let all = values.chain(state.map(|(_, tensor)| Ok(tensor)));
    let bytes = |tensor: Tensor| tensor.dtype().bytes(tensor.elements()) as u64;
    all.map(|tensor| Ok(bytes(tensor?))).sum()
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

/// Checks that training `model` as `config` says fits in the memory that is free, with all ranks of a
/// host together. Models whose memory is unknown are taken to fit. All ranks make this call, before
/// [`RunRanks::divide`].
///
/// # Errors
/// [`TrainError::Memory`], with settings that fit, if there are any.
pub(crate) fn check<M>(
    model: &M,
    config: &Config,
    device: &Device,
    ranks: &RunRanks<'_>,
) -> Result<()>
where
    M: Model<Batch = TokenBatch>,
{
    if !config.train.check_memory {
        return Ok(());
    }
    let (host, free) = (host(), Free::of(device)?);
    check_against(config, ranks.count(), |config| {
        let (like, count) = (device.properties(), ranks.count());
        let needed = predict_rank(model, config, like, ranks.rank(), count);
        let own = needed.map(|needed| needed.shares(device, &host, free));
        let all: Option<Vec<_>> = ranks.gather(own)?.into_iter().collect();
        Ok(all.map(|all| all.concat()))
    })
}

/// Checks, before threads and files exist, that `model` fits in the memory that is free when it is
/// trained by threads of this process, one rank on each of `devices`.
///
/// # Errors
/// [`TrainError::Memory`], with settings that fit, if there are any.
pub fn check_threads<M>(model: &M, config: &Config, devices: &[Device]) -> Result<()>
where
    M: Model<Batch = TokenBatch>,
{
    if !config.train.check_memory {
        return Ok(());
    }
    let count = devices.len();
    let free = devices.iter().map(Free::of).collect::<Result<Vec<Free>>>()?;
    check_against(config, count, |config| {
        let stride = count.div_ceil(PREDICTED).max(1);
        let mut needed = Needed { device: 0, saving: 0 };
        let mut shares = Vec::new();
        for (rank, device) in devices.iter().enumerate() {
            if rank % stride == 0 {
                match predict_rank(model, config, device.properties(), rank, count) {
                    Some(of_rank) if stride == 1 => needed = of_rank,
                    Some(of_rank) => needed = needed.max(of_rank),
                    None => return Ok(None),
                }
            }
            shares.extend(needed.shares(device, "", free[rank]));
        }
        Ok(Some(shares))
    })
}

/// The most ranks of a host that are predicted one by one. Of more, as many at equal distances stand
/// for the others, which differ by a few rows.
const PREDICTED: usize = 8;

/// Checks that `config` fits. `shares` returns what all ranks need, or `None` if that is unknown.
fn check_against(
    config: &Config,
    ranks: usize,
    mut shares: impl FnMut(&Config) -> Result<Option<Vec<Share>>>,
) -> Result<()> {
    let Some(lacking) = shares(config)?.and_then(|all| lacking(&all)) else {
        return Ok(());
    };
    let mut need = |smaller: &Config| -> Result<Option<(String, u64)>> {
        let fitting = shares(smaller)?.filter(|all| self::lacking(all).is_none());
        let needed = fitting.map(|all| total(&all, &lacking.memory));
        Ok(needed.map(|needed| (settings(config, smaller), needed)))
    };
    let all = smaller(config).filter(|smaller| check_ranks(smaller, ranks).is_ok());
    let all: Vec<Config> = all.collect();
    let mut fits = None;
    if let Some((least, others)) = all.split_last() {
        // If the last does not fit, none does.
        fits = need(least)?;
        for smaller in others {
            if fits.is_none() {
                break;
            }
            if let Some(faster) = need(smaller)? {
                fits = Some(faster);
                break;
            }
        }
    }
    let Lacking { name, needed, free, .. } = lacking;
    Err(TrainError::Memory { device: name, needed, free, fits })
}

/// A name for this host that other hosts do not have.
fn host() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default()
}

/// What a rank needs of a memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Share {
    /// The host and the name, which identify the memory.
    memory: (String, String),
    needed: u64,
    /// Bytes that are free; `None` if that is unknown.
    free: Option<u64>,
}

/// A memory that is too small.
struct Lacking {
    memory: (String, String),
    name: String,
    needed: u64,
    free: u64,
}

/// The bytes that all ranks need of a memory.
fn total(shares: &[Share], memory: &(String, String)) -> u64 {
    shares.iter().filter(|share| share.memory == *memory).map(|share| share.needed).sum()
}

/// The first memory that is too small for all ranks that use it.
fn lacking(shares: &[Share]) -> Option<Lacking> {
    shares.iter().find_map(|share| {
        let memory = &share.memory;
        let same = shares.iter().filter(|other| other.memory == *memory);
        let free = same.clone().filter_map(|it| it.free).min()?;
        let (needed, count) = (total(shares, memory), same.count());
        let name = match count {
            1 => memory.1.clone(),
            _ => format!("{} for {count} ranks", memory.1),
        };
        (needed > free).then(|| Lacking { memory: memory.clone(), name, needed, free })
    })
}

impl Needed {
    /// What is needed of the memory of `device` on `host`, and of the host's if that is another.
    fn shares(self, device: &Device, host: &str, free: Free) -> Vec<Share> {
        let share =
            |name: String, needed, free| Share { memory: (host.to_owned(), name), needed, free };
        match device.is_gpu() {
            false => vec![share(device.to_string(), self.device + self.saving, free.device)],
            true => vec![
                share(device.to_string(), self.device, free.device),
                share("the host".to_owned(), self.saving, free.host),
            ],
        }
    }

    /// The larger bytes of each memory.
    fn max(self, other: Needed) -> Needed {
        Needed { device: self.device.max(other.device), saving: self.saving.max(other.saving) }
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
        let need = |config: &Config| predict(&model, config, device.properties()).unwrap();
        let of_cpu = |needed: Needed| needed.device + needed.saving;
        let peaks: Vec<u64> = all.iter().map(|config| of_cpu(need(config))).collect();
        let smallest = peaks.iter().min().unwrap();
        assert!(smallest < &peaks[0]);

        for free in peaks.iter().chain([&(smallest - 1)]) {
            let first = peaks.iter().position(|peak| peak <= free);
            let memory = Free { device: Some(*free), host: None };
            let checked = check_against(&config, 1, |config| {
                Ok(Some(need(config).shares(&device, "", memory)))
            });
            match (checked, first) {
                (Ok(()), Some(0)) => {}
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

    /// The ranks of a host need its memory together, those of another host do not.
    #[test]
    fn ranks_of_a_host_are_summed() {
        let cpu = Device::cpu();
        let needed = Needed { device: 70, saving: 40 };
        let shares = |host: &str, free| {
            let free = Free { device: free, host: None };
            needed.shares(&cpu, host, free)
        };
        let lacks = |shares: &[Vec<Share>]| {
            let lacking = lacking(&shares.concat())?;
            Some((lacking.name, lacking.needed, lacking.free))
        };
        assert_eq!(lacks(&[shares("a", Some(110))]), None);
        assert_eq!(lacks(&[shares("a", Some(109))]), Some(("cpu".to_owned(), 110, 109)));
        assert_eq!(lacks(&[shares("a", Some(200)), shares("b", Some(200))]), None);
        let both = [shares("a", Some(220)), shares("b", Some(200)), shares("b", Some(219))];
        assert_eq!(lacks(&both), Some(("cpu for 2 ranks".to_owned(), 220, 200)));
        assert_eq!(lacks(&[shares("a", None), shares("a", None)]), None);
    }
}
