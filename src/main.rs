//! The program: a command line over the facade. For another loop, write another `main`.

#[macro_use]
mod output;

mod answer;
mod bench;
mod check;
mod ckpt;
mod comm;
mod device;
mod dtype;
mod eval;
mod forward;
mod launch;
mod mesh;
mod model;
mod next;
mod pipeline;
mod runs;
mod sample;
mod table;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use clap::{Parser, Subcommand};
use meshgrad::runtime::Device;
use meshgrad::train::config::{Config, Override, toml};
use meshgrad::train::qwen3;
use meshgrad::train::run_folder::RunFolder;
use meshgrad::train::session::{Resume, Session, Summary};

use device::{OnCpu, OnFastest};

/// Train language models on a tensor runtime written from scratch in Rust.
#[derive(Parser)]
#[command(version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,

    /// Threads of the CPU device [default: all that the system offers].
    #[arg(long, global = true, value_name = "N")]
    threads: Option<usize>,
}

#[derive(Subcommand)]
enum Command {
    /// Train a model; without CONFIG a small Qwen3-MoE on the source code of meshgrad's
    /// dependencies.
    Train(TrainArguments),
    /// Print a configuration: every key with its value and its meaning. Without CONFIG, the defaults.
    Config(ConfigArguments),
    /// Continue a prompt with a trained model.
    Sample(sample::SampleArguments),
    /// Measure the loss of a model on a text.
    Eval(eval::EvalArguments),
    /// Compute logits, loss and gradients of a Hugging Face model, for comparison with
    /// transformers.
    Forward(forward::ForwardArguments),
    /// Inspect, verify and convert checkpoints and safetensors files of any origin.
    Ckpt(ckpt::CkptArguments),
    /// Show a parallel configuration: axes, domains, and the groups of a rank.
    Mesh(mesh::MeshArguments),
    /// Simulate a pipeline schedule: idle time and memory of every rank, a drawing.
    Pipeline(pipeline::PipelineArguments),
    /// Check every collective on the ranks at hand, and measure latency and bandwidth.
    Comm(comm::CommArguments),
    /// Run a command as N processes, each of them a rank: `meshgrad launch -n 8 -- COMMAND`.
    Launch(launch::LaunchArguments),
    /// Report the device and check the values and gradients of every op on it.
    Check(CheckArguments),
    /// Benchmark this machine, compared with torch.
    Bench(bench::BenchArguments),
}

#[derive(clap::Args)]
struct CheckArguments {
    #[command(flatten)]
    device: OnCpu,
}

#[derive(clap::Args)]
struct TrainArguments {
    /// A TOML file; missing keys have their defaults.
    config: Option<PathBuf>,
    #[command(flatten)]
    device: OnFastest,
    /// Start with the configuration, weights and tokenizer of a Hugging Face folder, a checkpoint or
    /// a run: as `--set model.from=DIR`.
    #[arg(long, value_name = "DIR")]
    from: Option<String>,
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

#[derive(clap::Args)]
struct ConfigArguments {
    /// A TOML file; missing keys have their defaults.
    config: Option<PathBuf>,
    /// Set a key, as in `--set optimizer.name=muon`; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<Override>,
}

impl TrainArguments {
    /// `--from` and all of `--set`.
    fn overrides(&self) -> anyhow::Result<Vec<Override>> {
        let from = self.from.as_ref();
        let from = from.map(|from| format!("model.from={}", toml::Value::from(from.as_str())));
        let from = from.map(|set| set.parse()).transpose()?;
        Ok(from.into_iter().chain(self.sets.iter().cloned()).collect())
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let device = match arguments.threads {
        Some(threads) => Device::cpu_with_threads(threads),
        None => Device::cpu_with_threads(
            std::thread::available_parallelism().map_or(1, |count| count.get()),
        ),
    };
    let result = device
        .map_err(anyhow::Error::from)
        .and_then(|device| device.run(|| dispatch(&arguments.command, &device)));
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {}", message(&error));
            ExitCode::FAILURE
        }
    }
}

/// An error and its causes. A cause that the message already contains is not repeated.
fn message(error: &anyhow::Error) -> String {
    let mut message = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if message.is_empty() {
            message = cause;
        } else if !message.contains(&cause) {
            message = format!("{message}: {cause}");
        }
    }
    message
}

/// Runs a command. `device` is the CPU device.
fn dispatch(command: &Command, device: &Device) -> anyhow::Result<ExitCode> {
    match command {
        Command::Train(arguments) => train(arguments, &arguments.device.open(device)?),
        Command::Config(arguments) => config(arguments),
        Command::Sample(arguments) => sample::sample(arguments, &arguments.device.open(device)?),
        Command::Eval(arguments) => eval::eval(arguments, &arguments.device.open(device)?),
        Command::Forward(arguments) => forward::forward(arguments, &arguments.device.open(device)?),
        // `ckpt` has nonzero exit codes that are not errors.
        Command::Ckpt(arguments) => return Ok(ckpt::ckpt(arguments, device.properties().threads)),
        Command::Bench(arguments) => return bench::bench(arguments, device),
        Command::Mesh(arguments) => return Ok(mesh::mesh(arguments)),
        Command::Pipeline(arguments) => return Ok(pipeline::pipeline(arguments)),
        Command::Comm(arguments) => comm::comm(arguments),
        Command::Launch(arguments) => return launch::launch(arguments),
        Command::Check(arguments) => check::check(&arguments.device.open(device)?),
    }?;
    Ok(ExitCode::SUCCESS)
}

fn train(arguments: &TrainArguments, device: &Device) -> anyhow::Result<()> {
    let (file, sets) = (arguments.config.as_deref(), arguments.overrides()?);
    let config = Config::read::<qwen3::Tables>(file, &sets)?;
    let run_dir = match &arguments.run_dir {
        Some(run_dir) => run_dir.clone(),
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

    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // A second signal ends the program immediately.
        signal_hook::flag::register_conditional_shutdown(signal, 1, stop.clone())
            .and_then(|_| signal_hook::flag::register(signal, stop.clone()))
            .context("cannot install a handler for Ctrl-C")?;
    }
    let session = Session::new(&config, device)
        .run_dir(&run_dir)
        .resume(resume)
        .stop_after(arguments.stop_after)
        .stop_when(&stop);
    let summary = qwen3::train(session)?;
    print_summary(&summary, &run_dir, &config);
    Ok(())
}

fn config(arguments: &ConfigArguments) -> anyhow::Result<()> {
    let config = Config::read::<qwen3::Tables>(arguments.config.as_deref(), &arguments.sets)?;
    print!("{}", config.annotated::<qwen3::Tables>()?);
    Ok(())
}

fn print_summary(summary: &Summary, run_dir: &Path, config: &Config) {
    let mut lines = vec![String::new()];
    if let (Some(loss), Some(bits)) = (summary.val_loss, summary.val_bits_per_byte) {
        lines.push(format!(
            "validation  {loss:.4} nats per token, {bits:.4} bits per byte"
        ));
    }
    lines.push(format!("checkpoint  {}", summary.checkpoint.display()));
    if let Some(plot) = &summary.plot {
        lines.push(format!("plot        {}", plot.display()));
    }
    lines.push(format!(
        "\nnext:\n{}",
        next::commands(summary, run_dir, config)
    ));
    // A closed pipe must not fail a run that is complete.
    let _ = write!(std::io::stdout(), "{}", lines.join("\n"));
}
