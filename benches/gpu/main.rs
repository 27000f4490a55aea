//! The kernels on a GPU: what they compute, beside the emulator, and how long they take, beside
//! torch.
//!
//! ```text
//! cargo bench --bench gpu -- dump --device emulator --to FOLDER
//! cargo bench --bench gpu -- dump --device cuda --to FOLDER
//! cargo bench --bench gpu -- compare FOLDER FOLDER [--json FILE]
//! cargo bench --bench gpu -- time --device cuda [--torch venv/bin/python] [--json FILE]
//! cargo bench --bench gpu -- train --device cuda [--torch venv/bin/python] [--json FILE]
//! ```
//!
//! A process has the driver or the emulator, never both: hence results go through files.
//! `scripts/gpu-pack` takes the executable to machines without Rust.

mod cases;
mod compare;
mod dump;
mod jobs;
mod layers;
#[path = "../measure.rs"]
mod measure;
mod models;
#[path = "../peer.rs"]
mod peer;
mod products;
mod rows;
mod shapes;
mod time;
mod train;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand, ValueEnum};
use meshgrad::prelude::Device;

/// Runs the kernels of a GPU: writes down what they compute, compares that, times them.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// What cargo passes to every bench.
    #[arg(long, hide = true, global = true)]
    bench: bool,
}

#[derive(Subcommand)]
enum Command {
    Dump(dump::Dump),
    Compare(compare::Compare),
    Time(time::Time),
    Train(train::Train),
}

/// Where kernels run.
#[derive(Clone, Copy, ValueEnum)]
enum Where {
    /// This machine's first GPU.
    Cuda,
    /// The emulator, on the CPU.
    Emulator,
}

impl Where {
    fn device(self) -> anyhow::Result<Device> {
        Ok(match self {
            Where::Cuda => Device::cuda(0)?,
            Where::Emulator => Device::emulator(0)?,
        })
    }
}

fn main() -> anyhow::Result<ExitCode> {
    match Arguments::parse().command {
        Some(Command::Dump(dump)) => dump.run().map(|()| ExitCode::SUCCESS),
        Some(Command::Compare(compare)) => compare.run(),
        Some(Command::Time(time)) => time.run().map(|()| ExitCode::SUCCESS),
        Some(Command::Train(train)) => train.run().map(|()| ExitCode::SUCCESS),
        // A plain `cargo bench` runs every bench, and there may be no GPU.
        None => {
            Arguments::command().print_help()?;
            Ok(ExitCode::SUCCESS)
        }
    }
}
