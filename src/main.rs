//! The program: a command line over the facade. For another loop, write another `main`.

#[macro_use]
mod output;

mod answer;
mod bench;
mod check;
mod ckpt;
mod comm;
mod device;
mod forward;
mod launch;
mod mesh;
mod table;

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use clap::{Parser, Subcommand};
use meshgrad::ckpt::discover;
use meshgrad::runtime::{DType, Device};
use meshgrad::train::checkpoint;
use meshgrad::train::config::{Config, Override};
use meshgrad::train::generate::{Sampling, generate};
use meshgrad::train::qwen3;
use meshgrad::train::report::with_loading_bar;
use meshgrad::train::run_folder::RunFolder;
use meshgrad::train::session::{Resume, Session, Summary};
use meshgrad::train::tokenizer::Tokenizer;

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
    Sample(SampleArguments),
    /// Compute logits, loss and gradients of a Hugging Face model, for comparison with
    /// transformers.
    Forward(forward::ForwardArguments),
    /// Inspect, verify and convert checkpoints and safetensors files of any origin.
    Ckpt(ckpt::CkptArguments),
    /// Show a parallel configuration: axes, domains, and the groups of a rank.
    Mesh(mesh::MeshArguments),
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
    /// Set a key, as in `--set train.steps=100`; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<Override>,
    /// The run folder [default: runs/NAME, named after the configuration file].
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    /// Where to start: `auto` (the newest checkpoint of the run), `never` (from scratch), or a
    /// checkpoint.
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

#[derive(clap::Args)]
struct SampleArguments {
    /// A run, one of its checkpoints, or a Hugging Face folder with a tokenizer.json.
    model: PathBuf,
    #[command(flatten)]
    device: OnFastest,
    /// The prompt.
    #[arg(long, default_value = "")]
    prompt: String,
    /// The maximum number of tokens to generate.
    #[arg(long, default_value_t = 200)]
    tokens: usize,
    /// Divides the logits; 0 always takes the most likely token.
    #[arg(long, default_value_t = 0.8)]
    temperature: f64,
    /// Sample only from this many most likely tokens; 0 means all.
    #[arg(long, default_value_t = 40)]
    top_k: usize,
    /// Use the weights that training continues from, where a run also averages them.
    #[arg(long)]
    raw: bool,
    /// The random seed; equal seeds give equal text.
    #[arg(long, default_value_t = 1)]
    seed: u64,
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
        Command::Sample(arguments) => sample(arguments, &arguments.device.open(device)?),
        Command::Forward(arguments) => forward::forward(arguments, &arguments.device.open(device)?),
        // `ckpt` has nonzero exit codes that are not errors.
        Command::Ckpt(arguments) => return Ok(ckpt::ckpt(arguments, device.properties().threads)),
        Command::Bench(arguments) => return bench::bench(arguments, device),
        Command::Mesh(arguments) => return Ok(mesh::mesh(arguments)),
        Command::Comm(arguments) => comm::comm(arguments),
        Command::Launch(arguments) => return launch::launch(arguments),
        Command::Check(arguments) => check::check(&arguments.device.open(device)?),
    }?;
    Ok(ExitCode::SUCCESS)
}

fn train(arguments: &TrainArguments, device: &Device) -> anyhow::Result<()> {
    let config = Config::read::<qwen3::Tables>(arguments.config.as_deref(), &arguments.sets)?;
    let default_dir = || RunFolder::default_path(arguments.config.as_deref());
    let run_dir = arguments.run_dir.clone().unwrap_or_else(default_dir);
    let resume = match arguments.resume.as_str() {
        "auto" => Resume::Auto,
        "never" => Resume::Never,
        folder => Resume::From(folder.into()),
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
    print_summary(&qwen3::train(session)?, &run_dir);
    Ok(())
}

fn config(arguments: &ConfigArguments) -> anyhow::Result<()> {
    let config = Config::read::<qwen3::Tables>(arguments.config.as_deref(), &arguments.sets)?;
    print!("{}", config.annotated::<qwen3::Tables>()?);
    Ok(())
}

fn print_summary(summary: &Summary, run_dir: &Path) {
    let run = run_dir.display();
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
    lines.push("\nnext:".to_owned());
    lines.push(format!("  meshgrad sample {run} --prompt \"fn main\""));
    let resume = format!("meshgrad train {run}/config.toml --run-dir {run}");
    lines.push(if summary.step < summary.steps {
        format!("  {resume}    (resumes with the remaining steps)")
    } else {
        let more = summary.steps * 2;
        format!("  {resume} --set train.steps={more}    (continues training)")
    });
    lines
        .push("  meshgrad train --set 'data.paths=[\"YOUR/TEXT\"]' --run-dir runs/mine".to_owned());
    // A closed pipe must not fail a run that is complete.
    let _ = writeln!(std::io::stdout(), "{}", lines.join("\n"));
}

fn sample(arguments: &SampleArguments, device: &Device) -> anyhow::Result<()> {
    let newest = discover(&arguments.model)
        .ok()
        .and_then(|mut found| found.pop());
    let folder = newest.map_or_else(|| arguments.model.clone(), |found| found.path().to_owned());
    let model = with_loading_bar(|progress| qwen3::load(&folder, device, progress))?;
    if checkpoint::has_averages(&folder) {
        let folder_name = folder.display();
        if arguments.raw {
            eprintln!("weights of {folder_name}, not their averages");
        } else {
            checkpoint::load_averages(&folder, &model)?;
            eprintln!("averages of the weights of {folder_name}; --raw for the weights");
        }
    }
    let tokenizer = Tokenizer::from_file(&folder.join("tokenizer.json"))?;

    print!("{}", arguments.prompt);
    let sampling = Sampling {
        temperature: arguments.temperature,
        top_k: arguments.top_k,
        seed: arguments.seed,
    };
    generate(
        &model,
        &tokenizer,
        &arguments.prompt,
        arguments.tokens,
        sampling,
        DType::F32,
        device,
        |text| {
            print!("{text}");
            if std::io::stdout().is_terminal() {
                // A closed terminal is not an error.
                let _ = std::io::stdout().flush();
            }
        },
    )?;
    println!();
    Ok(())
}
