//! `meshgrad ckpt`: inspects and converts checkpoints and safetensors of any origin.
//!
//! One module per subcommand. Each returns its output and exit code and prints only warnings.

mod arguments;
mod assembled;
mod bench;
mod beside;
mod catalog;
mod convert;
mod crash_test;
mod destination;
mod diff;
mod export;
mod fold;
mod gc;
mod inspect;
mod interrupt;
mod merge;
mod overflow;
mod plan;
mod reshard;
mod size;
mod source;
mod stream;
mod ties;
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
    /// List the contents of a file, folder or run: tensors, dtypes, parameters, bytes.
    Inspect(inspect::InspectArguments),
    /// Compare names, dtypes and shapes of two checkpoints, and with --values every element.
    Diff(diff::DiffArguments),
    /// Check the integrity of a checkpoint, or of every checkpoint of a run.
    Verify(verify::VerifyArguments),
    /// Compute what loading would cost each rank.
    Plan(plan::PlanArguments),
    /// Convert a model with a map, in either direction.
    Convert(convert::ConvertArguments),
    /// Export a checkpoint as a Hugging Face folder.
    Export(export::ExportArguments),
    /// Add an adapter to the weights that it updates, as a plain model.
    Merge(merge::MergeArguments),
    /// Subtract an adapter from a merged model.
    Unmerge(merge::UnmergeArguments),
    /// Split a model into one folder per rank, change the split, or merge the folders.
    Reshard(reshard::ReshardArguments),
    /// Time loads and saves on this machine against plain reads and writes.
    Bench(bench::BenchArguments),
    /// Remove old checkpoints of a run and leftovers of interrupted saves.
    Gc(gc::GcArguments),
    /// Test saves with power cuts of a simulated disk and kills of real processes: exactly the old
    /// or the new checkpoint must be found.
    CrashTest(crash_test::CrashTestArguments),
    /// Runs in the processes of crash-test.
    #[command(hide = true)]
    CrashJob(crash_test::CrashJobArguments),
}

/// Runs a subcommand with at most `threads` threads.
pub(crate) fn ckpt(arguments: &CkptArguments, threads: usize) -> ExitCode {
    // Errors exit with 2 if 1 is a result, as for `diff`.
    let (answer, error_code) = match &arguments.command {
        CkptCommand::Inspect(arguments) => (inspect::inspect(arguments, threads), 1),
        CkptCommand::Diff(arguments) => (diff::diff(arguments, threads), 2),
        CkptCommand::Verify(arguments) => (verify::verify(arguments, threads), 2),
        CkptCommand::Plan(arguments) => (plan::plan(arguments, threads), 1),
        CkptCommand::Convert(arguments) => (convert::convert(arguments, threads), 1),
        CkptCommand::Export(arguments) => (export::export(arguments, threads), 1),
        CkptCommand::Merge(arguments) => (merge::merge(arguments, threads), 1),
        CkptCommand::Unmerge(arguments) => (merge::unmerge(arguments, threads), 1),
        CkptCommand::Reshard(arguments) => (reshard::reshard(arguments, threads), 1),
        CkptCommand::Bench(arguments) => (bench::bench(arguments, threads), 1),
        CkptCommand::Gc(arguments) => (gc::gc(arguments), 1),
        CkptCommand::CrashTest(arguments) => (crash_test::crash_test(arguments), 2),
        CkptCommand::CrashJob(arguments) => (crash_test::crash_job(arguments), 2),
    };
    answer::print(answer, error_code)
}

fn warn(warnings: &[String]) {
    for warning in warnings {
        eprintln!("warning: {}", printable(warning));
    }
}

/// Parses a glob pattern of the command line.
fn parse_glob(text: &str) -> Result<Pattern, String> {
    Pattern::new(text).map_err(|error| {
        let (at, why) = (error.pos, error.msg);
        format!("`{text}` is not a pattern: {why}, at {at}; `*` is any text, `?` any character")
    })
}
