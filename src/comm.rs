//! `meshgrad comm`: checks every collective on the ranks at hand, and measures them.

use std::error::Error;

use anyhow::{anyhow, ensure};
use meshgrad::comm::conformance::{self, Check};
use meshgrad::comm::launch::Environment;
use meshgrad::comm::speed::{MEASURED, Timing, measure};
use meshgrad::comm::{Collectives, Communicator, Local, NcclRank, ProcessRank, Rank, Reduction};
use meshgrad::runtime::{Device, Tensor};

use crate::device::OnCpu;
use crate::transport::Transport;

/// The ranks of this process if no launcher started it.
const RANKS: usize = 4;

/// The elements per rank with which every collective is checked. With the largest, an all_reduce
/// between processes takes the path for small or for large tensors, depending on the dtype.
const COUNTS: [usize; 4] = [0, 1, 7, 4097];

#[derive(clap::Args)]
pub(crate) struct CommArguments {
    /// Number of ranks that are threads of this process [default: 4].
    #[arg(long, value_name = "N")]
    ranks: Option<usize>,
    /// What carries tensors between ranks: `local` (threads), `tcp` or `mpi` (processes), `nccl` (a GPU for each
    /// rank), or `auto`: NCCL if it is installed and each rank has a GPU of its own, that is not emulated; otherwise
    /// what threads or the launcher's processes use.
    #[arg(long, value_enum, default_value_t = Transport::Auto)]
    transport: Transport,
    #[command(flatten)]
    device: OnCpu,
    /// Bytes of the largest tensor to measure; 0 measures nothing.
    #[arg(long, value_name = "BYTES", default_value_t = 4 << 20)]
    max_bytes: usize,
}

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

pub(crate) fn comm(arguments: &CommArguments, cpu: &Device) -> anyhow::Result<()> {
    // The launcher's environment variables are read only for processes.
    let place = match arguments.ranks.is_none() && arguments.transport != Transport::Local {
        true => Environment::read()?,
        false => None,
    };
    match place.is_some() || matches!(arguments.transport, Transport::Tcp | Transport::Mpi) {
        true => comm_of_process(arguments, place.as_ref(), cpu),
        false => comm_of_threads(arguments, cpu),
    }
}

fn comm_of_process(
    arguments: &CommArguments,
    place: Option<&Environment>,
    cpu: &Device,
) -> anyhow::Result<()> {
    ensure!(
        arguments.ranks.is_none(),
        "--ranks is for threads of one process; start processes with `meshgrad launch -n N -- meshgrad comm`"
    );
    let local_rank = place.map_or(0, Environment::local_rank);
    let gpu = arguments.device.name.of_process(local_rank, cpu)?;
    arguments.transport.check_of_processes(gpu.as_ref())?;
    let transport = arguments.transport.between_processes().choose(place);
    let world = ProcessRank::from_env_over(transport)?;
    let checked = match gpu {
        Some(gpu) => over_nccl(&world, gpu, arguments.max_bytes),
        None => run(&world, transport.name(), &conformance::checks(), arguments.max_bytes),
    };
    checked.map_err(|error| anyhow!("rank {}: {error}", world.rank()))
}

fn comm_of_threads(arguments: &CommArguments, cpu: &Device) -> anyhow::Result<()> {
    let (ranks, max_bytes) = (arguments.ranks.unwrap_or(RANKS), arguments.max_bytes);
    let (devices, is_nccl) = arguments.device.name.of_threads(arguments.transport, ranks, cpu)?;
    match devices {
        Some(gpus) if is_nccl => {
            Local::run(ranks, |rank| over_nccl(rank, gpus[rank.rank()].clone(), max_bytes))?;
        }
        Some(gpus) => {
            let local = Local::new(ranks).devices(gpus);
            local.launch(|rank| run(rank, "local", &conformance::checks(), max_bytes))?;
        }
        None => {
            Local::run(ranks, |rank| run(rank, "local", &conformance::checks(), max_bytes))?;
        }
    }
    Ok(())
}

fn over_nccl(rank: &dyn Rank, gpu: Device, max_bytes: usize) -> Result<()> {
    let rank = NcclRank::new(rank, gpu)?;
    run(&rank, &rank.library(), &conformance::checks_over_nccl(false), max_bytes)
}

/// Checks and measures the collectives, on every rank. Rank 0 prints.
fn run(rank: &dyn Rank, transport: &str, checks: &[Check], max_bytes: usize) -> Result<()> {
    let world = rank.world()?;
    let say = |text: &str| {
        if rank.rank() == 0 {
            println!("{text}");
        }
    };
    let device = match rank.device() {
        gpu if gpu.is_gpu() => gpu.to_string(),
        cpu => format!("a device of {} threads", cpu.properties().threads),
    };
    say(&format!("{} ranks over {transport}, each with {device}", rank.world_size()));
    check(&world, checks)?;
    say(&format!(
        "checks   {}, all collectives and dtypes, with {COUNTS:?} elements: bit for bit as \
         expected",
        checks.len()
    ));
    if max_bytes > 0 {
        say("\ncollective          bytes      time us    algorithm GB/s    bus GB/s");
        for collective in MEASURED {
            for bytes in sizes(max_bytes) {
                say(&line(&measure(&world, collective, bytes)?));
            }
        }
    }
    Ok(())
}

/// All ranks fail if a check fails on one.
fn check(world: &dyn Communicator, checks: &[Check]) -> Result<()> {
    let mut all = checks.iter().flat_map(|check| COUNTS.map(|count| (check, count)));
    let checked = all.try_for_each(|(check, count)| check.run(world, count));
    let failed = Tensor::scalar(world.device(), u8::from(checked.is_err()))?;
    let any = world.all_reduce(&failed, Reduction::Max);
    checked?; // `any` may fail as a consequence, so its error comes second
    let any = any?.wait()?;
    match any.item::<u8>()? {
        0 => Ok(()),
        _ => Err("a check failed on another rank".into()),
    }
}

fn sizes(max_bytes: usize) -> Vec<usize> {
    let mut sizes: Vec<usize> = (0..)
        .map_while(|power: u32| 1usize.checked_shl(5 * power + 5))
        .take_while(|it| *it < max_bytes)
        .collect();
    sizes.push(max_bytes);
    sizes
}

fn line(timing: &Timing) -> String {
    format!(
        "{:<15} {:>9} {:>12.1} {:>17.3} {:>11.3}",
        timing.collective.name(),
        timing.bytes,
        1e6 * timing.seconds,
        1e-9 * timing.algorithm_bandwidth(),
        1e-9 * timing.bus_bandwidth(),
    )
}
