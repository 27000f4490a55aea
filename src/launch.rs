//! `meshgrad launch`: runs a command as N processes, each of them a rank.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering;

use meshgrad::comm::launch::{Ended, Launch};

use crate::signals::{Messages, Stop};

/// The exit code after Ctrl-C, as of shells.
const STOPPED: u8 = 130;

#[derive(clap::Args)]
pub(crate) struct LaunchArguments {
    /// Number of processes.
    #[arg(short = 'n', long, value_name = "N")]
    ranks: usize,
    /// Also write the output of each rank to a file in this folder: DIR/rank-N.log.
    #[arg(long, value_name = "DIR")]
    log_dir: Option<PathBuf>,
    /// Restart all ranks when one fails, up to N times; `meshgrad train` resumes from its last checkpoint.
    #[arg(long, value_name = "N", default_value_t = 0)]
    restarts: usize,
    /// After `--`: the program and its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub(crate) fn launch(arguments: &LaunchArguments) -> anyhow::Result<ExitCode> {
    let stop = Stop::listen(Messages {
        stopping: "stopping the ranks, which have 30 seconds to save; a second Ctrl-C ends them at once",
        ended: "ended; ranks that do not end now are killed after 30 seconds",
    })?;
    stop.has_started.store(true, Ordering::Relaxed);
    let mut launch =
        Launch::new(arguments.ranks, arguments.command.clone())?.restarts(arguments.restarts);
    if let Some(dir) = &arguments.log_dir {
        launch = launch.log_dir(dir);
    }
    Ok(match launch.run(&stop.is_requested, io::stdout(), io::stderr())? {
        Ended::Success => ExitCode::SUCCESS,
        Ended::Failed { rank, code } => {
            eprintln!("error: rank {rank} failed with exit code {code}");
            code.into()
        }
        Ended::Stopped => STOPPED.into(),
    })
}
