//! Training steps of a model that is divided over ranks.

use meshgrad::autograd::Module;
use meshgrad::comm::{Local, Rank};
use meshgrad::models::families::qwen3::Qwen3Config;
use meshgrad::models::{Decoder, TokenBatch};
use meshgrad::prelude::*;
use meshgrad::train;
use meshgrad::train::config::Config;
use meshgrad::train::ranks::RunRanks;
use meshgrad::train::trainer::Trainer;
use meshgrad_harness::timed;

use super::training::ids;

/// What steps of all ranks took.
pub(crate) struct Measured {
    /// Seconds per step, by round.
    pub(crate) times: Vec<f64>,
    /// Peak bytes of the memory of each rank's device.
    pub(crate) peaks: Vec<usize>,
}

/// Times steps of `model` on the ranks of `local`, divided as `config` says.
pub(crate) fn time(
    config: &Config,
    model: &Qwen3Config,
    local: Local,
    [warm_up, rounds, steps]: [usize; 3],
) -> anyhow::Result<Measured> {
    let of_ranks = local.launch(|rank| {
        let ranks = RunRanks::new(rank, config)?;
        ranks.on_mesh(|| {
            let mut trainer = trainer(&ranks, rank.device(), config, model)?;
            time_steps(&ranks, rank.device(), config, &mut trainer, warm_up)?;
            let round = |_| time_steps(&ranks, rank.device(), config, &mut trainer, steps);
            let times: Vec<f64> = (0..rounds).map(round).collect::<train::Result<_>>()?;
            Ok::<_, train::Error>((times, rank.device().memory_stats().peak))
        })
    })?;
    let of_round = |round| of_ranks.iter().map(move |(times, _)| times[round]);
    // Ranks start a round together, and the last one ends it.
    let times = (0..rounds).map(|round| of_round(round).fold(0.0, f64::max)).collect();
    Ok(Measured { times, peaks: of_ranks.iter().map(|(_, peak)| *peak).collect() })
}

fn trainer(
    ranks: &RunRanks<'_>,
    device: &Device,
    config: &Config,
    model: &Qwen3Config,
) -> train::Result<Trainer<Decoder>> {
    let whole = Decoder::new(model)?;
    match ranks.divide(&whole)? {
        None => {
            whole.materialize(device, 1)?;
            Trainer::new(whole, config, device)
        }
        Some((part, pipeline)) => {
            part.materialize(device, 1)?;
            Trainer::of(part).pipeline(pipeline).build(config, device)
        }
    }
}

/// Seconds per step on this rank, the mean of `steps` consecutive ones.
fn time_steps(
    ranks: &RunRanks<'_>,
    device: &Device,
    config: &Config,
    trainer: &mut Trainer<Decoder>,
    steps: usize,
) -> train::Result<f64> {
    let (rows, seq_len) = (config.train.rows_of_pass(ranks.batch_parts()), config.train.seq_len);
    let ids = ids(device, [rows, seq_len], trainer.model.config().vocab_size())?;
    let ids = ranks.own_part(&ids)?;
    ranks.agree(device.synchronize())?;
    let seconds = timed(|| -> train::Result<()> {
        for step in 1..=steps as u64 {
            let batches =
                (0..config.train.batch_size / rows).map(|_| Ok(TokenBatch::new(&ids, &ids)));
            trainer.step(step, batches)?;
        }
        device.synchronize()
    });
    let seconds = ranks.agree(seconds)?;
    Ok(seconds / steps as f64)
}
