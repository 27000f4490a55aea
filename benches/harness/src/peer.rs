//! The Python process that benches compare with.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::Value;

/// How to start the peer.
#[derive(clap::Args)]
pub struct PeerOptions {
    /// Also time torch, with this Python and the packages of benches/torch/requirements.txt.
    #[arg(long, value_name = "PYTHON")]
    pub torch: Option<PathBuf>,
}

impl PeerOptions {
    /// Starts `script` of benches/torch if `--torch` is given.
    pub fn start(&self, script: &str, arguments: &[&str]) -> anyhow::Result<Option<Peer>> {
        let start = |python: &PathBuf| Peer::start(python, script, arguments);
        self.torch.as_ref().map(start).transpose()
    }
}

/// A Python script that answers requests, one JSON object per line.
pub struct Peer {
    process: Child,
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    /// The first message of the script, with the versions of its libraries.
    pub hello: Value,
    /// The wait after an answer. It gives the peer's threads time to stop spinning (0.2 s in
    /// Intel's OpenMP), so that the cores are free for the next contestant.
    pub pause: Duration,
}

impl Peer {
    /// Starts `script` of benches/torch.
    pub fn start(python: &Path, script: &str, arguments: &[&str]) -> anyhow::Result<Peer> {
        Peer::start_command(Command::new(python).arg(scripts().join(script)).args(arguments))
    }

    /// Starts a script with `command` and waits for its first message.
    pub fn start_command(command: &mut Command) -> anyhow::Result<Peer> {
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", command.get_program().display()))?;
        let requests = process.stdin.take();
        let answers = process.stdout.take().context("no standard output")?;
        let mut peer = Peer {
            process,
            requests,
            answers: BufReader::new(answers),
            hello: Value::Null,
            pause: Duration::from_millis(300),
        };
        peer.hello = peer.listen()?;
        Ok(peer)
    }

    /// Sends a request, waits for the answer, then sleeps for [`Peer::pause`].
    pub fn ask(&mut self, request: &Value) -> anyhow::Result<Value> {
        let requests = self.requests.as_mut().context("the peer has exited")?;
        writeln!(requests, "{request}")?;
        requests.flush()?;
        let answer = self.listen();
        std::thread::sleep(self.pause);
        answer
    }

    fn listen(&mut self) -> anyhow::Result<Value> {
        let mut line = String::new();
        if self.answers.read_line(&mut line)? == 0 {
            bail!("the peer exited; its error is above");
        }
        serde_json::from_str(&line)
            .with_context(|| format!("the peer sent {line:?}, which is not JSON"))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.requests = None;
        let _ = self.process.wait();
    }
}

/// The folder in `MESHGRAD_BENCH_PEERS` if it is set, otherwise benches/torch.
pub fn scripts() -> PathBuf {
    match std::env::var_os("MESHGRAD_BENCH_PEERS") {
        Some(folder) => folder.into(),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../torch"),
    }
}

/// The numbers of a JSON array.
pub fn numbers(value: &Value) -> Vec<f64> {
    let items = value.as_array().map(Vec::as_slice).unwrap_or_default();
    items.iter().filter_map(Value::as_f64).collect()
}
