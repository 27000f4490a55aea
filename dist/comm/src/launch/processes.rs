//! Starts the ranks of one host as processes.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::host::{JoinError, Secret};

/// How long the other ranks may take to report why they fail before they are asked to end.
const REPORT: Duration = Duration::from_secs(1);
/// How long they may take to end, such as to save a checkpoint, before they are killed.
const END: Duration = Duration::from_secs(30);
/// The pause between looks at the processes.
const LOOK: Duration = Duration::from_millis(20);

/// N processes that run one command, each as a rank.
#[derive(Clone, Debug)]
pub struct Launch {
    ranks: usize,
    command: Vec<OsString>,
}

/// Why processes could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// No ranks, or no command.
    #[error("{problem}")]
    Nothing {
        /// What is missing.
        problem: &'static str,
    },

    /// The command could not be started.
    #[error("rank {rank}: `{command}` could not be started: {source}")]
    Start {
        /// The rank.
        rank: usize,
        /// The program.
        command: String,
        /// The reason.
        source: io::Error,
    },

    /// The operating system refused a port or random bytes.
    #[error("{0}")]
    Join(#[from] JoinError),

    /// A process or its output was lost.
    #[error("{what}: {source}")]
    System {
        /// What failed.
        what: &'static str,
        /// The reason.
        source: io::Error,
    },
}

/// How the processes ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All ranks succeeded.
    Success,
    /// The first rank that failed, and its exit code: 128 and the signal's number if it was killed.
    Failed {
        /// The rank.
        rank: usize,
        /// The code.
        code: u8,
    },
    /// They were stopped from outside.
    Stopped,
}

impl Launch {
    /// `ranks` processes of `command`: a program and its arguments.
    ///
    /// # Errors
    /// [`LaunchError::Nothing`].
    pub fn new(ranks: usize, command: Vec<OsString>) -> Result<Launch, LaunchError> {
        let problem = match (ranks, command.is_empty()) {
            (0, _) => "a world needs at least 1 rank",
            (_, true) => "there is no command; pass one after `--`",
            _ => return Ok(Launch { ranks, command }),
        };
        Err(LaunchError::Nothing { problem })
    }

    /// Runs the processes with torchrun's variables and a new secret, and waits for them. Each line
    /// of their output is written with the rank before it. When one fails, or `stop` is set, the
    /// others are stopped, with the processes that they started.
    ///
    /// # Errors
    /// [`LaunchError`].
    pub fn run(
        &self,
        stop: &AtomicBool,
        stdout: impl Write + Send,
        stderr: impl Write + Send,
    ) -> Result<Ended, LaunchError> {
        let mut children = self.start()?;
        let (stdout, stderr) = (Mutex::new(stdout), Mutex::new(stderr));
        let width = (self.ranks - 1).to_string().len();
        thread::scope(|scope| {
            for (number, rank) in children.0.iter_mut().enumerate() {
                let prefix = format!("[{number:width$}] ");
                if let Some(from) = rank.process.stdout.take() {
                    let (prefix, into) = (prefix.clone(), &stdout);
                    scope.spawn(move || copy_lines(from, &prefix, into));
                }
                if let Some(from) = rank.process.stderr.take() {
                    let into = &stderr;
                    scope.spawn(move || copy_lines(from, &prefix, into));
                }
            }
            children.wait(stop)
        })
    }

    fn start(&self) -> Result<Children, LaunchError> {
        let secret = Secret::random()?;
        let secret = String::from_utf8_lossy(secret.expose()).into_owned();
        let port = free_port().map_err(|source| LaunchError::System {
            what: "no free port",
            source,
        })?;
        let mut children = Children(Vec::new());
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
                .env("MESHGRAD_RUN", format!("launch-{}", std::process::id()))
                .env_remove("MESHGRAD_PORT")
                .env_remove("TORCHELASTIC_RUN_ID")
                .env_remove("TORCHELASTIC_USE_AGENT_STORE")
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .process_group(0);
            let child = command.spawn().map_err(|source| LaunchError::Start {
                rank,
                command: self.command[0].to_string_lossy().into_owned(),
                source,
            })?;
            children.0.push(Rank {
                process: child,
                status: None,
            });
        }
        Ok(children)
    }
}

fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// The processes, in rank order. They are killed when dropped.
struct Children(Vec<Rank>);

struct Rank {
    process: Child,
    /// Set once it has been waited for. Its number may then belong to another process.
    status: Option<ExitStatus>,
}

impl Children {
    fn wait(&mut self, stop: &AtomicBool) -> Result<Ended, LaunchError> {
        let mut outcome = Ended::Success;
        let mut signals = [(Duration::ZERO, Signal::TERM), (END, Signal::KILL)]
            .into_iter()
            .peekable();
        let mut since: Option<Instant> = None;
        while self.0.iter().any(|rank| rank.status.is_none()) {
            let failed = self.look()?;
            if outcome == Ended::Success {
                outcome = match failed {
                    Some((rank, code)) => Ended::Failed { rank, code },
                    None if stop.load(Ordering::Relaxed) => Ended::Stopped,
                    None => Ended::Success,
                };
            }
            let grace = match outcome {
                Ended::Success => None,
                Ended::Failed { .. } => Some(REPORT),
                Ended::Stopped => Some(Duration::ZERO),
            };
            if let Some(grace) = grace {
                let since = *since.get_or_insert_with(Instant::now);
                if let Some((_, signal)) =
                    signals.next_if(|(after, _)| since.elapsed() >= grace + *after)
                {
                    self.signal(signal);
                }
            }
            thread::sleep(LOOK);
        }
        Ok(outcome)
    }

    /// Looks which processes have ended. Returns the first one that failed since the last look.
    fn look(&mut self) -> Result<Option<(usize, u8)>, LaunchError> {
        let mut first = None;
        for (number, rank) in self.0.iter_mut().enumerate() {
            if rank.status.is_some() {
                continue;
            }
            rank.status = rank
                .process
                .try_wait()
                .map_err(|source| LaunchError::System {
                    what: "a process was lost",
                    source,
                })?;
            if let Some(code) = rank.status.and_then(failure) {
                first.get_or_insert((number, code));
                signal_group(&rank.process, Signal::TERM); // what it started
            }
        }
        Ok(first)
    }

    /// Signals the processes that have not ended, and what they started.
    fn signal(&self, signal: Signal) {
        let running = self.0.iter().filter(|rank| rank.status.is_none());
        running.for_each(|rank| signal_group(&rank.process, signal));
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        for rank in self.0.iter_mut().filter(|rank| rank.status.is_none()) {
            let _ = rank.process.wait(); // it was killed
        }
    }
}

fn signal_group(process: &Child, signal: Signal) {
    // A group that has ended needs no signal.
    let _ = Pid::from_raw(process.id() as i32).map(|pid| kill_process_group(pid, signal));
}

/// The exit code of a process that failed.
fn failure(status: ExitStatus) -> Option<u8> {
    let code = status.code().or_else(|| Some(128 + status.signal()?));
    match u8::try_from(code.unwrap_or(1)) {
        Ok(0) => None,
        Ok(code) => Some(code),
        Err(_) => Some(1),
    }
}

/// Copies lines with a prefix, until the source ends.
fn copy_lines(from: impl Read, prefix: &str, into: &Mutex<impl Write>) {
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    while let Ok(1..) = from.read_until(b'\n', &mut line) {
        if line.last() != Some(&b'\n') {
            line.push(b'\n');
        }
        let mut into = into.lock().unwrap_or_else(|it| it.into_inner());
        // If the reader has gone, the processes go on.
        let _ = into.write_all(&[prefix.as_bytes(), &line].concat());
        let _ = into.flush();
        line.clear();
    }
}
