//! `meshgrad ckpt`: looking at checkpoints and at safetensors of any origin, and making others of
//! them.
//!
//! A module a subcommand; each returns its text and its exit code and prints nothing but warnings.

mod arguments;
mod bench;
mod catalog;
mod convert;
mod crash_test;
mod destination;
mod diff;
mod export;
mod fold;
mod gc;
mod inspect;
mod plan;
mod reshard;
mod size;
mod source;
mod stream;
mod values;
mod verify;

use std::process::ExitCode;

use clap::Subcommand;
use glob::Pattern;

use crate::answer;
use crate::table::printable;

#[derive(clap::Args)]
pub(crate) struct CkptArguments {
    #[command(subcommand)]
    command: CkptCommand,
}

#[derive(Subcommand)]
enum CkptCommand {
    /// Show what a file, a folder or a run holds: tensors, dtypes, parameters, bytes.
    Inspect(inspect::InspectArguments),
    /// Compare two: names, dtypes and shapes, and with --values every element.
    Diff(diff::DiffArguments),
    /// Check that a checkpoint, or every one of a run, is whole.
    Verify(verify::VerifyArguments),
    /// Tell what loading costs each rank, before it is done.
    Plan(plan::PlanArguments),
    /// Make a folder of another by a map, in either direction.
    Convert(convert::ConvertArguments),
    /// Make a folder for the hub of a checkpoint.
    Export(export::ExportArguments),
    /// Write what each rank keeps into a folder of its own, or put it together again.
    Reshard(reshard::ReshardArguments),
    /// Tell how fast this is read, and written, on this machine, and how fast plain reads are.
    Bench(bench::BenchArguments),
    /// Remove old checkpoints of a run and what interrupted saves left.
    Gc(gc::GcArguments),
    /// Cut the power of a simulated disk and kill real processes while they save, at every point,
    /// and check that exactly the old or the new checkpoint is found.
    CrashTest(crash_test::CrashTestArguments),
    /// What a process of crash-test does.
    #[command(hide = true)]
    CrashJob(crash_test::CrashJobArguments),
}

/// Runs a subcommand with at most `threads` threads.
pub(crate) fn ckpt(arguments: &CkptArguments, threads: usize) -> ExitCode {
    // Where 1 is an answer, as for `diff`, trouble is 2.
    let (answer, trouble) = match &arguments.command {
        CkptCommand::Inspect(arguments) => (inspect::inspect(arguments, threads), 1),
        CkptCommand::Diff(arguments) => (diff::diff(arguments, threads), 2),
        CkptCommand::Verify(arguments) => (verify::verify(arguments, threads), 2),
        CkptCommand::Plan(arguments) => (plan::plan(arguments, threads), 1),
        CkptCommand::Convert(arguments) => (convert::convert(arguments, threads), 1),
        CkptCommand::Export(arguments) => (export::export(arguments, threads), 1),
        CkptCommand::Reshard(arguments) => (reshard::reshard(arguments, threads), 1),
        CkptCommand::Bench(arguments) => (bench::bench(arguments, threads), 1),
        CkptCommand::Gc(arguments) => (gc::gc(arguments), 1),
        CkptCommand::CrashTest(arguments) => (crash_test::crash_test(arguments), 2),
        CkptCommand::CrashJob(arguments) => (crash_test::crash_job(arguments), 2),
    };
    answer::print(answer, trouble)
}

fn warn(warnings: &[String]) {
    for warning in warnings {
        eprintln!("warning: {}", printable(warning));
    }
}

/// A pattern of names given on the command line.
fn parse_glob(text: &str) -> Result<Pattern, String> {
    Pattern::new(text).map_err(|error| {
        let (at, why) = (error.pos, error.msg);
        format!("`{text}` is not a pattern: {why}, at {at}; `*` is any text, `?` any character")
    })
}
