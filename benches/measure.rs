//! What every bench needs: spread, the machine, the peer in Python, and the report.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::{Value, json};

/// The options that all benches share.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// A Python interpreter with benches/torch/requirements.txt: the peer in the same run.
    #[arg(long, value_name = "PYTHON")]
    pub(crate) torch: Option<PathBuf>,
    /// Also write the report, with the machine and the versions, to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// One short round, to see that the bench works.
    #[arg(long)]
    pub(crate) smoke: bool,
    /// What cargo passes to every bench.
    #[arg(long, hide = true)]
    pub(crate) bench: bool,
}

/// The median of some measurements, and how far they lie apart.
#[derive(Clone, Copy)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// Of at least one measurement.
    pub(crate) fn of(values: &[f64]) -> Spread {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let median = match sorted.len() % 2 {
            0 => (sorted[middle - 1] + sorted[middle]) / 2.0,
            _ => sorted[middle],
        };
        Spread {
            median,
            min: sorted[0],
            max: sorted[sorted.len() - 1],
        }
    }

    pub(crate) fn json(self) -> Value {
        let round = |x: f64| (x * 1e4).round() / 1e4;
        json!({"median": round(self.median), "min": round(self.min), "max": round(self.max)})
    }
}

impl std::fmt::Display for Spread {
    /// `median (min - max)`, with digits that suit the size.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let digits = if self.median < 10.0 { 2 } else { 0 };
        write!(
            f,
            "{:.digits$} ({:.digits$} - {:.digits$})",
            self.median, self.min, self.max
        )
    }
}

/// A Python script that answers requests, one JSON object a line.
pub(crate) struct Peer {
    process: Child,
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    /// What it said first: its versions.
    pub(crate) hello: Value,
    /// How long to wait after an answer, until the peer's threads, which spin after their work
    /// (0.2 s in Intel's OpenMP), leave the cores to whose turn is next.
    pub(crate) pause: Duration,
}

impl Peer {
    /// Starts `script` of benches/torch.
    pub(crate) fn start(python: &Path, script: &str, arguments: &[&str]) -> anyhow::Result<Peer> {
        let mut process = Command::new(python)
            .arg(scripts().join(script))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", python.display()))?;
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

    /// Waits for the answer, and then for [`Peer::pause`].
    pub(crate) fn ask(&mut self, request: &Value) -> anyhow::Result<Value> {
        let requests = self.requests.as_mut().context("the peer has ended")?;
        writeln!(requests, "{request}")?;
        requests.flush()?;
        let answer = self.listen();
        std::thread::sleep(self.pause);
        answer
    }

    fn listen(&mut self) -> anyhow::Result<Value> {
        let mut line = String::new();
        if self.answers.read_line(&mut line)? == 0 {
            bail!("the peer ended; its message is above");
        }
        serde_json::from_str(&line).with_context(|| format!("the peer said {line:?}"))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.requests = None;
        let _ = self.process.wait();
    }
}

/// benches/torch, or what `MESHGRAD_BENCH_PEERS` names where there is no checkout.
fn scripts() -> PathBuf {
    match std::env::var_os("MESHGRAD_BENCH_PEERS") {
        Some(folder) => folder.into(),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/torch"),
    }
}

/// Numbers of an answer.
pub(crate) fn numbers(value: &Value) -> Vec<f64> {
    let items = value.as_array().map(Vec::as_slice).unwrap_or_default();
    items.iter().filter_map(Value::as_f64).collect()
}

/// Seconds that `f` takes.
pub(crate) fn seconds<T>(f: impl FnOnce() -> T) -> (f64, T) {
    let start = std::time::Instant::now();
    let result = f();
    (start.elapsed().as_secs_f64(), result)
}

/// Adds machine and versions to `report`, and writes it where the options say.
pub(crate) fn finish(options: &Options, mut report: Value, peers: Value) -> anyhow::Result<()> {
    report["machine"] = machine();
    report["versions"] = json!({
        "meshgrad": env!("CARGO_PKG_VERSION"),
        "commit": version(
            "MESHGRAD_BENCH_COMMIT",
            "git",
            &["describe", "--always", "--dirty", "--exclude", "*"],
        ),
        "rustc": version("MESHGRAD_BENCH_RUSTC", "rustc", &["--version"]),
        "peers": peers,
    });
    if let Some(file) = &options.json {
        let text = format!("{report:#}\n");
        std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
        println!("\nwrote {}", file.display());
    }
    Ok(())
}

fn machine() -> Value {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = cpuinfo.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_once(':'))
            .map(|(_, value)| value.trim().to_owned())
            .unwrap_or_default()
    };
    let device = meshgrad::runtime::Device::cpu();
    let properties = device.properties();
    json!({
        "cpu": field("model name"),
        "family_model_stepping": [field("cpu family"), field("model\t"), field("stepping")],
        "threads": properties.threads,
        "simd": properties.simd,
        "native_bf16": properties.native_bf16,
        "system": output("uname", &["-sm"]),
    })
}

/// What `variable` says, for executables that were taken elsewhere, or a program.
fn version(variable: &str, program: &str, arguments: &[&str]) -> String {
    std::env::var(variable).unwrap_or_else(|_| output(program, arguments))
}

fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    text.unwrap_or_default()
}
