//! Starts the ranks of one host as processes.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};
use std::thread::{self, Scope};

use meshgrad_error::{Result, ensure, error};

use super::children::{Children, Ended};
use super::output::copy_lines;
use crate::first_failure::{self, FailureFile};
use crate::processes::{Secret, free_port};
use crate::system::system;

/// N processes that run one command, each as a rank.
#[derive(Clone, Debug)]
pub struct Launch {
    ranks: usize,
    command: Vec<OsString>,
    log_dir: Option<PathBuf>,
    restarts: usize,
}

/// What processes return if their arguments are wrong.
const USAGE: u8 = 2;

impl Launch {
    /// `ranks` processes of `command`: a program and its arguments.
    ///
    /// # Errors
    /// When there are no ranks, or no command.
    pub fn new(ranks: usize, command: Vec<OsString>) -> Result<Launch> {
        ensure!(ranks > 0, Invalid, "a world needs at least 1 rank");
        ensure!(!command.is_empty(), Invalid, "there is no command; pass one after `--`");
        Ok(Launch { ranks, command, log_dir: None, restarts: 0 })
    }

    /// Also writes the output of each rank to a file `rank-N.log` in this folder, which is created if
    /// it is missing.
    #[must_use]
    pub fn log_dir(mut self, dir: impl Into<PathBuf>) -> Launch {
        self.log_dir = Some(dir.into());
        self
    }

    /// Restarts all processes when one fails, up to `restarts` times. After exit code 2 it does not: the arguments
    /// are wrong, and would be wrong again.
    #[must_use]
    pub fn restarts(mut self, restarts: usize) -> Launch {
        self.restarts = restarts;
        self
    }

    /// Runs the processes with torchrun's variables and a new secret, and waits for them. Each line
    /// of their output is prefixed with the rank; lines above 64 KiB are split. When a process
    /// fails, or `stop` is set, the others are stopped; so they are when this process is killed. At
    /// the end, their remaining descendants are killed, except those that have left the process
    /// groups.
    ///
    /// # Errors
    /// When the command cannot be started, the output of a rank cannot be written to its file, or
    /// the operating system refuses something.
    pub fn run(
        &self,
        stop: &AtomicBool,
        stdout: impl Write + Send,
        stderr: impl Write + Send,
    ) -> Result<Ended> {
        let logs = self.logs()?;
        let outputs = (Mutex::new(stdout), Mutex::new(stderr));
        for restart in 1..=self.restarts {
            match self.run_once(stop, &outputs, &logs)? {
                Ended::Failed { rank, code } if code != USAGE => {
                    let to = outputs.1.lock();
                    let _ = writeln!(
                        // a closed pipe does not end the ranks
                        to.unwrap_or_else(PoisonError::into_inner),
                        "rank {rank} failed with exit code {code}; restart {restart} of {}",
                        self.restarts
                    );
                }
                ended => return Ok(ended),
            }
        }
        self.run_once(stop, &outputs, &logs)
    }

    /// Runs the processes until they end.
    fn run_once(
        &self,
        stop: &AtomicBool,
        outputs: &(Mutex<impl Write + Send>, Mutex<impl Write + Send>),
        logs: &[Mutex<File>],
    ) -> Result<Ended> {
        let secret = Secret::random()?;
        let failure = FailureFile::new(&text(&Secret::random()?)[..16]);
        let mut children = self.start(&secret, failure.path())?;
        let (ended, running) = io::pipe().map_err(system("no pipe"))?;
        thread::scope(|scope| {
            let copied = self.copy_outputs(scope, &mut children, outputs, logs, &ended);
            let copied = copied.map_err(system("a thread could not be started"));
            let result = copied.and_then(|()| {
                let waited = children.wait(stop, || failure.rank());
                waited.map_err(system("a process was lost"))
            });
            children.reap();
            drop(running); // ends the threads
            result
        })
    }

    /// Starts a thread for each output of each process.
    fn copy_outputs<'scope, O: Write + Send, E: Write + Send>(
        &self,
        scope: &'scope Scope<'scope, '_>,
        children: &mut Children,
        (stdout, stderr): &'scope (Mutex<O>, Mutex<E>),
        logs: &'scope [Mutex<File>],
        ended: &'scope io::PipeReader,
    ) -> io::Result<()> {
        let width = (self.ranks - 1).to_string().len();
        for (rank, process) in children.processes().enumerate() {
            let thread = || thread::Builder::new().name(format!("launched rank {rank}"));
            let prefix = format!("[{rank:width$}] ");
            if let Some(from) = process.stdout.take() {
                let prefix = prefix.clone();
                let copy = move || copy_lines(from, &prefix, stdout, logs.get(rank), ended);
                thread().spawn_scoped(scope, copy)?;
            }
            if let Some(from) = process.stderr.take() {
                let copy = move || copy_lines(from, &prefix, stderr, logs.get(rank), ended);
                thread().spawn_scoped(scope, copy)?;
            }
        }
        Ok(())
    }

    /// The files of the ranks, in their order; none without a folder.
    fn logs(&self) -> Result<Vec<Mutex<File>>> {
        let Some(dir) = &self.log_dir else {
            return Ok(Vec::new());
        };
        let failed = |path: &Path, source: io::Error| {
            let path = path.display();
            error!(System, "{path}: {source}; choose another folder for the output of the ranks")
                .caused_by(source)
        };
        fs::create_dir_all(dir).map_err(|source| failed(dir, source))?;
        let width = (self.ranks - 1).to_string().len();
        let files = (0..self.ranks).map(|rank| {
            let path = dir.join(format!("rank-{rank:0width$}.log"));
            File::create(&path).map(Mutex::new).map_err(|source| failed(&path, source))
        });
        files.collect()
    }

    fn start(&self, secret: &Secret, failure: &Path) -> Result<Children> {
        let secret = text(secret);
        let port = free_port()?;
        let mut children = Children::new().map_err(system("no descriptor"))?;
        for rank in 0..self.ranks {
            let mut command = Command::new(&self.command[0]);
            command
                .args(&self.command[1..])
                .env("RANK", rank.to_string())
                .env("LOCAL_RANK", rank.to_string())
                .env("WORLD_SIZE", self.ranks.to_string())
                .env("LOCAL_WORLD_SIZE", self.ranks.to_string())
                .env("MASTER_ADDR", "127.0.0.1")
                .env("MASTER_PORT", port.to_string())
                .env("MESHGRAD_SECRET", &secret)
                .env("MESHGRAD_EMULATOR_PROCESSES", "1")
                .env(first_failure::VARIABLE, failure)
                .env("MESHGRAD_RUN", format!("launch-{}", std::process::id()))
                .env_remove("MESHGRAD_PORT")
                .env_remove("TORCHELASTIC_RUN_ID")
                .env_remove("TORCHELASTIC_USE_AGENT_STORE")
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .process_group(0);
            let child = command.spawn().map_err(|source| {
                let program = self.command[0].to_string_lossy();
                error!(System, "rank {rank}: `{program}` could not be started: {source}")
                    .caused_by(source)
            })?;
            let pushed = children.push(child);
            pushed.map_err(system("a process was lost"))?;
        }
        Ok(children)
    }
}

fn text(secret: &Secret) -> String {
    String::from_utf8_lossy(secret.expose()).into_owned()
}
