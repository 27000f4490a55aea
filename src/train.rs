//! `meshgrad train`: a training run on one rank, on threads of this process, or as one of the processes
//! that a launcher started.

use std::error::Error as _;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use anyhow::{Context, anyhow, ensure};
use meshgrad::comm::launch::Environment;
use meshgrad::comm::{Error, FailedRank, NcclRank, ProcessRank, Rank};
use meshgrad::runtime::Device;
use meshgrad::train::config::{Config, Override, SumOrder, toml};
use meshgrad::train::decoder;
use meshgrad::train::events::Event;
use meshgrad::train::ranks::check_ranks;
use meshgrad::train::report::format;
use meshgrad::train::run_folder::RunFolder;
use meshgrad::train::session::{Diverged, Resume, Session, Summary};

use crate::device::{self, OnFastest};
use crate::next::{self, StartedAs};
use crate::runs;
use crate::signals::{Messages, Stop};
use crate::transport::Transport;

#[derive(clap::Args)]
pub(crate) struct TrainArguments {
    /// A TOML file; missing keys have their defaults.
    config: Option<PathBuf>,
    #[command(flatten)]
    device: OnFastest,
    /// Train on N ranks that are threads of this process; `parallel.dp_shard` and the other degrees
    /// divide the work. Processes are started by `meshgrad launch -n N -- meshgrad train`, mpirun or
    /// torchrun.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    ranks: Option<u16>,
    /// What carries tensors between ranks: `local` (threads), `tcp` or `mpi` (processes), `nccl` (a GPU for each
    /// rank), or `auto`: NCCL if it is installed and each rank has a GPU of its own, that is not emulated; otherwise
    /// what threads or the launcher's processes use.
    #[arg(long, value_enum, default_value_t = Transport::Auto)]
    transport: Transport,
    /// Start with the configuration, weights and tokenizer of a Hugging Face folder, a checkpoint or
    /// a run: as `--set model.from=DIR`.
    #[arg(long, value_name = "DIR")]
    from: Option<String>,
    /// Ignore tensors of the folder in --from that the model does not have: as `--set
    /// model.ignore_unused=true`.
    #[arg(long, requires = "from")]
    ignore_unused: bool,
    /// Set a key, as in `--set train.steps=100`; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<Override>,
    /// The run folder [default: runs/NAME, named after the configuration file and what --set
    /// changes of the training].
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    /// Where to start: `auto` (the newest intact checkpoint of the run), `never` (from scratch), a
    /// checkpoint, or a run.
    #[arg(long, value_name = "auto|never|DIR", default_value = "auto")]
    resume: String,
    /// Save and stop after this step.
    #[arg(long, value_name = "STEP")]
    stop_after: Option<u64>,
}

impl TrainArguments {
    /// `--from` and all of `--set`.
    fn overrides(&self) -> anyhow::Result<Vec<Override>> {
        let from = self.from.as_ref();
        let from = from.map(|from| format!("model.from={}", toml::Value::from(from.as_str())));
        let ignore = self.ignore_unused.then(|| "model.ignore_unused=true".to_owned());
        let from = from.into_iter().chain(ignore).map(|set| set.parse());
        let from: Vec<Override> = from.collect::<Result<_, _>>()?;
        Ok(from.into_iter().chain(self.sets.iter().cloned()).collect())
    }
}

/// What to train, and where.
struct Run {
    config: Config,
    dir: PathBuf,
    resume: Resume,
    stop_after: Option<u64>,
    stop: Stop,
}

impl Run {
    /// `speaks`: whether this process prints for the run.
    fn new(arguments: &TrainArguments, speaks: bool) -> anyhow::Result<Run> {
        let (file, sets) = (arguments.config.as_deref(), arguments.overrides()?);
        let config = Config::read::<decoder::Tables>(file, &sets)?;
        let dir = match &arguments.run_dir {
            Some(dir) => dir.clone(),
            None => RunFolder::default_path(file, &sets, &config)?,
        };
        let resume = match arguments.resume.as_str() {
            "auto" => Resume::Auto,
            "never" => Resume::Never,
            folder => {
                runs::check_exists(folder.as_ref(), ", `auto` or `never`")?;
                Resume::From(folder.into())
            }
        };
        let messages = match speaks {
            true => MESSAGES,
            false => Messages::default(),
        };
        let stop = Stop::listen(messages)?;
        Ok(Run { config, dir, resume, stop_after: arguments.stop_after, stop })
    }

    /// Trains as `rank`, with tensors on `gpu` that travel over NCCL.
    fn train_over_nccl(&self, rank: &dyn Rank, gpu: &Device) -> Result<Summary, Error> {
        let is_tree = self.config.train.reduction == SumOrder::Tree;
        let rank = NcclRank::new(rank, gpu.clone())?.tree(is_tree);
        if rank.rank() == 0 {
            eprintln!("{}", rank.library());
        }
        let (memory, taken) = (rank.memory(), Arc::new(OnceLock::new()));
        let after_first_step = taken.clone();
        let session = self.session(rank.device(), Some(&rank));
        let session = session.subscribe("NCCL's memory", move |event| {
            if let Event::StepFinished { .. } = event
                && after_first_step.get().is_none()
            {
                let _ = after_first_step.set(memory()?); // set only here
            }
            Ok(())
        });
        let summary = decoder::train(session)?;
        if let (0, Some(bytes)) = (rank.rank(), taken.get()) {
            let bytes = format::bytes(*bytes as u64);
            eprintln!("NCCL, and other users of rank 0's GPU, took {bytes} of its memory");
        }
        Ok(summary)
    }

    /// The session of `rank`, or of a run on one rank.
    fn session<'a>(&'a self, device: &'a Device, rank: Option<&'a dyn Rank>) -> Session<'a> {
        let session = Session::new(&self.config, device)
            .run_dir(&self.dir)
            .resume(self.resume.clone())
            .stop_after(self.stop_after)
            .stop_when(&self.stop.is_requested);
        let has_started = self.stop.has_started.clone();
        let session = session.subscribe("signals", move |event| {
            if let Event::ConfigurationFinished { .. } = event {
                has_started.store(true, Ordering::Relaxed);
            }
            Ok(())
        });
        match rank {
            Some(rank) => session.on(rank),
            None => session,
        }
    }
}

const MESSAGES: Messages = Messages {
    stopping: "stopping after this step, with a checkpoint; a second Ctrl-C ends the run at once",
    ended: "ended at once; the same command resumes from the last checkpoint",
};

/// `has_threads`: whether the number of the CPU's threads is given.
pub(crate) fn train(
    arguments: &TrainArguments,
    cpu: &Device,
    has_threads: bool,
) -> anyhow::Result<ExitCode> {
    if let Some(environment) = Environment::read()?.filter(|it| it.world_size() > 1) {
        return train_as_process(arguments, cpu, has_threads, &environment);
    }
    let run = Run::new(arguments, true)?;
    match arguments.ranks.map(usize::from) {
        None | Some(1) => {
            let device = arguments.device.open(cpu)?;
            let summary = decoder::train(run.session(&device, None))?;
            print_summary(&summary, &run, StartedAs::OneRank);
        }
        Some(ranks) => {
            let summary = train_on_threads(&run, ranks, arguments, cpu)?;
            print_summary(&summary, &run, StartedAs::Threads(ranks));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Trains on ranks that are threads of this process.
fn train_on_threads(
    run: &Run,
    ranks: usize,
    arguments: &TrainArguments,
    cpu: &Device,
) -> anyhow::Result<Summary> {
    check_ranks(&run.config, ranks)?;
    let (devices, is_nccl) = arguments.device.name.of_threads(arguments.transport, ranks, cpu)?;
    let cpus = || vec![cpu.clone(); ranks];
    let all = devices.clone().unwrap_or_else(cpus);
    decoder::check_threads(&run.config, &all)?;
    let local = device::local(ranks, devices.filter(|_| !is_nccl), cpu);
    let trained = local.launch(|rank| match is_nccl {
        true => run.train_over_nccl(rank, &all[rank.rank()]),
        false => decoder::train(run.session(rank.device(), Some(rank))),
    });
    let summaries = trained.map_err(cause_on_threads)?;
    let first = summaries.into_iter().next();
    first.context("no rank has trained")
}

/// The cause of a failure: the error of the rank that failed first.
fn cause_on_threads(error: Error) -> anyhow::Error {
    let cause = error.source().and_then(|source| source.downcast_ref::<Error>());
    let (Some(cause), Some(failed)) = (cause, error.details::<FailedRank>()) else {
        return error.into();
    };
    if cause.details::<Diverged>().is_some() {
        return cause.clone().into(); // all ranks return it
    }
    let first = cause.details().unwrap_or(failed);
    named(first.rank, &first.reason)
}

/// Rank 0 speaks for the run.
fn named(rank: usize, message: &str) -> anyhow::Error {
    match rank {
        0 => anyhow!("{message}"),
        _ => anyhow!("rank {rank}: {message}"),
    }
}

/// The run of a process that a launcher has started at `place`, and its GPU if it has one.
fn run_of_process(
    arguments: &TrainArguments,
    cpu: &Device,
    has_threads: bool,
    place: &Environment,
) -> anyhow::Result<(Run, Option<Device>)> {
    ensure!(
        arguments.ranks.is_none(),
        "--ranks is for threads of one process, but a launcher has started this one; leave it out"
    );
    ensure!(
        !has_threads,
        "--threads is for a single process; the ranks of a host share its cores evenly"
    );
    let gpu = arguments.device.name.of_process(place.local_rank(), cpu)?;
    arguments.transport.check_of_processes(gpu.as_ref())?;
    Ok((Run::new(arguments, place.rank() == 0)?, gpu))
}

/// Trains as a rank of the processes that a launcher started.
fn train_as_process(
    arguments: &TrainArguments,
    cpu: &Device,
    has_threads: bool,
    place: &Environment,
) -> anyhow::Result<ExitCode> {
    let rank = place.rank();
    // The other ranks learn of an error once all have joined.
    let run = run_of_process(arguments, cpu, has_threads, place);
    // No rank speaks for one that cannot join.
    let world = ProcessRank::from_env_over(arguments.transport.between_processes());
    let world = world.with_context(|| format!("rank {rank} cannot join"))?;
    let own = |error: anyhow::Error| FailedRank { rank, reason: crate::message(&error) };
    let trained = run.map_err(own).and_then(|(run, gpu)| {
        let summary = match gpu {
            Some(gpu) => run.train_over_nccl(&world, &gpu),
            None => decoder::train(run.session(world.device(), Some(&world))),
        };
        let cause = |error: &Error| error.details().cloned().or_else(|| world.failure());
        let of = |error: Error| cause(&error).unwrap_or_else(|| own(error.into()));
        Ok((summary.map_err(of)?, run))
    });
    match trained {
        Ok((summary, run)) if world.rank() == 0 => {
            print_summary(&summary, &run, StartedAs::Processes(world.world_size()));
            Ok(ExitCode::SUCCESS)
        }
        Ok(_) => Ok(ExitCode::SUCCESS),
        Err(failed) => {
            let error = named(failed.rank, &failed.reason);
            world.fail_with(failed);
            match rank {
                0 => Err(error),
                // Rank 0 reports it.
                _ => Ok(ExitCode::FAILURE),
            }
        }
    }
}

fn print_summary(summary: &Summary, run: &Run, started_as: StartedAs) {
    let mut lines = vec![String::new()];
    if let (Some(loss), Some(bits)) = (summary.val_loss, summary.val_bits_per_byte) {
        lines.push(format!("validation  {loss:.4} nats per token, {bits:.4} bits per byte"));
    }
    lines.push(format!("checkpoint  {}", summary.checkpoint.display()));
    if let Some(plot) = &summary.plot {
        lines.push(format!("plot        {}", plot.display()));
    }
    lines.push(format!("\nnext:\n{}", next::commands(summary, &run.dir, &run.config, started_as)));
    // A closed pipe must not fail a run that is complete.
    let _ = write!(std::io::stdout(), "{}", lines.join("\n"));
}
