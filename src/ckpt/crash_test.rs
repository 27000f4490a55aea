//! `meshgrad ckpt crash-test`: runs the crash test of checkpoints on this machine and its disk.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use meshgrad_ckpt_crash::{self as crash, CrashTest, Failure, Job, Progress};
use serde::Serialize;

use crate::answer::Answer;

#[derive(clap::Args)]
pub(super) struct CrashTestArguments {
    /// How many states of a simulated disk after a power cut to test.
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    states: u64,
    /// How many processes to kill while they save checkpoints in a loop.
    #[arg(long, value_name = "K", default_value_t = 50)]
    kills: u64,
    /// Seed of all random choices. A violation is reported with the options that reproduce it.
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// A folder on the disk to test. The processes save in a temporary folder inside it [default:
    /// the system's temporary folder].
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// Print JSON: states, operations, rounds, early, kills, saves, violation.
    #[arg(long)]
    json: bool,
}

/// The hidden subcommand of the processes to kill.
#[derive(clap::Args)]
pub(super) struct CrashJobArguments {
    job: String,
}

#[derive(Serialize)]
struct Report {
    rounds: u64,
    operations: u64,
    states: u64,
    early: u64,
    kills: u64,
    saves: u64,
    violation: Option<String>,
}

pub(super) fn crash_test(arguments: &CrashTestArguments) -> anyhow::Result<Answer> {
    let parent = arguments.folder.clone().unwrap_or_else(std::env::temp_dir);
    let folder = parent.join(format!("meshgrad-crash-test-{}", std::process::id()));
    std::fs::create_dir(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let drill = CrashTest {
        folder: folder.clone(),
        states: arguments.states,
        kills: arguments.kills,
        seed: arguments.seed,
    };
    let program = std::env::current_exe().context("cannot find this executable")?;
    let spawn = |job: &Job| {
        let mut command = Command::new(OsString::from(&program));
        command.args(["ckpt", "crash-job", &job.argument()]);
        command
    };

    let bar = ProgressBar::new(arguments.states + arguments.kills);
    if let Ok(style) = ProgressStyle::with_template("{msg:>12} {wide_bar} {pos}/{len}") {
        bar.set_style(style);
    }
    let mut report = |progress: Progress| match progress {
        Progress::States(states) => {
            bar.set_message("power cuts");
            bar.set_position(states);
        }
        Progress::Kills(kills) => {
            bar.set_message("kills");
            bar.set_position(arguments.states + kills);
        }
    };
    let outcome = crash::run(&drill, &spawn, &mut report);
    bar.finish_and_clear();
    let _ = std::fs::remove_dir_all(&folder);
    answer(outcome, arguments)
}

fn answer(
    outcome: Result<crash::Summary, Failure>,
    arguments: &CrashTestArguments,
) -> anyhow::Result<Answer> {
    let (summary, violation) = match outcome {
        Ok(summary) => (summary, None),
        Err(Failure::Violation(violation)) => {
            (crash::Summary::default(), Some(violation.to_string()))
        }
        Err(broken) => return Err(broken.into()),
    };
    let code = u8::from(violation.is_some());
    if arguments.json {
        let report = Report {
            rounds: summary.rounds,
            operations: summary.operations,
            states: summary.states,
            early: summary.early,
            kills: summary.kills,
            saves: summary.saves,
            violation,
        };
        return Answer::json(&report, code);
    }
    let text = match violation {
        Some(violation) => format!("violation: {violation}\n"),
        None => format!(
            "power cuts  {} states after {} operations in {} rounds; {} contained a save that had \
             not returned\nkills       {} processes, which had reported {} saves\nno violation\n",
            summary.states,
            summary.operations,
            summary.rounds,
            summary.early,
            summary.kills,
            summary.saves
        ),
    };
    Ok(Answer { text, code })
}

pub(super) fn crash_job(arguments: &CrashJobArguments) -> anyhow::Result<Answer> {
    crash::run_job(&arguments.job)?;
    Ok(Answer::success(String::new()))
}
