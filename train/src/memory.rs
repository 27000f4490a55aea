//! The memory of a run, predicted on a meta device before the run starts: of every rank, and of all
//! ranks of a host together.

mod predict;
mod share;

use std::fmt;

use meshgrad_models::{Model, TokenBatch};
use meshgrad_runtime::Device;

pub(crate) use self::predict::allocate_params;
pub use self::predict::{Needed, predict, predict_rank};
pub(crate) use self::share::host;
use self::share::{Free, Lacking, Share, lacking, total};
use crate::config::Config;
use crate::ranks::{RunRanks, check_ranks};
use crate::report::format::bytes;
use crate::{Error, Kind, Result};

/// Checks that training `model` as `config` says fits in the memory that is free, with all ranks of a
/// host together. `None`, and models whose memory is unknown, are taken to fit. All ranks make this
/// call, before [`RunRanks::divide`].
///
/// # Errors
/// With [`NotEnoughMemory`].
pub(crate) fn check<M>(
    model: Option<&M>,
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
        let needed = model.and_then(|it| predict_rank(it, config, like, ranks.rank(), count));
        let own = needed.map(|needed| needed.shares(device, &host, free));
        let all: Option<Vec<_>> = ranks.gather(&own)?.into_iter().collect();
        Ok(all.map(|all| all.concat()))
    })
}

/// Checks, before threads and files exist, that `model` fits in the memory that is free when it is
/// trained by threads of this process, one rank on each of `devices`.
///
/// # Errors
/// With [`NotEnoughMemory`].
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
    let lacking = NotEnoughMemory { device: name, needed, free, fits };
    Err(Error::with_details(Kind::OutOfMemory, lacking))
}

/// A run does not fit in memory: details of an [`Error`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotEnoughMemory {
    /// The device, or `the host`.
    pub device: String,
    /// The predicted peak, in bytes.
    pub needed: u64,
    /// Bytes that are free.
    pub free: u64,
    /// Settings that fit, and their peak, if there are any.
    pub fits: Option<(String, u64)>,
}

impl fmt::Display for NotEnoughMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NotEnoughMemory { device, needed, free, fits } = self;
        let (needed, free) = (bytes(*needed), bytes(*free));
        write!(f, "training needs {needed}, but only {free} are free on {device}; ")?;
        match fits {
            Some((settings, needed)) => write!(f, "{settings} needs {}", bytes(*needed))?,
            None => f.write_str(
                "not even train.micro_batch_size=1 with train.activation_checkpointing=true fits; use \
                 a smaller model or a smaller train.seq_len",
            )?,
        }
        f.write_str("; to train anyway, set train.check_memory = false")
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
    use meshgrad_models::Decoder;

    use super::*;
    use crate::decoder;

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
        let config = Config::parse::<decoder::Tables>(CONFIG, "the test", &[]).unwrap();
        let device = Device::cpu();
        let model = decoder::model(&config, 257, None).unwrap();
        model.materialize(&device, 7).unwrap();
        let value = |model: &Decoder| model.params()[0].value().unwrap().to_vec::<f32>().unwrap();
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
                (Ok(()), first) => panic!("{first:?}"),
                (Err(error), first) => {
                    let NotEnoughMemory { needed, fits, .. } = error.details().unwrap();
                    assert_eq!(*needed, peaks[0]);
                    let expected = first.map(|at| (settings(&config, &all[at]), peaks[at]));
                    assert_eq!(*fits, expected);
                }
            }
            assert_eq!(value(&model), before);
        }
    }
}
