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
mod signals;
mod table;
mod train;
mod transport;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use meshgrad::runtime::Device;
use meshgrad::train::config::{Config, Override};
use meshgrad::train::decoder;

use device::OnCpu;

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
    Train(train::TrainArguments),
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
struct ConfigArguments {
    /// A TOML file; missing keys have their defaults.
    config: Option<PathBuf>,
    /// Set a key, as in `--set optimizer.name=muon`; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<Override>,
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
        .and_then(|device| device.run(|| dispatch(&arguments, &device)));
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
fn dispatch(arguments: &Arguments, device: &Device) -> anyhow::Result<ExitCode> {
    let has_threads = arguments.threads.is_some();
    match &arguments.command {
        Command::Train(arguments) => return train::train(arguments, device, has_threads),
        Command::Config(arguments) => config(arguments),
        Command::Sample(arguments) => sample::sample(arguments, &arguments.device.open(device)?),
        Command::Eval(arguments) => eval::eval(arguments, &arguments.device.open(device)?),
        Command::Forward(arguments) => forward::forward(arguments, &arguments.device.open(device)?),
        // `ckpt` has nonzero exit codes that are not errors.
        Command::Ckpt(arguments) => return Ok(ckpt::ckpt(arguments, device.properties().threads)),
        Command::Bench(arguments) => return bench::bench(arguments, device),
        Command::Mesh(arguments) => return Ok(mesh::mesh(arguments)),
        Command::Pipeline(arguments) => return Ok(pipeline::pipeline(arguments)),
        Command::Comm(arguments) => comm::comm(arguments, device),
        Command::Launch(arguments) => return launch::launch(arguments),
        Command::Check(arguments) => check::check(&arguments.device.open(device)?),
    }?;
    Ok(ExitCode::SUCCESS)
}

fn config(arguments: &ConfigArguments) -> anyhow::Result<()> {
    let config = Config::read::<decoder::Tables>(arguments.config.as_deref(), &arguments.sets)?;
    print!("{}", config.annotated::<decoder::Tables>()?);
    Ok(())
}
