//! `meshgrad comm`: checks every collective on the ranks at hand, and measures them.

use std::error::Error;

use anyhow::{anyhow, ensure};
use meshgrad::comm::launch::{self, Environment};
use meshgrad::comm::speed::{MEASURED, Timing, measure};
use meshgrad::comm::{Collectives, Communicator, Local, ProcessRank, Rank, Reduction, conformance};
use meshgrad::runtime::Tensor;

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
    /// `auto` is `mpi` under mpirun if the feature `mpi` is on, `tcp` under another launcher
    /// (meshgrad launch, torchrun, srun), and otherwise `local`.
    #[arg(long, value_enum, default_value_t = Transport::Auto)]
    transport: Transport,
    /// Bytes of the largest tensor to measure; 0 measures nothing.
    #[arg(long, value_name = "BYTES", default_value_t = 4 << 20)]
    max_bytes: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Transport {
    /// Depends on the environment.
    Auto,
    /// Threads of this process.
    Local,
    /// Processes, over TCP.
    Tcp,
    /// Processes, over MPI. Needs the feature `mpi`.
    Mpi,
}

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

pub(crate) fn comm(arguments: &CommArguments) -> anyhow::Result<()> {
    let between_processes = match (arguments.transport, arguments.ranks) {
        // The launcher's environment variables are read only in this case.
        (Transport::Auto, None) if Environment::read()?.is_some() => Some(launch::Transport::Auto),
        (Transport::Auto | Transport::Local, _) => None,
        (Transport::Tcp, _) => Some(launch::Transport::Tcp),
        (Transport::Mpi, _) => Some(launch::Transport::Mpi),
    };
    if let Some(transport) = between_processes {
        ensure!(
            arguments.ranks.is_none(),
            "--ranks is for threads of one process; start processes with `meshgrad launch -n N -- \
             meshgrad comm`"
        );
        let transport = transport.choose(Environment::read()?.as_ref());
        let world = ProcessRank::from_env_over(transport)?;
        let checked = run(&world, transport.name(), arguments.max_bytes);
        return checked.map_err(|error| anyhow!("rank {}: {error}", world.rank()));
    }
    let ranks = arguments.ranks.unwrap_or(RANKS);
    Local::run(ranks, |rank| run(rank, "local", arguments.max_bytes))?;
    Ok(())
}

/// Checks and measures the collectives, on every rank. Rank 0 prints.
fn run(rank: &dyn Rank, transport: &str, max_bytes: usize) -> Result<()> {
    let world = rank.world()?;
    let say = |text: &str| {
        if rank.rank() == 0 {
            println!("{text}");
        }
    };
    say(&format!(
        "{} ranks over {transport}, each with a device of {} threads",
        rank.world_size(),
        rank.device().properties().threads
    ));
    check(&world)?;
    say(&format!(
        "checks   {}, all collectives and dtypes, with {COUNTS:?} elements: bit for bit as \
         expected",
        conformance::checks().len()
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
fn check(world: &dyn Communicator) -> Result<()> {
    let checked = conformance::check(world, &COUNTS);
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
