//! `meshgrad bench`: how fast this machine computes and trains, beside torch; and what its GPU
//! computes, beside the emulator.
//!
//! A process has the driver or the emulator, never both: hence what is computed goes through files.
//! `scripts/gpu-pack` takes the program to machines without Rust.

mod beside;
mod dump;
mod growth;
mod jobs;
mod ours;
mod peak;
mod shapes;
mod start;
mod time;
mod train;

use std::process::ExitCode;

use clap::Subcommand;
use meshgrad::prelude::Device;

#[derive(clap::Args)]
pub(crate) struct BenchArguments {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    /// Time the ops of the CPU at the shapes of a small model, beside a copy, an FMA loop and torch.
    Cpu(time::TimeCpu),
    /// Time the training of a small model that grows, one extent after the other.
    Growth(growth::Growth),
    /// Time from the start of the program to the end of the first step of training.
    Start(start::Start),
    /// The kernels of a GPU: how long they take, how fast models train, what they compute.
    Gpu(GpuArguments),
}

#[derive(clap::Args)]
struct GpuArguments {
    #[command(subcommand)]
    part: GpuPart,
}

#[derive(Subcommand)]
enum GpuPart {
    Time(time::TimeGpu),
    Train(train::Train),
    Dump(dump::Dump),
    Compare(dump::Compare),
}

/// Runs a bench. `cpu` is the device that is meant by that name.
pub(crate) fn bench(arguments: &BenchArguments, cpu: &Device) -> anyhow::Result<ExitCode> {
    match &arguments.bench {
        Bench::Cpu(time) => time.run(cpu)?,
        Bench::Growth(growth) => growth.run(cpu)?,
        Bench::Start(start) => start.run(cpu)?,
        Bench::Gpu(gpu) => match &gpu.part {
            GpuPart::Time(time) => time.run(cpu)?,
            GpuPart::Train(train) => train.run(cpu)?,
            GpuPart::Dump(dump) => dump.run(cpu)?,
            // Results that differ are an answer.
            GpuPart::Compare(compare) => return compare.run(),
        },
    }
    Ok(ExitCode::SUCCESS)
}
