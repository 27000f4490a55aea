//! `meshgrad bench`: the speed of ops and training compared with torch, and the results of a GPU
//! compared with the emulator.
//!
//! A process loads either the driver or the emulator, so results are exchanged through files.
//! `scripts/gpu-pack` packs the program for machines without Rust.

mod divided;
mod dump;
mod growth;
mod jobs;
mod peak;
mod shapes;
mod start;
mod time;
mod torch;
mod train;
mod training;

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
    /// Time CPU ops at the shapes of a small model, compared with a copy, an FMA loop and torch.
    Cpu(time::TimeCpu),
    /// Time the training of a small model as one extent at a time grows.
    Growth(growth::Growth),
    /// Time from the start of the program to the end of the first training step.
    Start(start::Start),
    /// Benchmark and compare GPU kernels.
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

/// Runs a bench. `cpu` is the CPU device.
pub(crate) fn bench(arguments: &BenchArguments, cpu: &Device) -> anyhow::Result<ExitCode> {
    match &arguments.bench {
        Bench::Cpu(time) => time.run(cpu)?,
        Bench::Growth(growth) => growth.run(cpu)?,
        Bench::Start(start) => start.run(cpu)?,
        Bench::Gpu(gpu) => match &gpu.part {
            GpuPart::Time(time) => time.run(cpu)?,
            GpuPart::Train(train) => train.run(cpu)?,
            GpuPart::Dump(dump) => dump.run(cpu)?,
            // Its exit code is 1 if exact results differ.
            GpuPart::Compare(compare) => return compare.run(),
        },
    }
    Ok(ExitCode::SUCCESS)
}
