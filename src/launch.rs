//! `meshgrad launch`: runs a command as N processes, each of them a rank.

use std::ffi::OsString;
use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use meshgrad::comm::launch::{Ended, Launch};
use signal_hook::consts;

/// The exit code after Ctrl-C, as of shells.
const STOPPED: u8 = 130;

#[derive(clap::Args)]
pub(crate) struct LaunchArguments {
    /// Number of processes.
    #[arg(short = 'n', long, value_name = "N")]
    ranks: usize,
    /// After `--`: the program and its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub(crate) fn launch(arguments: &LaunchArguments) -> anyhow::Result<ExitCode> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [consts::SIGINT, consts::SIGTERM, consts::SIGHUP] {
        signal_hook::flag::register(signal, stop.clone())
            .context("cannot install a handler for Ctrl-C")?;
    }
    let launch = Launch::new(arguments.ranks, arguments.command.clone())?;
    Ok(match launch.run(&stop, io::stdout(), io::stderr())? {
        Ended::Success => ExitCode::SUCCESS,
        Ended::Failed { rank, code } => {
            eprintln!("error: rank {rank} failed with exit code {code}");
            code.into()
        }
        Ended::Stopped => STOPPED.into(),
    })
}
